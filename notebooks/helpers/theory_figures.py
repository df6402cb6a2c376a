"""Figures of the game: the triangle of three classes, flows, regrets and bounds, welfare, last rounds, α."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from clamkit.plots import COLOURS, MARKERS, epoch_axis, label, styled
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
MAP_NAMES = {"euclidean": "Euclidean", "kl": "KL", "clip": "the proof's clip", "released": "the released clip"}
STAR = {"marker": "*", "ms": 12, "color": "#000000", "mec": "white", "ls": ""}  # the equilibrium
END = 50  # rounds at the end of a play, over which moves are averaged
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


def draw_closer(axis: Axes, S: SymmetricSet) -> None:
    """The set S alone, as large as it goes; the name of a class stands where its weight is largest."""
    corners = vertices(S) @ CORNERS
    draw_triangle(axis, S, ("", "", ""))
    for corner, name in zip(CORNERS, ("class 1", "class 2", "class 3"), strict=True):
        x, y = corners[np.linalg.norm(corners - corner, axis=1).argmin()]
        high = corner[1] > 0
        axis.text(x, y + (0.012 if high else -0.012), name, ha="center", va="bottom" if high else "top", fontsize=8)
    (left, low), (right, top) = corners.min(axis=0), corners.max(axis=0)
    edge = 0.1 * (right - left)
    axis.set(xlim=(left - edge, right + edge), ylim=(low - edge, top + edge))


@styled
def flow(
    S,
    answer: Callable[[np.ndarray], np.ndarray],
    tau: float,
    projections: Sequence[str],
    mark: np.ndarray | None = None,
    grid: int = 22,
) -> Figure:
    """One step of the min player from everywhere in S (enlarged), the max player answering each w by `answer(w)`.

    A line is a game from equal weights, the star is where `mark` is.
    """
    starts = np.array([w for w in _shares(grid) if S.contains(w, 1e-9)])
    figure, axes = plt.subplots(1, len(projections), figsize=(4.6 * len(projections), 4.3), squeeze=False)
    for axis, projection in zip(axes[0], projections, strict=True):
        draw_closer(axis, S)
        steps = [clam(w, answer(w), S, tau, projection) - w for w in starts] @ CORNERS
        arrows = {"angles": "xy", "scale_units": "xy", "scale": 1 / ENLARGED, "width": 0.006, "color": "#777777"}
        axis.quiver(*(starts @ CORNERS).T, *steps.T, **arrows)
        path = play(answer, S, tau, projection, 60).weights @ CORNERS
        axis.plot(*path.T, "-o", ms=2.5, lw=1, color=MAPS[projection][0])
        if mark is not None:
            axis.plot(*(mark @ CORNERS), **STAR, zorder=4)
        axis.set_title(f"{MAP_NAMES[projection]} projection, τ = {tau:g}")
    handles = [Line2D([], [], color="#777777", marker=">", label=f"one step, {ENLARGED} times enlarged")]
    games = [f"a game, {MAP_NAMES[name]}" for name in projections]
    handles += [
        Line2D([], [], color=MAPS[name][0], marker="o", ms=3, label=text)
        for name, text in zip(projections, games, strict=True)
    ]
    handles += [] if mark is None else [Line2D([], [], **STAR, label="equilibrium")]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _shares(grid: int) -> np.ndarray:
    """Every way to share `grid` equal parts among three classes."""
    return np.array([(i, j, grid - i - j) for i in range(grid + 1) for j in range(grid + 1 - i)]) / grid


def late_moves(played: Play) -> float:
    """How far the weights move in a round, ‖Δw‖₁: the mean of the last rounds."""
    return float(np.abs(np.diff(played.weights, axis=0)).sum(1)[-END:].mean())


@styled
def oscillation(plays: Mapping[str, Play], rounds: int = 60) -> Figure:
    """The weight of the first class over the rounds, a panel for each play; its title says how far all still move."""
    columns = 2 if len(plays) % 2 == 0 else len(plays)
    size = (9.2, 0.4 + 2.2 * len(plays) / columns)
    figure, axes = plt.subplots(len(plays) // columns, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis, (name, played) in zip(axes.flat, plays.items(), strict=True):
        axis.plot(played.weights[:rounds, 0], lw=1.2, color=COLOURS["clam"])
        axis.set_title(f"{name}\nlate moves ‖Δw‖₁ = {late_moves(played):.2f} a round", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("round")
    for axis in axes[:, 0]:
        axis.set_ylabel("weight of class 1")
    return figure


@styled
def convergence(
    lengths: Sequence[int], gaps: Mapping[str, Sequence[float]], bounds: Mapping[str, Sequence[float]]
) -> Figure:
    """Gap of the averaged weights to the exact equilibrium against the number of rounds, log-log, with slopes.

    bounds: by what the legend calls them
    """
    figure, axis = plt.subplots(figsize=(5.2, 3.2))
    for name, gap in gaps.items():
        slope = np.polyfit(np.log(lengths), np.log(gap), 1)[0]
        axis.loglog(lengths, gap, "-o", label=f"{name}: slope {slope:.2f}".replace("-", "−"))
    for name, bound in bounds.items():
        axis.loglog(lengths, bound, color="#999999", ls="--", label=name)
    title = "Averaged weights reach the equilibrium"
    axis.set(xlabel="rounds T", ylabel="value of the average − equilibrium", title=title)
    axis.legend(loc="lower left")
    return figure


@styled
def regrets(frame: pd.DataFrame, bounds: Mapping[str, Callable[[int, int], float]]) -> Figure:
    """Largest regret over a suite of sequences against T, and the bounds(n, T): a panel for each map and n.

    frame: columns n, T, projection, sequence and regret.
    """
    classes, maps = frame["n"].unique(), frame["projection"].unique()
    size = (2.4 * len(maps), 0.6 + 2.1 * len(classes))
    figure, axes = plt.subplots(len(classes), len(maps), figsize=size, sharex=True, sharey="row", squeeze=False)
    for row, n in zip(axes, classes, strict=True):
        for axis, projection in zip(row, maps, strict=True):
            part = frame[(frame["n"] == n) & (frame["projection"] == projection)]
            worst = part.groupby("T")["regret"].max().clip(lower=1e-4)
            for (name, bound), width in zip(bounds.items(), (1.2, 5), strict=False):
                look = {"ls": "--", "color": "#555555"} if width < 2 else {"color": "#cccccc"}
                axis.loglog(worst.index, [bound(n, T) for T in worst.index], lw=width, label=name, **look)
            axis.loglog(worst.index, worst, color=MAPS[projection][0], marker="o", ms=3, label="largest regret")
        row[0].set_ylabel(f"regret, n = {n} classes")
    for axis, projection in zip(axes[0], maps, strict=True):
        axis.set_title(MAP_NAMES[projection])
    for axis in axes[-1]:
        axis.set_xlabel("rounds T")
    handles, names = axes[0, 0].get_legend_handles_labels()
    handles[-1] = Line2D([], [], color="#000000", marker="o", ms=3)  # the colour of a line is that of its panel's map
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


@styled
def welfare(functions: Mapping[str, Callable[[np.ndarray], float]], total: float = 1.5, grid: int = 60) -> Figure:
    """f(v) for three classes whose accuracies sum to `total`: how each function ranks ways to share the same sum."""
    v = _shares(grid) * total
    v = v[(v <= 1).all(axis=1)]
    points = v / total @ CORNERS
    figure, axes = plt.subplots(1, len(functions), figsize=(1.85 * len(functions), 2.0))
    levels = np.linspace(0, total / 3 + 1e-9, 11)
    for axis, (name, f) in zip(axes, functions.items(), strict=True):
        values = np.array([f(row) for row in v])
        drawn = axis.tricontourf(*points.T, values, levels=levels, cmap="viridis")
        axis.set(title=name, aspect="equal")
        axis.axis("off")
        box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.7}
        for place, corner in enumerate(CORNERS, 1):
            at = CORNERS.mean(axis=0) + 0.42 * (corner - CORNERS.mean(axis=0))
            axis.text(*at, f"class {place}", ha="center", va="center", fontsize=7, bbox=box)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="f(v)", format="%.1f", ticks=levels[::2])
    return figure


@styled
def last_iterates(plays: Mapping[str, Play], limits: Mapping[str, float]) -> Figure:
    """The loss of each round over time, and the limit the lemma claims, for each counterexample."""
    figure, axes = plt.subplots(1, len(plays), figsize=(3.1 * len(plays), 2.6), squeeze=False)
    for axis, (name, played) in zip(axes[0], plays.items(), strict=True):
        axis.plot(played.losses, color=COLOURS["clam"], lw=1, label="loss of the round")
        axis.axhline(limits[name], color=COLOURS["clam_kl"], ls="--", label="claimed limit")
        axis.set(title=name, xlabel="round")
    axes[0, 0].set_ylabel("loss w·v")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@styled
def alpha_over_epochs(alphas: Mapping[tuple[str, float], np.ndarray], assumed: float) -> Figure:
    """α_t of real training runs, by (method, crop), against the value the paper assumes; a panel for each crop."""
    crops = sorted({crop for _, crop in alphas}, reverse=True)
    figure, axes = plt.subplots(1, len(crops), figsize=(9.2, 2.7), sharey=True, squeeze=False)
    for axis, crop in zip(axes[0], crops, strict=True):
        for width, (method, alpha) in zip((4, 1.2), ((m, a) for (m, c), a in alphas.items() if c == crop), strict=True):
            look = {"color": COLOURS[method], "lw": width, "alpha": 0.4 if width > 2 else 1}
            look |= {} if width > 2 else {"marker": MARKERS[method], "ms": 4}
            axis.plot(np.arange(1, len(alpha) + 1), alpha, label=label(method), **look)
        axis.axhline(assumed, color="#555555", ls="--", label="the maximum that the paper assumes")
        epoch_axis(axis, "no crop" if crop == 1 else f"crop ≥ {crop:g}", ylim=(-0.02, 0.5))
    axes[0, 0].set_ylabel("$α_t$")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def paths_on_the_simplex(plays: Mapping[str, Play], mark: np.ndarray | None = None) -> Figure:
    """The path of the weights of three classes in each play, early rounds pale; a star where `mark` is."""
    figure, axes = plt.subplots(1, len(plays), figsize=(0.8 + 3.4 * len(plays), 3.3), squeeze=False)
    for axis, (name, played) in zip(axes[0], plays.items(), strict=True):
        draw_closer(axis, played.S)
        points = played.weights @ CORNERS
        axis.plot(*points.T, color="#888888", lw=0.6)
        drawn = axis.scatter(*points.T, c=np.arange(len(points)), cmap="viridis_r", s=14, zorder=3)
        if mark is not None:
            axis.plot(*(mark @ CORNERS), **STAR, zorder=4)
        axis.set_title(name)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="round")
    if mark is not None:
        figure.legend(handles=[Line2D([], [], **STAR, label="equilibrium")], loc="outside lower center")
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
