"""Figures are closed after each test; runs for the tests of the view and the explorer of runs."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from clamkit import RunConfig, train
from clamkit.lab import results


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture
def runs(small_npz):
    """Two trained runs of the same setting."""
    return {m: train(RunConfig(dataset=str(small_npz), method=m, epochs=2)) for m in ("normal", "clam")}


@pytest.fixture
def none_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "folder", lambda: tmp_path / "no results")


@pytest.fixture
def many(memory_run):
    """Runs of many classes, made up: many(classes, method)."""

    def make(classes: int, method: str, epochs: int = 3):
        rng = np.random.default_rng(len(method))
        accuracy, weight = rng.random((2, epochs, classes))
        return memory_run(accuracy, weight, dataset="some", method=method)

    return make
