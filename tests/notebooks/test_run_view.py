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
from clamkit.plots import style
from helpers import run_view
from helpers.run_view import View, sentence_picture

from .widgets import pixels

PANELS = ("weights", "accuracies", "gaps", "worst", "confusions", "examples")


def panels(view: View) -> dict:
    return dict(zip(PANELS, view.figure().axes, strict=True))


def curves(axis) -> list[list[float]]:
    return [list(curve[:, 1]) for lines in axis.collections for curve in lines.get_segments()]


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
        assert curves(axis) == [list(runs[run].wide(of)[c]) for run in lines for c in view.classes]
        assert axis.get_xlabel() == "epoch"
    difference = runs["CLAM"].wide("test_accuracy") - runs["Normal"].wide("test_accuracy")
    np.testing.assert_allclose(curves(shown["gaps"]), difference[list(view.classes)].T)
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
        (lines,) = panels(View(runs, classes))["weights"].collections
        colours.add(tuple(lines.get_colors()[classes.index("class 2")]))
    assert len(colours) == 1


def test_colours_are_classes_in_every_panel(many):
    """Methods are dashes and signs: no colour of a method, and none that two classes share."""
    runs = {"Normal": many(5, "normal"), "CLAM": many(5, "clam")}
    view = View(runs, classes=("class 1", "class 4"))
    colours = style.class_colours(view.class_names, view.classes)
    worst = panels(view)["worst"]
    names = [tick.get_text() for tick in worst.get_yticklabels()]
    points = [collection for collection in worst.collections if len(collection.get_offsets()) == len(names) == 5]
    signs = [collection for collection in points if collection.get_sizes().size]
    for drawn in signs[-2:]:
        assert [mpl.colors.to_hex(c) for c in drawn.get_facecolors()] == [colours[name] for name in names]
    assert not worst.get_legend(), "it would cover points"


@pytest.mark.slow
def test_only_what_changed_is_drawn_again(many, monkeypatch):
    """And the picture is the one that is drawn anew."""
    runs = {"Normal": many(12, "normal"), "CLAM": many(12, "clam")}
    drawn = []
    draw = View._draw
    monkeypatch.setattr(View, "_draw", lambda self, keys, parts: drawn.append(set(parts)) or draw(self, keys, parts))
    chosen = {"classes": ("class 3", "class 7")}
    first = View(runs, **chosen, epoch=3).png()
    moved = View(runs, **chosen, epoch=1).png()
    assert drawn == [{"legend", *PANELS}, {"worst"}]
    assert moved != first
    assert View(runs, **chosen, epoch=3).png() == first
    View(runs, ("class 3", "class 8"), epoch=3).png()
    assert drawn[2:] == [{"legend", "weights", "accuracies", "gaps", "worst"}]
    run_view._drawn.clear()
    assert View(runs, **chosen, epoch=1).png() == moved, "what is kept is what would be drawn"
    whole = pixels(style.png(View(runs, **chosen, epoch=1).figure(), run_view.DPI, crop=False))
    assert (np.abs(whole - pixels(moved)).max(axis=2) > 60).mean() < 0.002, "but for how the epoch's line is drawn"


@pytest.mark.slow
def test_kept_axes_draw_what_new_ones_do(many):
    """Whatever was in them before: other limits, other classes, a sentence."""
    few, lots = many(3, "clam", epochs=2), many(12, "clam", epochs=30)
    pair = {"Normal": many(12, "normal"), "CLAM": many(12, "clam")}
    views = [View({"CLAM": few}), View(pair), View(pair, ()), View({"CLAM": lots}, epoch=7), View(pair, epoch=1)]
    pictures = []
    for view in [*views, *views[::-1]]:
        run_view._drawn.clear()
        pictures.append(view.png())
    assert pictures[: len(views)] == pictures[len(views) :][::-1]
    for view, picture in zip(views, pictures, strict=False):
        run_view._drawn.clear()
        run_view._kept_axes.cache_clear()
        assert view.png() == picture


def test_classes_of_imagenet_have_names(many, monkeypatch):
    run = many(3, "clam")
    run.summary["class_names"][:] = ["n01440764", "n01443537", "$x$"]
    view = View({"CLAM": run})
    labels = {tick.get_text() for tick in panels(view)["worst"].get_yticklabels()}
    assert labels == {"tench", "goldfish", r"\$x\$"}
    view.png()


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
    view = View({"CLAM": CommittedRun(lambda: row, lambda: made.history.assign(run="some/clam"))})
    with pytest.raises(ClamkitError, match="no predictions"):
        view.confusion_shares()
    shown = panels(view)
    assert "no predictions" in said(shown["confusions"])
    assert said(shown["examples"]) == "", "said once"
    assert "needs a Normal run" in said(shown["gaps"])
    assert not said(shown["weights"])


@pytest.mark.parametrize("classes", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_classes_show_the_worst(many, classes):
    runs = {"Normal": many(classes, "normal"), "CLAM": many(classes, "clam")}
    view = View(runs)
    accuracy = runs["Normal"].wide("test_accuracy").loc[3]
    *worst, loser = view.classes
    assert worst == accuracy.sort_values().index[:3].tolist()
    assert loser == (runs["CLAM"].wide("test_accuracy").loc[3] - accuracy).idxmin(), "who pays is always drawn"
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
    run_view._images.cache_clear()
    assert "holds other images now" in said(panels(view)["examples"])


def test_images_are_not_downloaded_to_be_looked_at(many):
    with pytest.raises(ClamkitError, match="cifar10 are not on this machine"):
        run_view.images_of(RunConfig(dataset="cifar10"))


def test_a_sentence_is_a_picture_too():
    before = mpl.rcParams["figure.constrained_layout.use"]
    assert pixels(sentence_picture("nothing to see")).shape == (200, 1100, 3)
    assert pixels(sentence_picture("nothing to see")).min() < 200, "something is written"
    assert mpl.rcParams["figure.constrained_layout.use"] == before
