"""The game's figures: corners of the sets are right, and paths are where the weights are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from clamkit import LowerBounded, Permutahedron, RatioBounded
from clamkit.theory import game
from clamkit.theory.update import MAPS
from helpers import theory_figures
from helpers.theory_figures import CORNERS
from tests.plots.shown import titles


@pytest.mark.parametrize(
    ("S", "count", "corner"),
    [
        (LowerBounded(3, 1 / 6), 3, [2 / 3, 1 / 6, 1 / 6]),
        (Permutahedron([0.5, 0.3, 0.2]), 6, [0.2, 0.5, 0.3]),
        (RatioBounded(3, 2), 6, [0.5, 0.25, 0.25]),
    ],
)
def test_corners_of_a_set(S, count, corner):
    found = theory_figures.vertices(S)
    assert len(np.unique(found.round(9), axis=0)) == count
    assert np.abs(found - corner).sum(1).min() < 1e-9
    assert all(S.contains(w) for w in found)


def test_the_triangle_has_the_set_inside():
    _, axis = plt.subplots()
    theory_figures.draw_triangle(axis, LowerBounded(3, 1 / 6), ["a", "b", "c"])
    outer, inner = (patch.get_xy() for patch in axis.patches)
    np.testing.assert_allclose(np.unique(outer.round(9), axis=0), np.unique(CORNERS.round(9), axis=0))
    side = np.linalg.norm(CORNERS[0] - CORNERS[1])
    gaps = np.linalg.norm(inner[:, None] - inner[None], axis=2)
    assert gaps.max() == pytest.approx(side / 2), "w ≥ 1/6 leaves a triangle of half the side"
    texts = {text.get_text(): text.get_position() for text in axis.texts}
    for name, corner in zip("abc", CORNERS, strict=True):
        assert np.linalg.norm(np.array(texts[name]) - corner) < 0.1


def test_paths_are_the_weights():
    S, v = LowerBounded(3, 1 / 6), np.random.default_rng(0).random((30, 3))
    played = {name: game.play(v, S, 0.5, name) for name in ("euclidean", "kl")}
    figure = theory_figures.paths_on_the_simplex(played, mark=np.full(3, 1 / 3))
    assert titles(figure)[:2] == ["euclidean", "kl"]
    assert figure.axes[-1].get_ylabel() == "round", "the key of the colours"
    for axis, one in zip(figure.axes, played.values(), strict=False):
        path, star = axis.lines
        np.testing.assert_allclose(path.get_xydata(), one.weights @ CORNERS)
        np.testing.assert_allclose(star.get_xydata()[0], CORNERS.mean(axis=0))
    assert len(theory_figures.paths_on_the_simplex(played).axes[0].lines) == 1, "no star unless asked for"


def test_the_game_in_one_picture():
    players, triangle = theory_figures.game_picture((0.2, 0.5, 0.9), rounds=30).axes
    said = " ".join(text.get_text() for text in players.texts)
    assert "max player" in said
    assert "min player" in said
    assert [text.get_text().splitlines() for text in triangle.texts[:3]] == [
        [f"all on class {i}", f"$v_{i}$ = {v:g}"] for i, v in ((1, 0.2), (2, 0.5), (3, 0.9))
    ]
    (path,) = triangle.lines
    first, *_, last = path.get_xydata()
    np.testing.assert_allclose(first, CORNERS.mean(axis=0))
    np.testing.assert_allclose(last, np.array([2 / 3, 1 / 6, 1 / 6]) @ CORNERS), "all it may, on the worst class"


def test_every_map_has_a_line_of_its_own():
    assert set(theory_figures.MAPS) == {*MAPS, "best_response"}
    assert len(set(theory_figures.MAPS.values())) == len(theory_figures.MAPS)
