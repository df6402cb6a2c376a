"""Figures of the game: the triangle of three classes, flows, regrets and bounds, welfare, last rounds, α."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit.plots import COLOURS, styled
from clamkit.theory.game import Play, play
from clamkit.theory.sets import LowerBounded, SymmetricSet
from clamkit.theory.update import clam

CORNERS = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])  # of the triangle, one for each of three classes
MAPS = {  # colour and line of each map from x back to the set
    "euclidean": (COLOURS["clam"], "-"),
    "kl": (COLOURS["clam_kl"], "-"),
    "clip": (COLOURS["clam_clip"], "--"),
    "released": (COLOURS["clam_released"], "-."),
    "best_response": (COLOURS["maxmin"], ":"),
}
ENLARGED = 3  # arrows of the flow are this many times the step, to be seen


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
def flow(
    S, answer: Callable[[np.ndarray], np.ndarray], tau: float, projections: Sequence[str], grid: int = 14
) -> Figure:
    """One step of the min player from everywhere in S (enlarged), the max player answering each w by `answer(w)`."""
    starts = np.array([w for w in _shares(grid) if S.contains(w, 1e-9)])
    figure, axes = plt.subplots(1, len(projections), figsize=(3.4 * len(projections), 3.1), squeeze=False)
    for axis, projection in zip(axes[0], projections, strict=True):
        draw_triangle(axis, S)
        steps = [clam(w, answer(w), S, tau, projection) - w for w in starts] @ CORNERS
        arrows = {"angles": "xy", "scale_units": "xy", "scale": 1 / ENLARGED, "width": 0.006, "color": "#777777"}
        axis.quiver(*(starts @ CORNERS).T, *steps.T, **arrows)
        path = play(answer, S, tau, projection, 60).weights @ CORNERS
        axis.plot(*path.T, "-o", ms=1.2, lw=0.8, color=MAPS[projection][0])
        axis.set_title(f"{projection} projection, τ = {tau:g}")
    return figure


def _shares(grid: int) -> np.ndarray:
    """Every way to share `grid` equal parts among three classes."""
    return np.array([(i, j, grid - i - j) for i in range(grid + 1) for j in range(grid + 1 - i)]) / grid


def _thinner(count: int) -> np.ndarray:
    """Widths of lines that may lie on each other: each thinner than the one before, so that all are seen."""
    return np.linspace(1 + 0.6 * count, 1, count)


@styled
def oscillation(plays: Mapping[str, Play], rounds: int = 60) -> Figure:
    """Left the weight of the first class, right how far all weights move in a round, for each play."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 2.9))
    for width, (name, played) in zip(_thinner(len(plays)), plays.items(), strict=True):
        left.plot(played.weights[:rounds, 0], lw=width, label=name)
        right.plot(np.abs(np.diff(played.weights[: rounds + 1], axis=0)).sum(1), lw=width, label=name)
    left.set(title="weight of class 1", xlabel="round")
    right.set(title="move of the weights, ‖Δw‖₁", xlabel="round")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@styled
def convergence(lengths: Sequence[int], gaps: Mapping[str, Sequence[float]], bound: Sequence[float]) -> Figure:
    """Gap of the averaged weights to the exact equilibrium against the number of rounds, log-log, with slopes."""
    figure, axis = plt.subplots(figsize=(5.2, 3.2))
    for name, gap in gaps.items():
        slope = np.polyfit(np.log(lengths), np.log(gap), 1)[0]
        axis.loglog(lengths, gap, "-o", label=f"{name}: slope {slope:.2f}".replace("-", "−"))
    axis.loglog(lengths, bound, color="#999999", ls="--", label="√(ln n / 2T)")
    title = "Averaged weights reach the equilibrium"
    axis.set(xlabel="rounds T", ylabel="value of the average − equilibrium", title=title)
    axis.legend()
    return figure


@styled
def regrets(frame: pd.DataFrame, bounds: Mapping[str, Callable[[int, int], float]]) -> Figure:
    """Largest regret over a suite of sequences against T, a line for each map; the bounds(n, T) in grey.

    frame: columns n, T, projection, sequence and regret; a panel for each n.
    """
    classes = frame["n"].unique()
    figure, axes = plt.subplots(1, len(classes), figsize=(4.6 * len(classes), 3.3), squeeze=False)
    for axis, n in zip(axes[0], classes, strict=True):
        rows = frame[frame["n"] == n]
        for projection, part in rows.groupby("projection", sort=False):
            worst = part.groupby("T")["regret"].max().clip(lower=1e-4)
            colour, line = MAPS[projection]
            axis.loglog(worst.index, worst, color=colour, ls=line, marker="o", ms=3, label=projection)
        lengths = np.sort(rows["T"].unique())
        for (name, bound), line in zip(bounds.items(), ("--", ":"), strict=False):
            axis.loglog(lengths, [bound(n, T) for T in lengths], color="#555555", ls=line, lw=1.2, label=name)
        axis.set(title=f"n = {n} classes", xlabel="rounds T", ylabel="largest regret of the suite")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def welfare(functions: Mapping[str, Callable[[np.ndarray], float]], total: float = 1.5, grid: int = 60) -> Figure:
    """f(v) for three classes whose accuracies sum to `total`: how each function ranks ways to share the same sum."""
    v = _shares(grid) * total
    v = v[(v <= 1).all(axis=1)]
    points = v / total @ CORNERS
    figure, axes = plt.subplots(1, len(functions), figsize=(2.7 * len(functions), 2.7))
    for axis, (name, f) in zip(axes, functions.items(), strict=True):
        values = np.array([f(row) for row in v])
        drawn = axis.tricontourf(*points.T, values, levels=np.linspace(0, total / 3 + 1e-9, 13), cmap="viridis")
        axis.set(title=name, aspect="equal")
        axis.axis("off")
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="f(v)", format="%.2f")
    return figure


@styled
def last_iterates(plays: Mapping[str, Play], limits: Mapping[str, float]) -> Figure:
    """The loss of each round over time, and the limit the lemma claims, for each counterexample."""
    figure, axes = plt.subplots(1, len(plays), figsize=(3.1 * len(plays), 2.6), squeeze=False)
    for axis, (name, played) in zip(axes[0], plays.items(), strict=True):
        axis.plot(played.losses, color=COLOURS["clam"], lw=1, label="loss of the round")
        axis.axhline(limits[name], color=COLOURS["clam_kl"], ls="--", label="claimed limit")
        axis.set(title=name, xlabel="round")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@styled
def alpha_over_epochs(alphas: Mapping[str, np.ndarray], assumed: float) -> Figure:
    """α_t of real training runs against the value the paper assumes."""
    figure, axis = plt.subplots(figsize=(6, 2.9))
    for width, (name, alpha) in zip(_thinner(len(alphas)), alphas.items(), strict=True):
        axis.plot(np.arange(1, len(alpha) + 1), alpha, lw=width, label=name)
    axis.axhline(assumed, color="#555555", ls="--", label="the paper's assumption for the maximum")
    axis.set(xlabel="epoch", ylabel="α_t", title="α_t measured on training runs", ylim=(-0.03, 1.03))
    axis.legend(fontsize=7)
    return figure


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
