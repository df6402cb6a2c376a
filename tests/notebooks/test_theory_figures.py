"""The figures of the theory notebooks show the plays, bounds and functions they are given."""

import numpy as np
import pandas as pd
import pytest

from clamkit import LowerBounded
from clamkit.theory import game
from helpers import theory_figures
from helpers.theory_figures import CORNERS
from tests.plots.shown import legend, lines, titles

S = LowerBounded(3, 1 / 6)
V = np.random.default_rng(0).random((30, 3))


@pytest.fixture(scope="module")
def played():
    return {name: game.play(V, S, 0.5, name) for name in ("euclidean", "kl")}


def test_flow_is_one_step_from_everywhere():
    v = np.array([0.2, 0.9, 0.5])
    figure = theory_figures.flow(S, lambda w: v, 0.4, ("euclidean", "kl"), grid=12)
    assert titles(figure) == ["euclidean projection, τ = 0.4", "kl projection, τ = 0.4"]
    for axis, projection in zip(figure.axes, ("euclidean", "kl"), strict=True):
        arrows = axis.collections[0]
        start = arrows.XY.tolist().index(pytest.approx(CORNERS.mean(axis=0).tolist()))
        x = np.exp(-0.4 * v) / np.exp(-0.4 * v).sum()
        step = (S.project(x, projection) - 1 / 3) @ CORNERS
        assert [arrows.U[start], arrows.V[start]] == pytest.approx(step.tolist())
        assert len(arrows.U) == 28, "of the 91 points of the grid those inside: a triangle of half the side"
        (path,) = axis.lines
        assert path.get_xydata()[0] == pytest.approx(CORNERS.mean(axis=0))


def test_oscillation(played):
    left, right = theory_figures.oscillation(played, rounds=10).axes
    for name, one in played.items():
        assert lines(left)[name] == one.weights[:10, 0].tolist()
        assert lines(right)[name] == pytest.approx(np.abs(one.weights[1:11] - one.weights[:10]).sum(1).tolist())
    widths = [line.get_linewidth() for line in left.lines]
    assert widths[0] > widths[1], "so that lines on each other are seen"


def test_convergence_says_the_slope():
    lengths = np.array([10, 100, 1000])
    figure = theory_figures.convergence(lengths, {"a": lengths**-0.5, "b": 1 / lengths}, [0.2, 0.1, 0.05])
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        "a: slope −0.50",
        "b: slope −1.00",
        "√(ln n / 2T)",
    ]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert lines(axis)["√(ln n / 2T)"] == [0.2, 0.1, 0.05]


def test_regrets_are_the_largest_of_the_suite():
    rows = [
        (n, T, "kl", name, n / T * share) for n in (3, 10) for T in (10, 20) for name, share in (("a", 1), ("b", 0.5))
    ]
    frame = pd.DataFrame(rows, columns=["n", "T", "projection", "sequence", "regret"])
    figure = theory_figures.regrets(frame, {"bound": lambda n, T: n / T**0.5})
    assert titles(figure) == ["n = 3 classes", "n = 10 classes"]
    assert lines(figure.axes[0]) == {"kl": [0.3, 0.15], "bound": pytest.approx([3 / 10**0.5, 3 / 20**0.5])}
    assert lines(figure.axes[1])["kl"] == [1.0, 0.5]
    assert legend(figure) == ["kl", "bound"]


def test_welfare():
    figure = theory_figures.welfare({"average": np.mean, "max-min": np.min}, grid=12)
    assert titles(figure)[:2] == ["average", "max-min"]
    *_, bar = figure.axes
    assert bar.get_ylabel() == "f(v)"
    assert bar.get_ylim() == pytest.approx((0, 0.5)), "up to the mean of accuracies that sum to 1.5"


def test_last_iterates(played):
    figure = theory_figures.last_iterates(played, {"euclidean": 0.4, "kl": 0.5})
    assert titles(figure) == ["euclidean", "kl"]
    for axis, (one, limit) in zip(figure.axes, zip(played.values(), (0.4, 0.5), strict=True), strict=True):
        shown = lines(axis)
        assert shown["loss of the round"] == one.losses.tolist()
        assert shown["claimed limit"] == [limit, limit]


def test_alpha_over_epochs():
    figure = theory_figures.alpha_over_epochs({"clam": np.array([0.0, 0.3]), "kl": np.array([0.0, 0.3])}, 0.1)
    (axis,) = figure.axes
    assert lines(axis) == {"clam": [0, 0.3], "kl": [0, 0.3], "the paper's assumption for the maximum": [0.1, 0.1]}
    assert axis.lines[0].get_xdata().tolist() == [1, 2]
