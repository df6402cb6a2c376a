"""The doctor says what is there, what is broken and what is missing, and nothing else."""

import os
from importlib import metadata

import pytest

from clamkit.apps import doctor


@pytest.fixture(autouse=True)
def _speed(monkeypatch):
    """As if measured: tests/engine/test_device.py does, in a process of its own that takes ten seconds."""
    monkeypatch.setattr("clamkit.engine.device.bfloat16_speed", lambda: 1.5)


def problems() -> dict[str, str]:
    return {kind: problem for kind, _, problem in doctor.checks() if problem and kind != "extra"}


@pytest.fixture
def without(monkeypatch):
    """Makes packages look as if they were not installed."""

    def hide(*names: str) -> None:
        monkeypatch.setattr(doctor, "version", lambda name: "1.0")
        monkeypatch.setattr(doctor, "distributions", lambda name: [] if name in names else [name])

    return hide


@pytest.fixture
def asks_for(monkeypatch):
    def ask(*lines: str) -> None:
        monkeypatch.setattr(doctor, "requires", lambda name: list(lines))

    return ask


def test_a_sound_machine_lacks_nothing(without, asks_for):
    asks_for("torch>=2.6", "papermill>=2.6; extra == 'lab'")
    without()
    lines, sound = doctor.doctor()
    assert sound
    assert lines[-1] == "nothing is missing"
    text = "\n".join(lines)
    for words in ("clamkit ", "device ", "torch 1.0", "fashion_mnist_mini: in ", "GB free", "notebooks and", "lab ("):
        assert words in text
    assert "bfloat16 has 1.5 times float32's speed" in text


def test_a_missing_extra_is_named_with_the_command_that_brings_it(without, asks_for):
    asks_for("torch>=2.6", "papermill>=2.6; extra == 'lab'", 'dask>=2025.1; extra == "cluster"')
    without("papermill")
    lines, sound = doctor.doctor()
    assert sound, "extras are optional"
    assert "nothing is missing" not in lines
    assert [line for line in lines if line.startswith("missing")] == [
        f"{'missing':<10} papermill: `pip install 'clamkit[lab]'` brings it"
    ]
    assert any(line.startswith("extra") and "cluster" in line and line.endswith(": installed") for line in lines)


def test_a_missing_package_is_a_problem(without, asks_for):
    asks_for("torch>=2.6", "scipy>=1.14")
    without("scipy")
    lines, sound = doctor.doctor()
    assert not sound
    assert any(line.startswith("problem") and "pip install scipy" in line for line in lines)


def test_a_copy_that_is_not_installed_says_so(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", requires)
    assert "not installed" in problems()["packages"]


@pytest.mark.parametrize("name", ["runs", "figures", "cache"])
def test_folders_are_really_written(name, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    variable = f"CLAMKIT_{'DATA' if name == 'cache' else name.upper()}"
    monkeypatch.setenv(variable, str(tmp_path / "file" / "below"))
    assert f"{name} cannot be written" in problems()[name]
    assert variable in problems()[name], "how to choose another folder"
    monkeypatch.setenv(variable, str(tmp_path / "new" / "one"))
    assert not problems()
    assert not (tmp_path / "new").exists(), "looking leaves nothing behind"


def test_a_full_disk_is_noticed(monkeypatch):
    def full(number):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    assert "runs cannot be written" in problems()["runs"]
    assert "No space left" in problems()["runs"]


def test_absent_notebooks_and_data_are_problems(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.paths, "notebooks", lambda: tmp_path)
    monkeypatch.setattr(doctor.paths, "embedded", lambda: tmp_path)
    found = problems()
    assert "lacks notebooks or grids" in found["notebooks"]
    assert "fashion_mnist_mini" in found["data"]
    assert not doctor.doctor()[1]
