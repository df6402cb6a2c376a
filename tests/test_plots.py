"""Every figure draws, from ten classes and from many; what it shows is looked at by people."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from clamkit import data, paper, plots, report
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.methods import METHODS
from clamkit.metrics import compare, shot_groups
from clamkit.runs import all_epochs, as_frame, final_classes
from clamkit.train import train


@pytest.fixture
def runs(small_npz):
    made = [train(RunConfig(dataset=str(small_npz), method=m, epochs=2)) for m in ("normal", "clam", "clam_kl")]
    yield made
    plt.close("all")


def test_figures(runs, small_npz, tmp_path):
    normal, clam, _ = runs
    frame = as_frame(runs)
    style = dict(mpl.rcParams)
    figures = [
        plots.fairness_over_strength(frame),
        plots.class_accuracies(runs),
        plots.weight_evolution(clam, normal),
        plots.weight_evolution(clam, normal, classes=["top", "bottom"]),
        plots.training_curves(clam),
        plots.sample_images(data.load(small_npz)),
        plots.augmented_images(data.load(small_npz), label=1),
        plots.augmented_images(data.load(small_npz), (0, 0.5), augmentation="jitter", label=1),
        plots.game_picture(),
        plots.fairness_training(all_epochs(runs)),
        plots.worst_class_curves(final_classes(runs)),
        plots.class_curves(final_classes(runs), ["normal", "clam"]),
        plots.differences({"clam": compare([0.5, 0.6, 0.7], [0.4, 0.6, 0.5])}, "difference"),
        plots.over_tau(frame, paper.results().query("table == 'tau'")),
        plots.weights_and_accuracies([clam, normal]),
        plots.weight_moves(pd.DataFrame({"panel": "a", "method": "clam", "epoch": [1, 2], "move": [0.1, 0.2]})),
        plots.shot_groups(final_classes(runs).assign(shots=lambda rows: shot_groups(90 * rows["class"], (50, 100)))),
        plots.real_labels(pd.DataFrame({"original": [0.5, 0.7], "real": [0.6, 0.7], "model": "a"})),
    ]
    assert all(isinstance(figure, Figure) for figure in figures)
    assert dict(mpl.rcParams) == style, "the caller's style is left alone"
    names = [text.get_text() for text in figures[1].axes[0].get_yticklabels()]
    assert set(names) == {"top", "middle", "bottom"}
    shown = [[line.get_ydata().tolist() for line in axis.lines] for axis in figures[0].axes]
    assert [len(lines) for lines in shown] == [3] * 4, "a line for each method"
    assert shown[1] == [[run.summary["std"]] for run in runs]


def test_gain_and_price():
    def against_normal(average: float, std: float) -> pd.DataFrame:
        mean = pd.Series({"average": average, "std": std})
        return pd.DataFrame(
            {"mean_difference": mean, "ci_low": mean.sub([0.01, 0.02]), "ci_high": mean.add([0.03, 0.04])}
        )

    clam, smaller = against_normal(-0.01, -0.05), against_normal(0.0, -0.02)
    figure = plots.price({"here": {"clam": clam, "clam, τ = 0.1": smaller}, "there": {"clam": clam}, "nowhere": {}})
    here, *_, left_over = figure.axes
    (first, (across, up)), (second, _) = [(bars[0], bars[2]) for bars in here.containers]
    assert first.get_xydata().ravel().tolist() == pytest.approx([-1, -5])
    assert second.get_xydata().ravel().tolist() == pytest.approx([0, -2])
    assert across.get_segments()[0].ravel().tolist() == pytest.approx([-2, -5, 2, -5])
    assert up.get_segments()[0].ravel().tolist() == pytest.approx([-1, -7, -1, -1])
    assert second.get_markerfacecolor() == "white" != first.get_markerfacecolor()
    assert not left_over.axison
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["CLAM", "CLAM, τ = 0.1"]
    plt.close("all")


def test_who_gains_and_who_pays():
    middle = pd.Series([0.05, 0.0, -0.1], index=[1, 2, 3])
    table = pd.DataFrame({"mean_difference": middle, "ci_low": middle - 0.01, "ci_high": middle + 0.02})
    (here, *_) = plots.tenths({"here": {"clam": table}}).axes
    line, _, (bars,) = here.containers[0]
    assert line.get_xydata().ravel().tolist() == pytest.approx([1, 5, 2, 0, 3, -10])
    assert bars.get_segments()[0].ravel().tolist() == pytest.approx([1, 4, 1, 7])
    plt.close("all")


def test_saved_figures_are_the_same_bytes_each_time(tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    for folder in (once, twice):
        path = plots.save(plots.game_picture(), "game", folder, pdf=True)
        assert path == folder / "game.png"
    for name in ("game.png", "game.pdf"):
        assert (once / name).read_bytes() == (twice / name).read_bytes()
    assert b"Date" not in (once / "game.pdf").read_bytes()
    plots.save(plots.game_picture(), "alone", once)
    assert not (once / "alone.pdf").exists()
    plt.close("all")


def test_a_figure_of_nothing_says_so():
    for figure in (plots.fairness_over_strength(as_frame([])), plots.worst_class_curves(final_classes([]))):
        assert [text.get_text() for text in figure.texts] == ["no finished runs to draw yet"]
    plt.close("all")


def test_runs_of_different_data_are_not_compared(runs):
    other = runs[1]
    other.summary["class_names"][0] = "else"
    with pytest.raises(ClamkitError, match="different datasets"):
        plots.weight_evolution(other, runs[0])


def test_every_method_has_its_colour():
    assert set(plots.COLOURS) == set(plots.MARKERS) == set(METHODS)
    assert len(set(plots.COLOURS.values())) == len(METHODS)


def test_comparison_marks_what_is_better():
    rows = [
        {"strength": 0.3, "method": "normal", "average": 0.9, "std": 0.2, "worst": 0.5},
        {"strength": 0.3, "method": "clam", "average": 0.89, "std": 0.1, "worst": 0.6},
    ]
    frame = pd.DataFrame(rows).assign(cov=0.1, range=0.4, decile_range=0.4, seed=0, augmentation="crop")
    table = report.comparison(frame)
    assert table["std %"].tolist() == ["20.0 ", "10.0*"]
    assert table["average %"].tolist() == ["90.0 ", "89.0 "]
    assert table["worst 10 %"].tolist() == ["50.0 ", "60.0*"]
    assert table["range %"].tolist() == ["40.0 ", "40.0 "], "equal is not better"


def test_tables_of_ours_and_the_papers():
    rows = pd.DataFrame({"method": ["normal", "normal"], "average": [0.9, 0.8], "std": 0.1, "cov": 0.2, "range": 0.3})
    table = report.spread_table(rows.assign(decile_range=0.3, worst=0.5))
    assert table.loc["Normal", "average %"] == "85.0 ± 7.1"
    printed = report.paper_table("fashion_mnist")
    assert printed.loc["CLAM", "std %"] == 5.44
    assert printed.loc["Normal", "decile range %"] == 18.3
    assert list(printed.index) == ["Normal", "Focal", "PW", "TCE", "GGF", "CLAM"]
