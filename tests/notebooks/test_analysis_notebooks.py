"""The analysis notebooks on no runs, on some and on many: they never fail, and say what they cannot know yet."""

import re
import subprocess
import sys

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest

from clamkit import paths
from clamkit.lab import report, results
from clamkit.lab.grids import Grid
from helpers import found
from tests.memory_run import MemoryRun

NOTEBOOKS = report.analysis_notebooks()
GRIDS = {file.stem: 10 for file in (paths.notebooks() / "sweeps").glob("mini_*.yaml")}  # and their classes
HUNDRED = ("mini_cifar100", "mini_tau_cifar100", "mini_mini_imagenet", "mini_ggf", "paper_apstar")
GRIDS |= dict.fromkeys(HUNDRED, 100)
COUNT = {"none": 0, "some": 7, "many": 120}  # runs of each grid
OPEN = "not decided"
LONG = ("27", "28")  # notebooks that take their time without any runs


def made(config, num_classes: int) -> MemoryRun:
    """A run that was never trained. Whoever gives the worst classes larger weights lifts them; APStar never rests."""
    rng, epochs = np.random.default_rng(int(config.hash(), 16)), 4
    fair = config.method.startswith(("clam", "maxmin")) and config.tau > 0
    ease = np.linspace(0.7 if fair else 0.4, 0.95, num_classes)
    noise, jump = (0.06, 0.4) if config.method.startswith("apstar") else (0.02, 0.02)
    accuracy = (ease + rng.normal(0, noise, (epochs, num_classes))).clip(0, 1)
    run = MemoryRun(config, accuracy, 1 + fair * (0.7 - ease) + jump * rng.random((epochs, num_classes)))
    run.summary["versions"] = {"clamkit": "0"}
    return run


@pytest.fixture(
    scope="module",
    params=["none", pytest.param("some", marks=pytest.mark.slow), pytest.param("many", marks=pytest.mark.slow)],
)
def state(request, tmp_path_factory):
    """Committed results of none, of seven, or of up to 120 runs of each grid."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "folder", lambda: folder)
        for name, num_classes in GRIDS.items():
            configs = Grid.load(name).configs()
            if request.param == "many":  # three seeds of the weakest and the strongest augmentation come first
                ends = [pick(config.strength for config in configs) for pick in (min, max)]
                configs = sorted(configs, key=lambda own, ends=ends: (own.seed > 2, own.strength not in ends))
            results.save(name, [made(config, num_classes) for config in configs[: COUNT[request.param]]])
        yield request.param


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem[:2] in LONG)) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_analysis_notebook(state, path, capsys, monkeypatch):
    monkeypatch.delenv("CLAMKIT_REAL", raising=False)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    monkeypatch.setattr(found, "display", lambda shown: print(shown.data))
    namespace = {"__name__": "__main__"}
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{path.stem}:{cell.id}", "exec"), namespace)
    said, number = capsys.readouterr().out, path.stem[:2]
    if number == "05":
        assert ("no runs yet" in said) or state != "none"
    else:
        said = " ".join(said.split())  # sentences are wrapped
        assert said.endswith("."), "the last word is a sentence"
    if state == "none":
        assert "`clamkit sweep " in said, "the command that makes what is missing"
        assert ": supported" not in said
        if number != "05":
            assert f": {OPEN}" in said
    if state == "many" and number == "05":
        assert (namespace["table"]["verdict"] == "supported").any()
    if state == "many" and number in ("20", "25", "26", "27"):
        assert ": supported" in said, "CLAM is better in every made run"
    if number == "29":
        assert OPEN in said, "no predictions on ImageNet here"


ANALYSES = [path for path in NOTEBOOKS if path.stem[:1] == "2"]


@pytest.mark.parametrize("path", ANALYSES, ids=lambda path: path.stem)
def test_an_analysis_ends_in_a_verdict_sentence(path):
    """As committed: its last cell shows sentences, at least one with a verdict, a number, its seeds and its regime."""
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.source.strip()]
    assert max(len(cell.source.splitlines()) for cell in cells if cell.cell_type == "code") <= 20
    assert "verdict" in cells[-1].metadata.get("tags", [])
    outputs = cells[-1].outputs
    assert {tuple(output.data) for output in outputs} == {("text/markdown", "text/plain")}, "no table, no dict, no list"
    said = " ".join(" ".join(output.data["text/markdown"] for output in outputs).split())
    assert said.endswith(".")
    assert not set(said) & set("{}[]")
    assert "*Regime*: " in said
    assert any(f": {word}" in said for word in ("supported", "the opposite", "no difference", OPEN))
    if path.stem[:2] != "29":  # no run on ImageNet has finished
        assert re.search(r"95 % interval [+−]?\d+\.\d+ to [+−]?\d+\.\d+", said)
        assert re.search(r"[Oo]ver \d seeds", said)


@pytest.mark.parametrize("path", [*ANALYSES, paths.notebooks() / "06_class_crops.ipynb"], ids=lambda path: path.stem)
def test_a_finding_is_computed_and_not_written(path):
    """Prose that tells results goes stale when runs are added."""
    prose = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    assert not re.search(r"\*\*Found\*\*|\bwe (see|found)\b", "\n".join(prose))


def test_there_are_ten_analyses():
    assert [path.stem[:2] for path in ANALYSES] == [str(number) for number in range(20, 30)]


@pytest.mark.slow
def test_papermill_needs_no_option_in_any_folder(tmp_path):
    """`helpers` is found although papermill's working folder is another one, and nothing is logged as an error."""
    pytest.importorskip("papermill", reason="papermill executes notebooks")
    command = [sys.executable, "-m", "papermill", str(ANALYSES[4]), "out.ipynb", "--no-progress-bar"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    slow_to_end = "KeyboardInterrupt caught in kernel"  # of a busy machine: the kernel is interrupted when all is done
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower() and slow_to_end not in line]
    assert errors == [], done.stderr
    assert "*Regime*" in nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs[-1].data["text/markdown"]
