"""One style, one look for each method, files that are the same each time."""

import io
import subprocess
import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from PIL import Image

from clamkit import METHODS, plots
from clamkit.errors import ClamkitError
from clamkit.methods.specs import Method
from clamkit.metrics import METRICS, compare
from tests.plots.shown import legend

TOY = Method("Toy", "#123456", "8", "A method of this test.")


def test_every_method_has_its_own_look():
    assert set(plots.COLOURS) == set(plots.MARKERS) == set(METHODS)
    assert len(set(plots.COLOURS.values())) == len(set(plots.MARKERS.values())) == len(METHODS)
    assert plots.label("clam_kl") == METHODS["clam_kl"].label
    with pytest.raises(ClamkitError, match=r"Did you mean 'clam'\?"):
        plots.label("calm")


def test_a_method_added_later_is_drawn_in_its_own_look(monkeypatch):
    assert "toy" not in plots.COLOURS
    monkeypatch.setitem(METHODS, "toy", TOY)
    assert (plots.COLOURS["toy"], plots.MARKERS["toy"], plots.label("toy")) == ("#123456", "8", "Toy")
    frame = pd.DataFrame({"method": ["normal", "normal", "toy", "toy"], "strength": [0.3, 1.0] * 2})
    frame = frame.assign(augmentation="crop", average=0.9, std=[0.3, 0.2, 0.2, 0.1], range=0.4, worst=0.5)
    figure = plots.fairness_over_strength(frame)
    _, line = figure.axes[1].lines
    assert same_color(line.get_color(), "#123456")
    assert line.get_marker() == "8"
    assert line.get_xydata().tolist() == [[0.3, 0.2], [1.0, 0.1]]
    assert legend(figure) == ["Normal", "Toy"]


def test_a_class_keeps_its_colour():
    names = list("abcdefghij")
    colours = plots.class_colours(names)
    assert len(set(colours.values())) == 10
    assert plots.class_colours(names, ["j", "a"]) == colours, "whichever classes are drawn"
    many = plots.class_colours([f"class {i}" for i in range(100)], ["class 5", "class 15"])
    assert many["class 5"] != many["class 15"], "of many classes the drawn ones differ"


def drawn() -> plt.Figure:
    return plots.differences({"clam": compare([0.5, 0.6, 0.7], [0.4, 0.6, 0.5])}, "points")


def test_the_callers_style_is_left_alone():
    before = dict(mpl.rcParams)
    plots.png(drawn(), 50)
    assert dict(mpl.rcParams) == before


def test_a_figure_of_nothing_says_so():
    @plots.styled
    def draw(*_) -> plt.Figure:
        raise AssertionError("there is nothing to draw")

    for nothing in ([None], [pd.DataFrame()], [{}], [[1], []]):
        assert [text.get_text() for text in draw(*nothing).texts] == ["no finished runs to draw yet"]


def test_png_has_the_asked_size():
    figure = plt.figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "in the middle")
    whole = Image.open(io.BytesIO(plots.png(figure, 100, crop=False)))
    assert whole.size == (300, 200)
    cropped = Image.open(io.BytesIO(plots.png(figure)))
    assert cropped.width < 400, "at 200 dots per inch the margins were 600 wide"
    assert np.asarray(cropped.convert("L")).min() < 200, "something is drawn"


def test_saved_figures_are_the_same_bytes_each_time(tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    for folder in (once, twice):
        assert plots.save(drawn(), "game", folder) == folder / "game.png"
    assert (once / "game.png").read_bytes() == (twice / "game.png").read_bytes()
    alone = plots.save(plt.figure(), "alone", once)
    assert alone.read_bytes() == plots.png(plt.figure())
    assert {file.name for file in once.iterdir()} == {"game.png", "alone.png"}


def test_figures_go_to_the_figures_folder(tmp_path):
    assert plots.save(plt.figure(), "empty") == tmp_path / "figures" / "empty.png"


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ClamkitError, match="cannot write figures to .*file"):
            plots.save(plt.figure(), "empty", folder)


def test_parts_of_figures():
    _, axis = plt.subplots()
    frame = pd.DataFrame({"method": ["clam"] * 4, "epoch": [1, 1, 2, 2], "std": [0.1, 0.3, 0.2, 0.4]})
    plots.method_lines(frame, "epoch", "std", axis)
    plots.epoch_axis(axis, "std")
    (line,) = axis.lines
    assert line.get_xydata() == pytest.approx(np.array([[1, 0.2], [2, 0.3]])), "means of the seeds"
    (band,) = axis.collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert (low, high) == pytest.approx((0.2 - 0.02**0.5, 0.3 + 0.02**0.5)), "a standard deviation around them"
    assert (axis.get_title(), axis.get_xlabel(), axis.get_ylabel()) == ("std", "epoch", "")
    assert all(tick == int(tick) for tick in axis.get_xticks())


def test_whole_epochs_also_where_there_is_one():
    _, axis = plt.subplots()
    axis.plot([1], [0.5], "o")
    plots.epoch_axis(axis, "one epoch")
    low, high = axis.get_xlim()
    assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [1]


def test_percent_and_titles():
    assert [plots.PERCENT(value) for value in (0.5, -0.125, 0.9375)] == ["50%", "−12.5%", "93.75%"]
    assert set(METRICS) <= set(plots.TITLES)
    assert {name for name, title in plots.TITLES.items() if title.endswith("↑")} == {"average", "worst", "best"}


@pytest.mark.slow
def test_importing_the_figures_costs_neither_torch_nor_seaborn():
    code = "import sys, clamkit.plots; print([m for m in ('torch', 'seaborn', 'IPython') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
