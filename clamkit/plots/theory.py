"""Figures of the game: the simplex of three classes as a triangle, the sets in it, the paths of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit.plots.style import COLOURS, styled
from clamkit.theory.game import Play, play
from clamkit.theory.sets import LowerBounded, SymmetricSet

CORNERS = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])  # of the triangle, one for each of three classes
MAPS = {  # colour and line of each map from x back to the set
    "euclidean": (COLOURS["clam"], "-"),
    "kl": (COLOURS["clam_kl"], "-"),
    "clip": (COLOURS["clam_clip"], "--"),
    "released": (COLOURS["clam_released"], "-."),
    "best_response": (COLOURS["maxmin"], ":"),
}


def vertices(S: SymmetricSet) -> np.ndarray:
    """Corners of a set for three classes, in order around it, found by asking for the minimum in every direction."""
    angles = np.linspace(0, 2 * np.pi, 721)[:-1] + 1e-4
    directions = np.stack([np.cos(angles), np.cos(angles - 2 * np.pi / 3), np.cos(angles + 2 * np.pi / 3)], axis=1)
    found = np.array([S.argmin(direction) for direction in directions]).round(12)
    return found[np.r_[True, (np.diff(found, axis=0) != 0).any(axis=1)]]


def draw_triangle(axis: Axes, S: SymmetricSet, names: Sequence[str] = ("class 1", "class 2", "class 3")) -> None:
    """The simplex of three classes with the set S inside, a name at each corner."""
    axis.fill(*CORNERS.T, fc="#f7f7f7", ec="#777777", lw=1)
    axis.fill(*(vertices(S) @ CORNERS).T, fc="#dcebf7", ec=COLOURS["clam"], lw=1, alpha=0.9)
    for corner, name, (shift, side) in zip(
        CORNERS, names, ((-0.03, "top"), (-0.03, "top"), (0.03, "bottom")), strict=True
    ):
        axis.text(corner[0], corner[1] + shift, name, ha="center", va=side, fontsize=8)
    axis.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.12, 0.98))
    axis.axis("off")


@styled
def paths_on_the_simplex(plays: Mapping[str, Play], mark: np.ndarray | None = None) -> Figure:
    """The path of the weights of three classes in each play, early rounds pale; a star where `mark` is."""
    figure, axes = plt.subplots(1, len(plays), figsize=(3.1 * len(plays), 2.9), squeeze=False)
    for axis, (name, played) in zip(axes[0], plays.items(), strict=True):
        draw_triangle(axis, played.S)
        points = played.weights @ CORNERS
        axis.plot(*points.T, color="#888888", lw=0.6)
        axis.scatter(*points.T, c=np.arange(len(points)), cmap="viridis_r", s=9, zorder=3)
        if mark is not None:
            axis.plot(*(mark @ CORNERS), marker="*", ms=12, color=COLOURS["clam_kl"], mec="white", zorder=4)
        axis.set_title(name)
    return figure


@styled
def game_picture(v: Sequence[float] = (0.55, 0.8, 0.95), *, tau: float = 1.0, rounds: int = 12) -> Figure:
    """The game in one picture: who does what in an epoch, and where the weights of three classes go."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.6), width_ratios=[1.25, 1])
    _draw_players(left)
    played = play(np.tile(v, (rounds, 1)), LowerBounded(3, 1 / 6), tau)
    draw_triangle(right, played.S, [f"all on class {i}\n$v_{i}$ = {share:g}" for i, share in enumerate(v, 1)])
    points = played.weights @ CORNERS
    right.plot(*points.T, "-o", color=COLOURS["clam_kl"], ms=4, lw=1.2)
    line = {"arrowstyle": "-", "color": "#777777"}
    right.annotate("start: equal weights", points[0], (0.76, 0.62), arrowprops=line)
    middle = CORNERS.mean(axis=0)
    right.text(*(middle - [0, 0.18]), "$\\Delta^c$: each weight ≥ 1/(2n)", ha="center", va="top", color=COLOURS["clam"])
    right.set(xlim=(-0.25, 1.35), ylim=(-0.2, 1.05))
    return figure


def _draw_players(axis: Axes) -> None:
    axis.set(xlim=(0, 10), ylim=(0, 7))
    axis.axis("off")
    box = {"boxstyle": "round,pad=0.7", "lw": 1.5}
    texts = [
        (5, 5.9, "max player: the network θ\nraises  $\\sum_i w_i\\, v_i(\\theta)$  for one epoch", COLOURS["normal"]),
        (5, 1.1, "min player: the class weights w\n$w \\leftarrow \\pi\\,(w\\, e^{-\\tau v} / Z)$", COLOURS["clam"]),
    ]
    for place, height, text, colour in texts:
        axis.text(place, height, text, ha="center", va="center", bbox=box | {"fc": "white", "ec": colour}, fontsize=10)
    for start, end, x, text, side in (
        ((7.4, 4.7), (7.4, 2.2), 7.7, "accuracy $v_i$\nof each class", "left"),
        ((2.6, 2.2), (2.6, 4.7), 2.3, "weight $w_i$\nof each class", "right"),
    ):
        axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "lw": 1.8, "color": "#555555"})
        axis.text(x, 3.45, text, ha=side, va="center", color="#333333")
