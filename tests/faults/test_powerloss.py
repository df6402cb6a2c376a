"""A sample of the power cuts of `make faults`; and that the harness sees it when a flush is missing."""

import os
from pathlib import Path

import pytest

from tests.faults import powerloss
from tests.faults.powerloss import Disk, Recorder, states, variants
from tests.faults.report import FATAL


@pytest.mark.faults
@pytest.mark.parametrize(("scenario", "limit", "least"), [("a run that goes on", 16, 60), ("clamkit results", 8, 20)])
def test_whatever_a_power_cut_leaves_is_right(tmp_path, scenario, limit, least):
    found = powerloss.cut(tmp_path, limit, recoveries=40, only=scenario)
    assert found["states"] >= least
    assert found["recovered"] >= 1
    assert not {key: found[key] for key in FATAL if found[key]}


@pytest.mark.faults
def test_folders_that_are_not_flushed_lose_finished_runs(tmp_path):
    found = powerloss.cut(tmp_path, 2, recoveries=10**9, only="a run that goes on", deaf="folder")
    assert found["lost runs"]
    assert found["claims to be done"]
    assert found["lost epochs"]


@pytest.mark.faults
def test_files_that_are_not_flushed_claim_to_be_done(tmp_path):
    found = powerloss.cut(tmp_path, 2, recoveries=10**9, only="a run that goes on", deaf="file")
    assert found["lost runs"]
    assert found["claims to be done"]


# --------------------------------------------------------------------- the model, by cases worked by hand


def trees(steps) -> list[dict]:
    return [tree for tree, _ in states(steps, 1000, 0)]


def recorded(root: Path, work) -> list:
    recorder = Recorder(root)
    with recorder.recording():
        work()
    return recorder.steps


def test_a_new_file_that_nobody_flushed(tmp_path):
    found = trees(recorded(tmp_path, lambda: (tmp_path / "file").write_bytes(b"ab")))
    assert {} in found
    contents = sorted(tree["file"] for tree in found if tree)
    assert contents == [b"", b"\0\0", b"a", b"a\0", b"ab"]


def test_a_flushed_file_is_there_when_its_folder_is_flushed_too(tmp_path):
    def write(folder):
        with open(tmp_path / "file", "wb") as file:
            file.write(b"ab")
            file.flush()
            os.fsync(file.fileno())
        if folder:
            number = os.open(tmp_path, os.O_RDONLY)
            os.fsync(number)
            os.close(number)

    for folder, expected in ((False, [{}, {"file": b"ab"}]), (True, [{"file": b"ab"}])):
        (tmp_path / "file").unlink(missing_ok=True)
        disk = Disk()
        for step in recorded(tmp_path, lambda folder=folder: write(folder)):
            disk.do(step)
        found = list(disk.cuts(1000, None))
        assert sorted(map(sorted, found)) == sorted(map(sorted, expected))
        assert all(tree in expected for tree in found)


def test_a_rename_is_one_step_and_may_come_before_an_earlier_one(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())

    def work():
        os.replace(tmp_path / "a", tmp_path / "c")
        os.rename(tmp_path / "b", tmp_path / "d")

    found = {tuple(sorted(tree)) for tree in trees(recorded(tmp_path, work))}
    assert found == {("a", "b"), ("b", "c"), ("a", "d"), ("c", "d")}


def test_what_is_in_a_folder_goes_with_its_name(tmp_path):
    def work():
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "file").write_bytes(b"")
        number = os.open(tmp_path / "x", os.O_RDONLY)
        os.fsync(number)
        os.close(number)

    found = trees(recorded(tmp_path, work))
    assert {"x": None, "x/file": b""} in found
    assert {} in found
    assert not any("x/file" in tree and "x" not in tree for tree in found)


@pytest.mark.faults
def test_the_end_of_a_recording_is_what_is_on_the_disk(tmp_path):
    """Replayed with nothing lost: the recorder missed nothing."""
    root = tmp_path / "recorded"
    root.mkdir()
    grid = powerloss.quick.make(tmp_path, 1, 2)
    recorder = Recorder(root)
    with powerloss.quick.training(tmp_path, root / "data"), recorder.recording():
        powerloss.sweep_all(grid, root / "runs", lambda *_: None)
    disk = Disk()
    for step in recorder.steps:
        disk.do(step)
    tree = disk.tree((True,) * len(disk.pending), {number: contents[-1] for number, contents in disk.data.items()})
    there = {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in root.rglob("*")}
    assert tree == there


def test_what_becomes_of_unflushed_data():
    assert variants([b"old", b"news"]) == (b"news", b"ne", b"\0\0\0\0", b"ne\0\0", b"old")
