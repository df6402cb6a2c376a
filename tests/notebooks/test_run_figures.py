"""The figures of single notebooks show the runs and tables they are given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from scipy import stats

from clamkit import plots
from clamkit.engine.store import as_frame
from clamkit.lab import paper
from clamkit.lab.tables import final_classes
from clamkit.metrics import compare_groups
from helpers import paper_audit, run_figures
from helpers.run_measures import against_normal, by_rank, shot_groups, spread_by_epoch
from tests.plots.shown import legend, lines, titles

EARLY, LATE = [0.2, 0.5, 0.8], [0.4, 0.7, 0.8]


@pytest.fixture
def runs(memory_run):
    weights = [[1.0, 1.0, 1.0], [1.6, 0.9, 0.5]]
    normal = memory_run([EARLY, LATE], method="normal", crop_lower_bound=0.3)
    return [normal, memory_run([EARLY, [0.6, 0.5, 0.7]], weights, method="clam", crop_lower_bound=0.3)]


def test_class_curves(runs, memory_run):
    weaker = [memory_run([0.6, 0.65, 0.8], method=run.config.method, crop_lower_bound=1.0) for run in runs]
    figure = plots.class_curves(final_classes([*runs, *weaker]), ["normal", "clam"])
    assert titles(figure) == ["Normal", "CLAM"]
    assert legend(figure) == [f"class {i}" for i in range(3)]
    normal = figure.axes[0]
    assert normal.lines[0].get_xydata().tolist() == [[0.3, 0.4], [1.0, 0.6]], "class 0: tight crop, no crop"
    assert (normal.get_xlabel(), normal.get_ylabel()) == ("crop lower bound", "test accuracy")
    assert normal.xaxis_inverted()
    nothing = plots.class_curves(final_classes([]), [])
    assert [text.get_text() for text in nothing.texts] == ["no finished runs to draw yet"]


def test_gain_and_price():
    def against_normal(average: float, std: float, seeds: int = 3) -> pd.DataFrame:
        mean = pd.Series({"average": average, "std": std})
        return pd.DataFrame(
            {"mean_difference": mean, "ci_low": mean.sub([0.01, 0.02]), "ci_high": mean.add([0.03, 0.04]), "n": seeds}
        )

    clam, smaller = against_normal(-0.01, -0.05), against_normal(0.0, -0.02)
    few = against_normal(-0.01, -0.05, seeds=2)
    tables = {"here": {"clam": clam, "clam, τ = 0.1": smaller}, "there": {"clam": few}, "nowhere": {}}
    figure = run_figures.price(tables)
    here, there, nothing = figure.axes
    for bars in there.containers[0][2]:
        (ends,) = bars.get_segments()
        assert ends.tolist() == pytest.approx(np.array([[-1, -5], [-1, -5]])), "two seeds have no interval"
    (first, (across, up)), (second, _) = [(bars[0], bars[2]) for bars in here.containers]
    assert first.get_xydata().ravel().tolist() == pytest.approx([-1, -5])
    assert second.get_xydata().ravel().tolist() == pytest.approx([0, -2])
    assert across.get_segments()[0].ravel().tolist() == pytest.approx([-2, -5, 2, -5])
    assert up.get_segments()[0].ravel().tolist() == pytest.approx([-1, -7, -1, -1])
    assert second.get_markerfacecolor() == "white" != first.get_markerfacecolor()
    assert not nothing.containers
    assert titles(figure)[:3] == ["here", "there", "nowhere"]
    assert legend(figure) == ["CLAM", "CLAM, τ = 0.1"]


def test_who_gains_and_who_pays():
    middle = pd.Series([0.05, 0.0, -0.1], index=[1, 2, 3])
    table = pd.DataFrame({"mean_difference": middle, "ci_low": middle - 0.01, "ci_high": middle + 0.02, "n": 5})
    (here, *_) = run_figures.tenths({"here": {"clam": table}}).axes
    line, _, (bars,) = here.containers[0]
    assert line.get_xydata().ravel().tolist() == pytest.approx([1, 5, 2, 0, 3, -10])
    assert bars.get_segments()[0].ravel().tolist() == pytest.approx([1, 4, 1, 7])


def test_front_is_a_path_over_the_floor_and_over_the_step(memory_run):
    made = [memory_run(LATE, method="normal", seed=seed) for seed in (0, 1)]
    for extra in ({}, {"u_min": 0.1}, {"tau": 0.5}):
        made += [memory_run(np.add(LATE, 0.01 * seed), method="clam", seed=seed, **extra) for seed in (0, 1)]
    figure = run_figures.front(as_frame(made), classes=3)
    assert titles(figure) == ["CLAM's path: the floor n·u_min", "CLAM's path: the step size τ"]
    floor, step = figure.axes
    assert [text.get_text() for text in floor.texts] == ["0.3", "0.5"], "u_min = 0.1 and 1/(2n), times n"
    assert [text.get_text() for text in step.texts] == ["0.5", "1"]
    _, clam = (container[0] for container in floor.containers)
    expected = 100 * np.array([np.mean(LATE) + 0.005, np.std(LATE, ddof=1)])
    assert clam.get_xydata() == pytest.approx(np.array([expected, expected]))
    assert legend(figure) == ["Normal", "CLAM"]


@pytest.fixture
def seeds(memory_run):
    """Normal, CLAM and GGF in three seeds; CLAM's first class gains 0.2, 0.21 and 0.22."""
    made = [memory_run([EARLY, LATE], method=method, seed=seed) for seed in range(3) for method in ("normal", "ggf")]
    for seed in range(3):
        later = [LATE[0] + 0.2 + seed / 100, *LATE[1:]]
        made.append(memory_run([EARLY, later], method="clam", seed=seed))
    return made


def test_fairness_over_training_as_differences_to_normal(seeds):
    spread = spread_by_epoch(seeds)
    figure = run_figures.fairness_training(*(against_normal(spread, "epoch", metric) for metric in ("std", "cov")))
    assert titles(figure) == ["std ↓", "100 · COV ↓"]
    std, cov = figure.axes
    clam = next(line for line in std.lines if same_color(line.get_color(), plots.COLOURS["clam"]))
    last = [np.std([LATE[0] + 0.2 + seed / 100, *LATE[1:]], ddof=1) - np.std(LATE, ddof=1) for seed in range(3)]
    assert clam.get_xydata() == pytest.approx(np.array([[1, 0], [2, 100 * np.mean(last)]]))
    (band,) = std.collections
    ends = stats.t.interval(0.95, 2, np.mean(last), np.std(last, ddof=1) / 3**0.5)
    heights = band.get_paths()[0].vertices[:, 1]
    assert all(np.isclose(heights, 100 * end).any() for end in ends), "a band over the seeds"
    assert (std.get_ylabel(), cov.get_xlabel()) == ("difference to Normal, points", "epoch")
    assert legend(figure) == ["CLAM", "GGF"], "others are thin and share a name"
    nothing = run_figures.fairness_training({}, {})
    assert [text.get_text() for text in nothing.texts] == ["no finished runs to draw yet"]


def test_worst_classes_by_rank_as_differences_to_normal(seeds):
    figure = run_figures.worst_class_curves(against_normal(by_rank(final_classes(seeds)), "rank", "test_accuracy"))
    (axis,) = figure.axes
    clam = next(line for line in axis.lines if same_color(line.get_color(), plots.COLOURS["clam"]))
    worst_of_clam = [sorted([LATE[0] + 0.2 + seed / 100, *LATE[1:]]) for seed in range(3)]
    expected = 100 * (np.mean(worst_of_clam, axis=0) - np.sort(LATE))
    assert clam.get_xydata() == pytest.approx(np.column_stack([[1, 2, 3], expected]))
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("x-th worst class of each method", "difference to Normal, points")
    nothing = run_figures.worst_class_curves(against_normal(by_rank(final_classes([])), "rank", "test_accuracy"))
    assert [text.get_text() for text in nothing.texts] == ["no finished runs to draw yet"]


def test_who_gains_and_who_pays_by_name(seeds):
    by_class = against_normal(final_classes(seeds), "class_name", "test_accuracy")
    names = seeds[0].class_names
    figure = run_figures.class_differences({"clam": by_class["clam"]}, names)
    (axis,) = figure.axes
    assert titles(figure) == ["CLAM"]
    assert [text.get_text() for text in axis.get_yticklabels()] == names
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == pytest.approx([21, 0, 0], abs=1e-9)
    assert [line.get_color() for line in dots] == list(plots.class_colours(names).values())


def test_over_tau(memory_run):
    steps = (0.0, 0.1, 0.5, 1.0, 2.0, 10.0)
    made = [
        memory_run(np.add(LATE, tau * (1 + s) / 100), method="clam", tau=tau, seed=s) for tau in steps for s in (0, 1)
    ]
    metrics = ["average", "std", "decile_range", "worst"]
    tables = {str(tau): compare_groups(as_frame(made), tau, 0.0, metrics, by="tau") for tau in steps[1:]}
    figure = run_figures.over_tau({"clam": tables}, paper.results().query("table == 'tau'"))
    assert titles(figure) == ["average ↑", "std ↓", "decile range ↓", "worst 10 % ↑"]
    first = figure.axes[0]
    (bars,) = first.containers
    assert bars.lines[0].get_ydata() == pytest.approx([1.5 * tau for tau in steps[1:]]), "the mean of two seeds"
    printed = paper_audit.by_method("tau", "average").loc["cifar100"]
    assert lines(first)["the paper, CIFAR-100"] == pytest.approx((printed.iloc[1:] - printed.iloc[0]).tolist())
    assert [text.get_text() for text in first.get_xticklabels()] == ["0.1", "0.5", "1", "2", "10"]
    assert legend(figure) == ["the paper, CIFAR-100", "the paper, Fashion-MNIST", "ours, CLAM"]


def test_weights_and_accuracies_side_by_side(runs, memory_run):
    figure = run_figures.weights_and_accuracies(runs)
    assert titles(figure) == ["Normal", "CLAM", "", ""]
    clam_weights, clam_accuracy = figure.axes[1], figure.axes[3]
    assert [line.get_ydata().tolist() for line in clam_weights.lines] == [[1, 1.6], [1, 0.9], [1, 0.5]]
    assert [line.get_ydata().tolist() for line in clam_accuracy.lines] == [[0.2, 0.6], [0.5, 0.5], [0.8, 0.7]]
    assert legend(figure) == ["class 0", "class 1", "class 2"]
    colours = plots.class_colours(runs[0].class_names)
    assert [line.get_color() for line in clam_weights.lines] == list(colours.values())
    many = run_figures.weights_and_accuracies([memory_run(np.full((2, 20), 0.5), method="clam")])
    assert not many.legends, "twenty names help nobody"
    assert len({line.get_color() for line in many.axes[0].lines}) == 1, "nor do ten colours that come twice"


def test_a_class_has_one_colour_in_every_figure(runs, seeds):
    """Also where the style's own cycle of colours is another one, and in the picture of a running training."""
    fixed = plots.class_colours(runs[0].class_names)
    tables = against_normal(final_classes(seeds), "class_name", "test_accuracy")
    figures = [
        run_figures.weights_and_accuracies(runs),
        plots.class_curves(final_classes(runs), ["normal", "clam"]),
        plots.weight_evolution(runs[1], runs[0]),
        plots.training_curves(runs[1]),
    ]
    for figure in figures:
        drawn = dict(zip(legend(figure), figure.legends[0].get_lines(), strict=True))
        assert {name: line.get_color() for name, line in drawn.items()} == {name: fixed[name] for name in drawn}
    by_name = run_figures.class_differences(tables, runs[0].class_names)
    dots = [line for line in by_name.axes[0].lines if line.get_marker() == "o"]
    assert [line.get_color() for line in dots] == list(fixed.values())


def test_the_colours_do_not_come_from_the_cycle(runs, monkeypatch):
    swapped = {name: f"#00000{i}" for i, name in enumerate(runs[0].class_names)}
    monkeypatch.setattr(run_figures, "class_colours", lambda *_: swapped)
    weights = run_figures.weights_and_accuracies(runs).axes[0]
    assert [line.get_color() for line in weights.lines] == list(swapped.values())


def test_moves_of_the_weights():
    moves = pd.DataFrame({"panel": list("aabb"), "method": "clam", "epoch": [1, 2, 1, 2], "move": [0.1, 0.2, 0.3, 0.4]})
    figure = run_figures.weight_moves(moves)
    assert titles(figure) == ["a", "b"]
    assert [axis.lines[0].get_ydata().tolist() for axis in figure.axes] == [[0.1, 0.2], [0.3, 0.4]]
    assert figure.axes[0].get_yscale() == "log"
    assert legend(figure) == ["CLAM"]


def test_accuracy_by_the_size_of_the_class(runs):
    rows = final_classes(runs)
    groups = rows.assign(shots=shot_groups(90 * rows["class"], (50, 100)))
    figure = run_figures.shot_groups(groups)
    (axis,) = figure.axes
    assert titles(figure) == ["crop ≥ 0.3"]
    assert [text.get_text() for text in axis.get_xticklabels()] == list(groups["shots"].cat.categories)
    by_group = groups[groups["method"] == "normal"].groupby("shots", observed=True)["test_accuracy"].mean()
    marks = [line for line in axis.lines if same_color(line.get_color(), plots.COLOURS["normal"])]
    heights = {round(float(y), 9) for line in marks for y in line.get_ydata()}
    assert set(by_group.round(9)) <= heights
    assert legend(figure) == ["Normal", "CLAM"]


def test_original_against_real_labels():
    accuracy = pd.DataFrame({"original": [0.5, 0.7, 0.9], "real": [0.6, 0.7, 1.0], "model": ["a", "a", "b"]})
    figure = run_figures.real_labels(accuracy)
    assert titles(figure) == ["a", "b"]
    assert figure.axes[0].collections[0].get_offsets().tolist() == [[0.5, 0.6], [0.7, 0.7]]
    assert figure.axes[1].collections[0].get_offsets().tolist() == [[0.9, 1.0]]
    assert figure.axes[0].get_ylabel() == "accuracy by ReaL labels"
