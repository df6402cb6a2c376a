"""Figures of runs show the runs: a line for each method or class, in the right place and order."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color

from clamkit import RunConfig, compare, plots
from clamkit.engine.store import as_frame
from clamkit.errors import ClamkitError
from clamkit.lab import results
from tests.plots.shown import legend, lines, titles

NORMAL = [[0.2, 0.5, 0.8, 0.9, 0.9, 0.95], [0.3, 0.6, 0.8, 0.91, 0.92, 0.95]]
CLAM = [[0.3, 0.5, 0.8, 0.8, 0.85, 0.95], [0.6, 0.65, 0.8, 0.61, 0.9, 0.95]]
WEIGHTS = [[1.0] * 6, [2.0, 1.2, 0.8, 0.8, 0.7, 0.5]]


@pytest.fixture
def runs(memory_run):
    return [
        memory_run(accuracy, weight, method=method, crop_lower_bound=0.5)
        for method, accuracy, weight in (("normal", NORMAL, None), ("clam", CLAM, WEIGHTS), ("clam_kl", CLAM, WEIGHTS))
    ]


@pytest.mark.slow
def test_fairness_over_strength(runs, memory_run):
    weaker = [memory_run(np.array(CLAM) + 0.02, method=run.config.method, crop_lower_bound=1.0) for run in runs]
    figure = plots.fairness_over_strength(as_frame([*runs, *weaker]))
    assert titles(figure) == ["average ↑", "std ↓", "range (max − min) ↓", "worst 10 % ↑"]
    assert [len(axis.lines) for axis in figure.axes] == [3] * 4, "a line for each method"
    for axis, metric in zip(figure.axes, ("average", "std", "range", "worst"), strict=True):
        for line, run, weak in zip(axis.lines, runs, weaker, strict=True):
            expected = [[0.5, run.summary[metric]], [1.0, weak.summary[metric]]]
            assert line.get_xydata() == pytest.approx(np.array(expected))
            assert same_color(line.get_color(), plots.COLOURS[run.config.method])
    assert figure.axes[2].get_xlabel() == "crop lower bound"
    assert figure.axes[0].xaxis_inverted(), "stronger augmentation to the right"
    assert legend(figure) == ["Normal", "CLAM", "CLAM, KL"]
    jitter = plots.fairness_over_strength(as_frame(runs).assign(augmentation="jitter"))
    assert jitter.axes[3].get_xlabel() == "jitter strength"
    assert not jitter.axes[0].xaxis_inverted()


def test_class_accuracies(runs):
    figure = plots.class_accuracies(runs)
    (axis,) = figure.axes
    assert titles(figure) == ["Class by class, crop lower bound 0.5"]
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names == ["class 5", "class 4", "class 3", "class 2", "class 1", "class 0"], "the worst on top"
    assert legend(figure) == ["Normal", "CLAM", "CLAM, KL"], "beside the data, not over it"
    _, normal, clam, _ = axis.collections
    assert normal.get_offsets()[:, 0].tolist() == NORMAL[-1][::-1]
    assert clam.get_offsets()[:, 0].tolist() == CLAM[-1][::-1]
    assert [len(c.get_offsets()) for c in plots.class_accuracies(runs, most=2).axes[0].collections[1:]] == [2] * 3
    assert titles(plots.class_accuracies(runs, most=2)) == ["The 2 worst classes under Normal, crop lower bound 0.5"]


def test_a_class_without_test_images_is_neither_worst_nor_best(memory_run):
    """Nothing is known of class 2: it is left out, not put at an end."""
    unknown = [[0.3, 0.6, np.nan, 0.91, 0.92, 0.95, 0.97]]
    pair = [memory_run(unknown, [[1.0] * 7], method=method) for method in ("normal", "clam")]
    shown = plots.class_accuracies(pair, most=3).axes[0].get_yticklabels()
    assert [text.get_text() for text in shown] == ["class 3", "class 1", "class 0"]
    chosen = plots.weight_evolution(pair[1], pair[0]).axes[3].get_xticklabels()
    assert {text.get_text() for text in chosen} == {"class 0", "class 1", "class 3", "class 5", "class 6"}


def test_weight_evolution(runs):
    normal, clam, _ = runs
    figure = plots.weight_evolution(clam, normal)
    chosen = ["class 0", "class 1", "class 2", "class 4", "class 5", "class 3"]  # three worst, two best, biggest loser
    panels = [
        "CLAM: class weights (mean 1)",
        "test accuracy",
        "gap to Normal, points",
        "at the end: class 3 −30 points",
    ]
    assert titles(figure) == panels
    assert legend(figure) == chosen
    weights, accuracy, gap, bars = figure.axes
    for axis, values in ((weights, WEIGHTS), (accuracy, CLAM), (gap, 100 * np.subtract(CLAM, NORMAL))):
        assert lines(axis) == {name: pytest.approx(list(np.array(values)[:, int(name[-1])])) for name in chosen}
    final = [bar.get_height() for bar in bars.patches]
    assert final == pytest.approx([100 * np.subtract(CLAM, NORMAL)[-1, int(name[-1])] for name in chosen])
    colours = {line.get_label(): line.get_color() for line in weights.lines}
    assert all(same_color(bar.get_facecolor(), colours[name]) for bar, name in zip(bars.patches, chosen, strict=True))
    asked = plots.weight_evolution(clam, normal, classes=["class 4", "class 2"])
    assert legend(asked) == ["class 4", "class 2", "class 3"], "who loses most cannot be left out"


def test_the_biggest_loser_is_always_drawn(memory_run):
    normal = memory_run(np.linspace(0.5, 0.99, 12), method="normal")
    fallen = np.linspace(0.6, 0.99, 12)
    fallen[7] = 0.4
    figure = plots.weight_evolution(memory_run(fallen, method="clam"), normal)
    assert legend(figure) == ["class 0", "class 1", "class 2", "class 10", "class 11", "class 7"]


@pytest.mark.parametrize("method", ["clam", "clam_kl"])
def test_who_pays_for_the_shirts_in_the_committed_runs(method):
    """T-shirts lose 22 and 15 points; they are neither among the worst nor among the best under Normal."""
    first = [RunConfig(method=name, crop_lower_bound=0.3, dataset="fashion_mnist_mini") for name in (method, "normal")]
    run, normal = (results.find(config) for config in first)
    loss = {name: run.test_accuracy[name] - normal.test_accuracy[name] for name in run.class_names}
    loser = min(loss, key=loss.get)
    assert loser == "T-shirt/top"
    figure = plots.weight_evolution(run, normal)
    assert loser in legend(figure)
    assert all(loser in lines(axis) for axis in figure.axes[:3])
    assert titles(figure)[-1] == f"at the end: {loser} −{-100 * loss[loser]:.0f} points"
    assert lines(figure.axes[2])[loser][-1] == pytest.approx(100 * loss[loser], abs=1e-3)


def test_runs_of_different_data_are_not_compared(runs):
    runs[1].summary["class_names"][0] = "else"
    with pytest.raises(ClamkitError, match="different datasets"):
        plots.weight_evolution(runs[1], runs[0])


def test_training_curves_of_few_classes(runs):
    figure = plots.training_curves(runs[1])
    assert titles(figure) == ["class weight", "training accuracy", "test accuracy"]
    worst_first = ["class 0", "class 3", "class 1", "class 2", "class 4", "class 5"]
    assert legend(figure) == worst_first
    for axis, values in zip(figure.axes, (WEIGHTS, CLAM, CLAM), strict=True):
        assert lines(axis) == {name: list(np.array(values)[:, int(name[-1])]) for name in worst_first}
    fixed = plots.class_colours(runs[1].class_names)
    assert all(line.get_color() == fixed[line.get_label()] for line in figure.axes[0].lines)


def test_any_name_of_a_class_is_shown_as_it_is(memory_run):
    run = memory_run([[0.9, 0.8, 0.7]])
    run.summary["class_names"] = ["__background__", "$5 or $6", "cat"]
    figure = plots.training_curves(run)
    assert legend(figure) == ["cat", r"\$5 or \$6", " __background__"], "matplotlib hides what begins with _"
    figure.savefig(io.BytesIO())  # no formula


def test_training_curves_of_many_classes(memory_run):
    accuracy = np.random.default_rng(0).random((3, 40))
    accuracy[-1, 17] = 0
    figure = plots.training_curves(memory_run(accuracy, method="clam"))
    assert legend(figure) == ["mean", "class 17, the worst"]
    for axis in figure.axes:
        assert len(axis.lines) == 40 + 2
    shown = lines(figure.axes[2])
    assert shown["mean"] == pytest.approx(accuracy.mean(axis=1).tolist())
    assert shown["class 17, the worst"] == accuracy[:, 17].tolist()


def test_differences():
    table = compare([0.5, 0.6, 0.7], [0.4, 0.6, 0.5])
    two = pd.concat([table, table.rename({"value": "std"})])
    figure = plots.differences({"clam": two, "ggf": two}, "points")
    assert titles(figure) == ["value", "std ↓"]
    for axis in figure.axes:
        interval, middle = axis.lines[0], axis.lines[1]
        assert interval.get_xdata().tolist() == [100 * table.loc["value", name] for name in ("ci_low", "ci_high")]
        assert middle.get_xdata().tolist() == [pytest.approx(10)]
        assert axis.lines[2].get_ydata().tolist() == [0, 0], "the first method on top"
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["CLAM", "GGF"]
    assert figure.get_supxlabel() == "points"


def test_figures_of_no_runs_say_so():
    figure = plots.fairness_over_strength(as_frame([]))
    assert [text.get_text() for text in figure.texts] == ["no finished runs to draw yet"]
