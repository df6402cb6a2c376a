"""Many runs, many classes: the table and its index, and labels of 8,142 classes. `tests.faults.load` has the times."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from clamkit import metrics
from clamkit.cli import status_command
from clamkit.engine import index
from clamkit.engine.config import RunConfig
from clamkit.engine.store import COLUMNS, RunFolder, RunStore, as_frame
from clamkit.errors import ClamkitError
from clamkit.files import sha256
from clamkit.lab import runner
from clamkit.lab.grids import Grid
from clamkit.lab.runner import plan, sweep
from clamkit.methods import criterion
from clamkit.methods.weighters import build_method
from clamkit.theory.sets import LowerBounded
from helpers.run_measures import fairness_over_epochs
from tests.faults.load import grid, make_runs


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    make_runs(root, 400)
    return RunStore(root)


@pytest.mark.slow
def test_hundreds_of_runs_are_read_and_kept(store, capsys):
    frame = store.frame()
    assert len(frame) == 400
    assert sorted(frame["average"]) == pytest.approx([i / 400 for i in range(400)])
    pd.testing.assert_frame_equal(store.frame(), frame)
    status_command(store.root)
    said = capsys.readouterr().out
    assert said.count("10/10") == 40, "5 methods × 8 strengths"
    assert "400 done" in said


@pytest.mark.slow
def test_the_index_spares_reading_the_runs_again(store, monkeypatch):
    frame = store.frame()
    monkeypatch.setattr(RunFolder, "summary", property(lambda run: pytest.fail(f"{run} was read again")))
    pd.testing.assert_frame_equal(store.frame(), frame)


@pytest.mark.slow
def test_the_index_is_never_trusted_over_the_runs(store):
    frame = store.frame()
    index = store.root / ".index.json"
    raw = index.read_bytes()
    hurt = raw.replace(b'"average": 0.5,', b'"average": 0.9,')
    assert hurt != raw
    for content in (hurt, raw[:-100], b"", b"\xff" * 50):
        index.write_bytes(content)
        pd.testing.assert_frame_equal(store.frame(), frame)
        assert index.read_bytes() == raw, "written anew"

    run = store.runs()[7]
    summary = (run.folder / "summary.json").read_bytes()
    (run.folder / "summary.json").write_bytes(summary.replace(b"60.0", b"61.0"))
    with pytest.raises(ClamkitError, match=r"summary\.json is damaged"):
        store.frame()
    done = json.loads((run.folder / "DONE").read_text())
    done["summary.json"] = sha256((run.folder / "summary.json").read_bytes())
    (run.folder / "DONE").write_text(json.dumps(done))  # as a run made anew
    assert store.frame().set_index("folder").loc[str(run.folder), "seconds"] == 61
    aside = store.root.parent / "aside"
    shutil.move(run.folder, aside)
    assert len(store.frame()) == 399
    shutil.move(aside, run.folder)
    assert len(store.frame()) == 400


def test_a_few_runs_and_their_index(tmp_path):
    """As above with 20 runs, for the quick set."""
    make_runs(tmp_path, 20)
    store = RunStore(tmp_path)
    frame = store.frame()
    assert sorted(frame["average"]) == pytest.approx([i / 20 for i in range(20)])
    index = tmp_path / ".index.json"
    raw = index.read_bytes()
    hurt = raw.replace(b'"average": 0.5,', b'"average": 0.9,')
    assert hurt != raw
    for content in (raw, hurt, raw[:-100], b""):
        index.write_bytes(content)
        pd.testing.assert_frame_equal(store.frame(), frame)
        assert index.read_bytes() == raw
    shutil.rmtree(store.runs()[0].folder)
    assert len(store.frame()) == 19


def test_a_changed_file_is_seen_though_its_size_and_time_are_as_before(tmp_path):
    make_runs(tmp_path, 2)
    store = RunStore(tmp_path)
    store.frame()
    summary = store.runs()[0].folder / "summary.json"
    times = summary.stat()
    summary.write_bytes(summary.read_bytes().replace(b"60.0", b"61.0"))
    os.utime(summary, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ClamkitError, match=r"summary\.json is damaged"):
        store.frame()


def test_the_index_holds_only_what_is_not_as_by_default(tmp_path):
    make_runs(tmp_path, 20)
    frame = RunStore(tmp_path).frame()
    pd.testing.assert_frame_equal(frame.drop(columns="folder"), as_frame(RunStore(tmp_path).runs()))
    _, body = (tmp_path / ".index.json").read_text().split("\n")
    usual, rows = json.loads(body)
    assert usual == RunConfig().model_dump()
    assert all(not usual.items() & row.items() for _, row in rows.values())


def test_folders_that_are_no_runs_are_passed_over(tmp_path):
    make_runs(tmp_path, 3)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    (tmp_path / "a" / "b" / "DONE").write_text("")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "nowhere")
    found = [run.folder for run in RunStore(tmp_path).runs()]
    assert found == sorted(path.parent for path in tmp_path.glob("*/*/*/*/DONE"))
    assert len(found) == 3


def test_the_grid_of_the_runs_made_here_is_done(tmp_path):
    """What `sweep --dry-run` is measured on."""
    make_runs(tmp_path, 40)
    planned = plan(Grid.parse("load", grid(40)), tmp_path)
    assert planned["state"].tolist() == ["done"] * 40


def test_a_plan_reads_only_what_changed_and_a_sweep_reads_all(tmp_path, monkeypatch):
    make_runs(tmp_path, 40)
    wanted = Grid.parse("load", grid(40))
    first = plan(wanted, tmp_path)
    damaged, read = RunFolder.damaged, []
    monkeypatch.setattr(RunFolder, "damaged", lambda run, **given: read.append(run.folder) or damaged(run, **given))
    pd.testing.assert_frame_equal(plan(wanted, tmp_path), first)
    assert not read
    hurt = RunStore(tmp_path).runs()[7].folder
    (hurt / "history.parquet").write_bytes(b"y")
    for _ in range(2):
        assert plan(wanted, tmp_path)["state"].value_counts().to_dict() == {"done": 39, "damaged": 1}
    assert read == [hurt]
    (tmp_path / ".checked.json").write_bytes(b"{}")
    assert plan(wanted, tmp_path)["state"].tolist().count("damaged") == 1
    assert len(read) == 41

    monkeypatch.setattr(index, "checked", lambda *_: pytest.fail("a sweep looks itself"))
    to_make = []
    monkeypatch.setattr(runner, "_local_outcomes", lambda work, *_: (outcome for outcome in to_make.extend(work) or ()))
    sweep(wanted, runs=tmp_path, rerun=True, progress=False)
    (missing,) = to_make
    assert tmp_path / missing.folder() == hurt
    assert len(read) == 81


def test_a_table_may_leave_damaged_runs_out(tmp_path):
    make_runs(tmp_path, 20)
    store, left_out = RunStore(tmp_path), []
    hurt = store.runs()[3].folder
    (hurt / "summary.json").write_bytes(b"{}")
    frame = store.frame(left_out)
    assert len(frame) == 19
    assert str(hurt) not in set(frame["folder"])
    assert len(left_out) == 1
    assert "summary.json is damaged" in left_out[0]
    with pytest.raises(ClamkitError, match=r"summary\.json is damaged"):
        store.frame()


def test_histories_of_a_thousand_classes(tmp_path):
    rng = np.random.default_rng(0)
    columns = {name: torch.from_numpy(rng.random((60, 1000))) for name in COLUMNS}
    run = RunFolder(tmp_path)
    run.save_history(columns)
    history = run.history
    assert np.array_equal(history["weight"].to_numpy().reshape(60, 1000), columns["weight"])
    fair = fairness_over_epochs(history)
    assert fair["worst"].iloc[-1] == pytest.approx(np.sort(columns["test_accuracy"][-1])[:100].mean())


def inaturalist_sizes(root: Path) -> np.ndarray:
    """Training images of each class of iNaturalist 2018, where the list is at hand; else as long a tail."""
    file = root.parent / "shared" / "data" / "inat18" / "img_num_per_cls.txt"
    if file.is_file():
        return np.loadtxt(file, dtype=np.int64)
    sizes = np.geomspace(263, 2, 8142).round().astype(np.int64)
    sizes[: 437_513 - sizes.sum()] += 1
    return sizes


@pytest.mark.slow
def test_labels_of_inaturalist_through_counts_weights_and_metrics(root, monkeypatch):
    sizes = inaturalist_sizes(root)
    n, total = 8142, 437_513
    assert (len(sizes), sizes.sum()) == (n, total)
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(n), sizes))
    right = rng.random(total) < 0.6
    predicted = np.where(right, y, (y + 1) % n)
    weighter = build_method("clam_kl", "inaturalist2018", n)
    monkeypatch.setattr(criterion, "cross_entropy", lambda logits, y: torch.ones(len(y)))  # 3.5 billion exponentials
    logits = torch.zeros(1024, n, dtype=torch.uint8)  # one buffer for all batches: what is 1 is the prediction
    for start in range(0, total, 1024):
        part = torch.from_numpy(predicted[start : start + 1024])
        rows = torch.arange(len(part))
        logits[rows, part] = 1
        weighter.observe(logits[: len(part)], torch.from_numpy(y[start : start + 1024]))
        logits[rows, part] = 0
    accuracy, losses = weighter.counted()
    assert (losses == 1).all()
    assert weighter.seen.tolist() == sizes.tolist()
    expected = np.zeros(n)
    np.add.at(expected, y, right)
    assert np.allclose(accuracy, expected / sizes)
    assert np.array_equal(metrics.class_accuracy(y, predicted, n), accuracy)
    weighter.step()
    weights = weighter.weights.numpy() / n
    assert LowerBounded(n, 0.5 / n).contains(weights)
    free = weights > 0.5 / n * (1 + 1e-9)
    ratio = weights[free] / np.exp(-accuracy[free])  # the KL step moves the free ones by one common factor
    assert np.allclose(ratio, ratio[0])
    fair = metrics.fairness(accuracy)
    assert fair["worst"] == pytest.approx(np.sort(accuracy)[:814].mean())
    assert fair["average"] == pytest.approx(accuracy.mean())
