"""Figures of the theory: the simplex as a triangle, regrets and bounds, welfare surfaces, the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit.drawings import COLOURS, styled
from clamkit.game import Play
from clamkit.simplex import LowerBounded

CORNERS = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])  # of the triangle, one for each of three classes
ENLARGED = 3  # arrows of the flow are this many times the step, to be seen
MAPS = {  # colour and line of each map from x back to the set
    "euclidean": (COLOURS["clam"], "-"),
    "kl": (COLOURS["clam_kl"], "-"),
    "clip": (COLOURS["clam_clip"], "--"),
    "released": (COLOURS["clam_released"], "-."),
    "best_response": (COLOURS["maxmin"], ":"),
}


def vertices(S) -> np.ndarray:
    """Corners of a set for three classes, in order around it, found by asking for the minimum in every direction."""
    angles = np.linspace(0, 2 * np.pi, 721)[:-1] + 1e-4
    directions = np.stack([np.cos(angles), np.cos(angles - 2 * np.pi / 3), np.cos(angles + 2 * np.pi / 3)], axis=1)
    found = np.array([S.argmin(direction) for direction in directions]).round(12)
    return found[np.r_[True, (np.diff(found, axis=0) != 0).any(axis=1)]]


def draw_triangle(axis: Axes, S, names: Sequence[str] = ("class 1", "class 2", "class 3")) -> None:
    """The simplex of three classes with the set S inside."""
    axis.fill(*CORNERS.T, fc="#f7f7f7", ec="#777777", lw=1)
    axis.fill(*(vertices(S) @ CORNERS).T, fc="#dcebf7", ec=COLOURS["clam"], lw=1, alpha=0.9)
    for corner, name, (dx, dy), side in zip(
        CORNERS, names, ((-0.02, -0.07), (0.02, -0.07), (0, 0.04)), ("center",) * 3, strict=True
    ):
        axis.text(corner[0] + dx, corner[1] + dy, name, ha=side, fontsize=8)
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
def flow(
    S, answer: Callable[[np.ndarray], np.ndarray], tau: float, projections: Sequence[str], grid: int = 14
) -> Figure:
    """One step of the min player from everywhere in S (enlarged), the max player answering each w by `answer(w)`."""
    from clamkit.game import play

    shares = [(i, j, grid - i - j) for i in range(grid + 1) for j in range(grid + 1 - i)]
    starts = [w for w in np.array(shares) / grid if S.contains(w, 1e-9)]
    figure, axes = plt.subplots(1, len(projections), figsize=(3.4 * len(projections), 3.1), squeeze=False)
    for axis, projection in zip(axes[0], projections, strict=True):
        draw_triangle(axis, S)
        ends = []
        for w in starts:
            x = w * np.exp(-tau * answer(w))
            ends.append(S.project(x / x.sum(), projection))
        steps = (np.array(ends) - starts) @ CORNERS
        axis.quiver(
            *(np.array(starts) @ CORNERS).T,
            *steps.T,
            angles="xy",
            scale_units="xy",
            scale=1 / ENLARGED,
            width=0.006,
            color="#777777",
        )
        path = play(answer, S, tau, projection, 60).weights @ CORNERS
        axis.plot(*path.T, "-o", ms=1.2, lw=0.8, color=MAPS[projection][0])
        axis.set_title(f"{projection} projection, τ = {tau:g}")
    return figure


@styled
def oscillation(plays: Mapping[str, Play], rounds: int = 60) -> Figure:
    """Left the weight of the first class, right how far all weights move in a round, for each play."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 2.9))
    for name, played in plays.items():
        left.plot(played.weights[:rounds, 0], label=name)
        right.plot(np.abs(np.diff(played.weights[: rounds + 1], axis=0)).sum(1), label=name)
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
        axis.loglog(lengths, gap, "-o", label=f"{name}: slope {slope:.2f}")
    axis.loglog(lengths, bound, color="#999999", ls="--", label="√(ln n / 2T)")
    axis.set(
        xlabel="rounds T", ylabel="value of the average − equilibrium", title="Averaged weights reach the equilibrium"
    )
    axis.legend()
    return figure


@styled
def regrets(frame: pd.DataFrame, bounds: Mapping[str, Callable[[int], float]]) -> Figure:
    """Largest regret over a suite of sequences against T, a line for each map; the bounds in grey.

    frame: columns T, projection, sequence, regret, panel by panel for the `n` in it.
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
    shares = np.array([(i, j, grid - i - j) for i in range(grid + 1) for j in range(grid + 1 - i)]) / grid
    v = shares * total
    v = v[(v <= 1).all(axis=1)]
    points = v / total @ CORNERS
    figure, axes = plt.subplots(1, len(functions), figsize=(2.7 * len(functions), 2.7))
    for axis, (name, f) in zip(axes, functions.items(), strict=True):
        values = np.array([f(row) for row in v])
        drawn = axis.tricontourf(*points.T, values, levels=np.linspace(0, total / 3 + 1e-9, 13), cmap="viridis")
        axis.set_title(name)
        axis.set(aspect="equal")
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
    for name, alpha in alphas.items():
        axis.plot(np.arange(1, len(alpha) + 1), alpha, "-o", ms=3, label=name)
    axis.axhline(assumed, color="#555555", ls="--", label="the paper's assumption for the maximum")
    axis.set(xlabel="epoch", ylabel="α_t", title="α_t measured on training runs", ylim=(-0.03, 1.03))
    axis.legend(fontsize=7)
    return figure


@styled
def audit(results: pd.DataFrame, implied: pd.DataFrame) -> Figure:
    """Left: printed COV against std / average. Right: the range without augmentation that tables 1 and 2 imply."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.3))
    wide = results.pivot_table(index=["dataset", "method", "source"], columns="metric", values="value").reset_index()
    for source, rows in wide.groupby("source"):
        left.scatter(rows["std"] / rows["average"], rows["cov"], s=18, label=source)
    top = wide["cov"].max() * 1.05
    left.plot([0, top], [0, top], color="#999999", lw=1)
    left.set(xlabel="std / average", ylabel="printed COV", title="COV against its own definition")
    left.legend()
    compared = implied[["normal", "clam"]]
    x = np.arange(len(compared))
    for shift, method in ((-0.2, "normal"), (0.2, "clam")):
        right.bar(x + shift, compared[method], width=0.38, color=COLOURS[method], label=method)
    right.set_xticks(x, compared.index, rotation=15)
    right.set(ylabel="range, %", title="implied range without augmentation")
    right.legend()
    return figure


@styled
def possible_std(num_classes: int, points: Mapping[str, tuple[float, float]]) -> Figure:
    """Which pairs (range, std) class accuracies can have at all, and where printed rows lie; in percent."""
    ranges = np.linspace(0, 100, 200)
    low = ranges / np.sqrt(2 * (num_classes - 1))
    high = ranges / 2 * np.sqrt(num_classes / (num_classes - 1))
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.fill_between(ranges, low, high, color="#e3eef7", label="possible")
    for (name, (value_range, std)), marker in zip(points.items(), "osD^v", strict=False):
        axis.plot(value_range, std, marker, label=name)
    axis.set(xlabel="range (max − min), %", ylabel="std, %", title=f"std a range allows, {num_classes} classes")
    axis.set(xlim=(0, 60), ylim=(0, 25))
    axis.legend(loc="upper left")
    return figure


def constrained(n: int) -> LowerBounded:
    """The paper's set: w ≥ 1/(2n)."""
    return LowerBounded(n, 0.5 / n)
