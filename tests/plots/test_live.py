"""The live view: one picture redrawn, the same drawing as `training_curves`, silent where nobody looks."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

from clamkit import RunConfig, plots, train
from clamkit.plots.runs import live_png


class Notebook:
    """A notebook's shell, as far as the live view asks."""

    kernel = object()


class Terminal:
    """A shell without a kernel."""


@pytest.fixture
def screen(monkeypatch):
    """What a notebook displays: the pictures shown, and those they were replaced by."""
    shown, updated = [], []

    class Handle:
        update = staticmethod(updated.append)

    def display(content, display_id):
        shown.append(content)
        return Handle

    pytest.importorskip("IPython", reason="the live view is of notebooks")
    plt.figure()  # matplotlib asks the real shell, once, before there is one that cannot answer
    plt.close("all")  # that one, and what earlier tests of this process left open
    monkeypatch.setattr("IPython.get_ipython", Notebook)
    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.delenv("CLAMKIT_PROGRESS")
    return shown, updated


def history(epochs: int, classes: int) -> list[dict]:
    columns = ("weight", "train_accuracy", "train_loss", "test_accuracy")
    rng = np.random.default_rng(0)
    return [{column: torch.from_numpy(rng.random(classes)) for column in columns} for _ in range(epochs)]


@pytest.mark.slow
def test_one_picture_is_redrawn(screen, small_npz, tmp_path):
    shown, updated = screen
    config = RunConfig(dataset=str(small_npz), epochs=3)
    run = train(config, watch=plots.live_view(), progress=False)
    assert (len(shown), len(updated)) == (1, 2)
    assert Image.open(io.BytesIO(updated[-1].data)).width > 900
    assert not plt.get_fignums(), "the notebook shows it once"
    unwatched = train(config, runs=tmp_path / "again", progress=False)
    assert run.history.equals(unwatched.history), "looking changes nothing"


@pytest.mark.slow
def test_each_training_has_its_picture(screen, monkeypatch):
    monkeypatch.setattr("clamkit.plots.runs.LIVE_DPI", 20)
    shown, updated = screen
    watch = plots.live_view()
    for _ in range(2):
        for epochs in (1, 2):
            watch(history(epochs, 3), ["a", "b", "c"])
    assert (len(shown), len(updated)) == (2, 2)


@pytest.mark.slow
def test_the_drawing_is_that_of_a_finished_run(memory_run):
    accuracy, weight = np.random.default_rng(0).random((2, 4, 5))
    run = memory_run(accuracy, weight, method="clam")
    columns = {"weight": weight, "train_accuracy": accuracy, "test_accuracy": accuracy}
    so_far = [{name: values[epoch] for name, values in columns.items()} for epoch in range(4)]
    live, finished = (
        Image.open(io.BytesIO(png))
        for png in (live_png(so_far, run.class_names), plots.png(plots.training_curves(run), 140))
    )
    np.testing.assert_array_equal(np.asarray(live), np.asarray(finished))


@pytest.mark.parametrize(("epochs", "classes"), [(1, 2), pytest.param(3, 1000, marks=pytest.mark.slow)])
def test_any_number_of_classes_and_epochs(epochs, classes):
    picture = Image.open(io.BytesIO(live_png(history(epochs, classes), [f"class {i}" for i in range(classes)])))
    assert picture.width > 900


def test_a_class_without_test_images_comes_last():
    rows = history(2, 3)
    rows[-1]["test_accuracy"][0] = float("nan")
    assert live_png(rows, ["a", "b", "c"])


@pytest.mark.parametrize("shell", [lambda: None, Terminal])
def test_silent_without_a_notebook(screen, monkeypatch, shell):
    monkeypatch.setattr("IPython.get_ipython", shell)
    assert plots.live_view() is None


def test_silent_where_progress_is_off(screen, monkeypatch):
    monkeypatch.setenv("CLAMKIT_PROGRESS", "0")
    assert plots.live_view() is None
