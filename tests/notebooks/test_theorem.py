"""The numbers of notebook 03 against values worked out apart, and a check that fails where it should."""

import numpy as np
import pytest

from clamkit.theory import game
from helpers import theorem


def test_a_check_stops_where_something_is_untrue():
    theorem.check([True, True], "two truths")
    for untrue in (False, np.array([True, False])):
        with pytest.raises(AssertionError, match="this does not hold: a claim"):
            theorem.check(untrue, "a claim")


def test_the_maps_by_hand():
    table = theorem.four_maps()
    shrunk = np.array([0.70, 0.25, 1 / 6])
    assert table.loc["max(x, u)/Z (the proof)"].iloc[:3].tolist() == pytest.approx(shrunk / shrunk.sum(), abs=5e-4)
    kl = [0.70 / 0.95 * 5 / 6, 0.25 / 0.95 * 5 / 6, 1 / 6]
    assert table.loc["KL projection"].iloc[:3].tolist() == pytest.approx(kl, abs=5e-4)
    over = (1 / 6 - 0.05) / 2  # taken from each of the two others
    euclidean = [0.70 - over, 0.25 - over, 1 / 6]
    assert table.loc["Euclidean projection (the text)"].iloc[:3].tolist() == pytest.approx(euclidean, abs=5e-4)
    assert table["in the set"].tolist() == ["yes", "yes", "no", "no"]


def test_the_numbers_of_the_text():
    assert theorem.failing_steps()["left side"].tolist() == [0.0946, -0.0047, 1.1006]
    assert theorem.small_floor().tolist() == [0.052746, 0.050378, 0.058877]
    n = np.array([2, 3, 10, 100])  # KL to the uniform of ½ + 1/(2n) on one class, 1/(2n) on each other
    top, rest = 0.5 + 0.5 / n, 0.5 / n
    D = top * np.log(n * top) + (n - 1) * rest * np.log(n * rest)
    assert theorem.diameters()["D"].tolist() == pytest.approx(D, abs=5e-4)


def test_the_last_rounds_do_not_go_to_their_limits():
    plays, limits = theorem.last_rounds()
    assert {name[0]: round(limit, 4) for name, limit in limits.items()} == {"A": 0.5, "B": 0.25, "C": 0.2}
    assert [round(float(played.losses[-1]), 4) for played in plays.values()] == [0.0, round(1 / 6, 4), 0.3]


def test_the_alphas_are_those_of_the_demo():
    alphas = theorem.measured_alphas()
    assert set(alphas) == {(method, crop) for method in ("clam", "clam_kl") for crop in (0.3, 0.6, 1.0)}
    assert all(0 <= alpha.min() <= alpha.max() < 1 for alpha in alphas.values())
    steps = theorem.step_sizes(0.3)
    assert steps.iloc[:, 1].tolist() == pytest.approx(
        [np.log1p(np.sqrt(np.log(n) / T) / 1.3) for n, T in ((100, 150), (10, 50))], abs=5e-4
    )
    assert steps["corrected, no α"].tolist() == pytest.approx([game.tau_kl(100, 150), game.tau_kl(10, 50)], abs=5e-4)
