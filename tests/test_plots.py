"""Every figure draws, from ten classes and from many; what it shows is looked at by people."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.figure import Figure

from clamkit import data, plots, report
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.methods import METHODS
from clamkit.metrics import compare
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
    ]
    assert all(isinstance(figure, Figure) for figure in figures)
    assert dict(mpl.rcParams) == style, "the caller's style is left alone"
    names = [text.get_text() for text in figures[1].axes[0].get_yticklabels()]
    assert set(names) == {"top", "middle", "bottom"}
    assert plots.save(figures[0], "some", tmp_path).stat().st_size > 1000


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
