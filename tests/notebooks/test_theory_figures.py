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
    figure = theory_figures.flow(S, lambda w: v, 0.4, ("euclidean", "kl"), mark=np.array([0.5, 0.25, 0.25]), grid=12)
    assert legend(figure) == ["one step, 3 times enlarged", "a game, Euclidean", "a game, KL", "equilibrium"]
    assert titles(figure) == ["Euclidean projection, τ = 0.4", "KL projection, τ = 0.4"]
    for axis, projection in zip(figure.axes, ("euclidean", "kl"), strict=True):
        arrows = axis.collections[0]
        start = arrows.XY.tolist().index(pytest.approx(CORNERS.mean(axis=0).tolist()))
        x = np.exp(-0.4 * v) / np.exp(-0.4 * v).sum()
        step = (S.project(x, projection) - 1 / 3) @ CORNERS
        assert [arrows.U[start], arrows.V[start]] == pytest.approx(step.tolist())
        assert len(arrows.U) == 28, "of the 91 points of the grid those inside: a triangle of half the side"
        path, star = axis.lines
        assert star.get_xydata()[0] == pytest.approx(np.array([0.5, 0.25, 0.25]) @ CORNERS)
        assert path.get_xydata()[0] == pytest.approx(CORNERS.mean(axis=0))


def test_oscillation(played):
    figure = theory_figures.oscillation(played, rounds=10)
    for axis, (name, one) in zip(figure.axes, played.items(), strict=True):
        (line,) = axis.lines
        assert line.get_ydata().tolist() == one.weights[:10, 0].tolist(), "a panel of its own: nothing is hidden"
        moves = np.abs(one.weights[1:] - one.weights[:-1]).sum(1)
        assert theory_figures.late_moves(one) == pytest.approx(moves.mean()), "of 30 rounds all are late"
        assert axis.get_title("left") == f"{name}\nlate moves ‖Δw‖₁ = {moves.mean():.2f} a round"
    still = game.play(np.full((200, 3), 0.5), S, 0.5, "kl")
    assert theory_figures.late_moves(still) == pytest.approx(0)


def test_convergence_says_the_slope():
    lengths = np.array([10, 100, 1000])
    figure = theory_figures.convergence(lengths, {"a": lengths**-0.5, "b": 1 / lengths}, {"bound": [0.2, 0.1, 0.05]})
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        "a: slope −0.50",
        "b: slope −1.00",
        "bound",
    ]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert lines(axis)["bound"] == [0.2, 0.1, 0.05]


def test_regrets_are_the_largest_of_the_suite():
    rows = [
        (n, T, "kl", name, n / T * share) for n in (3, 10) for T in (10, 20) for name, share in (("a", 1), ("b", 0.5))
    ]
    frame = pd.DataFrame(rows, columns=["n", "T", "projection", "sequence", "regret"])
    frame = pd.concat([frame, frame.assign(projection="clip", regret=frame["regret"] / 2)])
    figure = theory_figures.regrets(frame, {"bound": lambda n, T: n / T**0.5})
    assert titles(figure) == ["KL", "the proof's clip", "", ""]
    assert lines(figure.axes[0]) == {"largest regret": [0.3, 0.15], "bound": pytest.approx([3 / 10**0.5, 3 / 20**0.5])}
    assert [lines(axis)["largest regret"] for axis in figure.axes[1:]] == [[0.15, 0.075], [1.0, 0.5], [0.5, 0.25]]
    assert legend(figure) == ["bound", "largest regret"]


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
    same = np.array([0.0, 0.3])
    alphas = {("clam", 0.3): same, ("clam", 1.0): 2 * same, ("clam_kl", 0.3): same, ("clam_kl", 1.0): same}
    figure = theory_figures.alpha_over_epochs(alphas, 0.1)
    assert titles(figure) == ["no crop", "crop ≥ 0.3"]
    assumed = {"the maximum that the paper assumes": [0.1, 0.1]}
    assert lines(figure.axes[0]) == {"CLAM": [0, 0.6], "CLAM, KL": [0, 0.3]} | assumed
    assert lines(figure.axes[1]) == {"CLAM": [0, 0.3], "CLAM, KL": [0, 0.3]} | assumed
    below, above = figure.axes[1].lines[:2]
    assert below.get_linewidth() > above.get_linewidth(), "so that lines on each other are seen"
    assert above.get_xdata().tolist() == [1, 2]
