"""One view of several runs: what it computes, what its panels show, and sentences where there is nothing to show."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from clamkit import RunConfig
from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError
from clamkit.lab.results import CommittedRun
from clamkit.metrics import METRICS
from helpers import run_view
from helpers.run_view import View, sentence_picture

from .widgets import pixels

PANELS = ("weights", "accuracies", "gaps", "worst", "confusions", "examples")


def panels(view: View) -> dict:
    return dict(zip(PANELS, view.figure().axes, strict=True))


def said(axis) -> str:
    return axis.texts[0].get_text().replace("\n", " ") if not axis.axison and axis.texts else ""


def test_the_exported_table_is_what_the_runs_say(runs):
    view = View({"Normal": runs["normal"], "CLAM": runs["clam"]}, classes=("top", "bottom"))
    table = view.table().set_index(["method", "class", "epoch"])
    assert len(table) == 2 * 2 * 2
    row, clam, normal = table.loc["CLAM", "bottom", 2], runs["clam"].history, runs["normal"].history
    expected = clam.query("epoch == 2 and `class` == 2").iloc[0]
    assert row["weight"] == expected["weight"]
    gap = expected["test_accuracy"] - normal.query("epoch == 2 and `class` == 2")["test_accuracy"].iloc[0]
    assert row["gap_to_normal"] == gap
    assert view.numbers().loc["CLAM", "average"] == pytest.approx(runs["clam"].summary["average"])


def test_the_panels_show_what_the_runs_say(many):
    """Colours are classes, dashes are runs; Normal, whose weights never move, has no line among them."""
    runs = {"Normal": many(12, "normal"), "CLAM": many(12, "clam")}
    view = View(runs, classes=("class 3", "class 7"), epoch=2)
    shown = panels(view)
    for name, of, lines in (("weights", "weight", ["CLAM"]), ("accuracies", "test_accuracy", ["Normal", "CLAM"])):
        axis = shown[name]
        drawn = [list(line.get_ydata()) for line in axis.lines if len(line.get_xdata()) == 3]
        assert drawn == [list(runs[run].wide(of)[c]) for run in lines for c in view.classes]
        assert axis.get_xlabel() == "epoch"
    gaps = [list(line.get_ydata()) for line in shown["gaps"].lines if len(line.get_xdata()) == 3]
    difference = runs["CLAM"].wide("test_accuracy") - runs["Normal"].wide("test_accuracy")
    np.testing.assert_allclose(gaps, difference[list(view.classes)].T)
    accuracy = runs["Normal"].wide("test_accuracy").loc[2]
    names = [tick.get_text() for tick in shown["worst"].get_yticklabels()]
    assert names[::-1] == list(accuracy.nsmallest(10).index)
    assert shown["worst"].get_title("left") == "worst classes at epoch 2"
    assert shown["confusions"].get_title("left") == "CLAM: worst classes, taken for …"
    (legend,) = view.figure().legends
    assert [text.get_text() for text in legend.get_texts()] == ["class 3", "class 7", "Normal", "CLAM"]


def test_a_class_keeps_its_colour(many):
    """Whatever else is chosen."""
    runs = {"CLAM": many(5, "clam")}
    colours = set()
    for classes in (("class 2",), ("class 0", "class 2"), ("class 2", "class 4")):
        lines = panels(View(runs, classes))["weights"].lines
        colours.add(lines[classes.index("class 2")].get_color())
    assert len(colours) == 1


def test_confusions_are_shares_of_the_true_class(many, monkeypatch):
    run = many(3, "clam")
    found = pd.DataFrame({"label": [0, 0, 0, 0, 1, 1, 2], "prediction": [1, 1, 1, 0, 1, 0, 2]})
    monkeypatch.setattr(type(run), "predictions", found)
    shares = View({"CLAM": run}).confusion_shares()
    assert shares.index.tolist() == [0, 1, 2], "the worst first"
    assert shares.loc[0].tolist() == [0.25, 0.75, 0]
    monkeypatch.setattr(type(run), "predictions", found.assign(prediction=7))
    with pytest.raises(ClamkitError, match="another layout"):
        View({"CLAM": run}).confusion_shares()


def test_a_committed_run_says_that_it_has_no_predictions(many):
    made = many(3, "clam")
    row = {"run": "some/clam", "dataset": "some", "method": "clam", "seconds": 1.0} | dict.fromkeys(METRICS, 0.1)
    view = View({"CLAM": CommittedRun(row, made.history.assign(run="some/clam"))})
    with pytest.raises(ClamkitError, match="no predictions"):
        view.confusion_shares()
    shown = panels(view)
    assert "no predictions" in said(shown["confusions"])
    assert "no predictions" in said(shown["examples"])
    assert "needs a Normal run" in said(shown["gaps"])
    assert not said(shown["weights"])


@pytest.mark.parametrize("classes", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_classes_show_the_worst(many, classes):
    runs = {"Normal": many(classes, "normal"), "CLAM": many(classes, "clam")}
    view = View(runs)
    accuracy = runs["Normal"].wide("test_accuracy").loc[3]
    assert list(view.classes) == accuracy.sort_values().index[:3].tolist()
    assert pixels(view.png()).shape == (670, 1100, 3)
    all_chosen = panels(View(runs, classes=view.class_names))
    for name in ("weights", "accuracies", "gaps"):
        assert not said(panels(view)[name])
        assert f"{classes} classes are too many lines" in said(all_chosen[name])


def test_choices_that_cannot_be_shown_are_said(many):
    runs = {f"run {i}": many(3, "clam") for i in range(5)}
    for chosen, message in (
        (runs, "5 methods"),
        ({}, "No method"),
        ({"a": many(3, "clam"), "b": many(4, "clam")}, "different"),
    ):
        with pytest.raises(ClamkitError, match=message):
            View(chosen)
    with pytest.raises(ClamkitError, match="unknown class 'class 9'"):
        View({"CLAM": many(3, "clam")}, classes=("class 9",))
    assert "No class is chosen" in said(panels(View({"CLAM": many(3, "clam")}, classes=()))["weights"])
    assert "keeps all weights equal" in said(panels(View({"Normal": many(3, "normal")}))["weights"])


def test_a_run_without_its_predictions_says_so(runs):
    (runs["clam"].folder / "predictions.parquet").unlink()
    with pytest.raises(ClamkitError, match="predictions.parquet is not there"):
        View({"CLAM": RunFolder(runs["clam"].folder)}).confusion_shares()


def test_images_of_other_data_are_not_shown(runs, small_npz):
    """The examples come from the data the run was trained on, or not at all."""
    view = View({"CLAM": runs["clam"]})
    before = panels(view)["examples"]
    assert said(before) == "" or "No test image is mistaken" in said(before)
    content = dict(np.load(small_npz))
    np.savez(small_npz, **content | {"x_test": 255 - content["x_test"]})
    run_view.images_of.cache_clear()
    assert "holds other images now" in said(panels(view)["examples"])


def test_images_are_not_downloaded_to_be_looked_at(many):
    with pytest.raises(ClamkitError, match="cifar10 are not on this machine"):
        run_view.images_of(RunConfig(dataset="cifar10"))


def test_a_sentence_is_a_picture_too():
    before = mpl.rcParams["figure.constrained_layout.use"]
    assert pixels(sentence_picture("nothing to see")).shape == (200, 1100, 3)
    assert pixels(sentence_picture("nothing to see")).min() < 200, "something is written"
    assert mpl.rcParams["figure.constrained_layout.use"] == before
