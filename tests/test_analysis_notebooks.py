"""The analysis notebooks on no runs, on some and on many: they never fail, and say what they cannot know yet."""

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest

from clamkit import paths
from clamkit.lab import report
from clamkit.lab import results
from clamkit.metrics import fairness
from clamkit.engine.store import Run
from clamkit.lab.runner import Grid

NOTEBOOKS = report.analysis_notebooks()
GRIDS = {file.stem: 10 for file in (paths.notebooks() / "sweeps").glob("mini_*.yaml")}  # and their classes
HUNDRED = ("mini_cifar100", "mini_tau_cifar100", "mini_mini_imagenet", "mini_ggf", "paper_apstar")
GRIDS |= {"mini_tail": 40} | dict.fromkeys(HUNDRED, 100)
OPEN = "not decidable yet"


class Made(Run):
    """A run that was never trained. The worst classes get the larger weights; whoever weights them lifts them."""

    def __init__(self, config, num_classes: int):
        super().__init__(config.folder())
        rng, epochs = np.random.default_rng(int(config.hash(), 16)), 4
        fair = config.method.startswith(("clam", "maxmin")) and config.tau > 0
        ease = np.linspace(0.7 if fair else 0.4, 0.95, num_classes)
        accuracy = (ease + rng.normal(0, 0.02, (epochs, num_classes))).clip(0, 1)
        jump = 0.4 if config.method.startswith("apstar") else 0.02
        weight = 1 + fair * (0.7 - ease) + jump * rng.random((epochs, num_classes))
        self.config = config
        self.history = pd.DataFrame(
            {
                "epoch": np.repeat(np.arange(1, epochs + 1), num_classes),
                "class": np.tile(np.arange(num_classes), epochs),
                "weight": weight.ravel(),
                "train_accuracy": accuracy.ravel(),
                "train_loss": 1 - accuracy.ravel(),
                "test_accuracy": accuracy.ravel(),
            }
        )
        self.summary = fairness(accuracy[-1]).to_dict() | {"seconds": 1.0, "versions": {"clamkit": "0"}}


@pytest.fixture(scope="module", params=["none", "some", "many"])
def state(request, tmp_path_factory):
    """Committed results of none, of seven, or of up to 120 runs of each grid."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "folder", lambda: folder)
        for name, num_classes in GRIDS.items():
            configs = Grid.load(name).configs()
            count = {"none": 0, "some": 7, "many": 120}[request.param]
            results.save(name, [Made(config, num_classes) for config in configs[:count]])
        yield request.param


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_analysis_notebook(state, path, capsys, monkeypatch):
    monkeypatch.delenv("CLAMKIT_REAL", raising=False)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    namespace = {"__name__": "__main__"}
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{path.stem}:{cell.id}", "exec"), namespace)
    said = capsys.readouterr().out
    if state == "none":
        assert "`clamkit sweep " in said, "the command that makes what is missing"
    if state == "many" and path.stem[:2] == "05":
        assert "\nsupported (" in said
    if state == "many" and path.stem[:2] in ("20", "25", "26", "27"):
        assert ": holds" in said, "CLAM is better in every made run"
    if state == "none" and path.stem[:2] not in ("22", "24"):
        assert OPEN in said
        assert ": holds" not in said
    if path.stem[:2] == "29":
        assert OPEN in said, "no predictions on ImageNet here"
