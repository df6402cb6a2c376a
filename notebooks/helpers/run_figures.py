"""Figures of runs that one notebook alone draws. Each returns a matplotlib Figure.

05  price, tenths, profile, front (accuracy against equity: not in the paper)
21  fairness_training (the paper's figure 3, as differences to Normal)
23  worst_class_curves (its figures 6 to 10, likewise), class_differences
25  over_tau (its table on the step size, as differences to τ = 0)
27  weights_and_accuracies, weight_moves (its comparison with APStar)
28  shot_groups (iNaturalist)
29  real_labels (ReaL)

The paper's figures and the functions that draw them:

1, 2  the game, and the loop of an epoch                      theory_figures.game_picture
3     std and COV over training (appendix: five datasets)     fairness_training
4     weights, accuracies, gap to Normal (appendix: 2×2)      clamkit.plots.weight_evolution
5     CLAM beside APStar (appendix)                           weights_and_accuracies
6-10  x-th worst class (appendix: five datasets)              worst_class_curves

Its tables as figures: fairness_over_strength and differences of clamkit.plots (tables 1 to 4, colour jitter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from clamkit.engine.store import Run
from clamkit.metrics import FEWEST
from clamkit.plots import (
    COLOURS,
    MARKERS,
    PERCENT,
    TITLES,
    WIDTH,
    class_colours,
    epoch_axis,
    label,
    method_legend,
    method_lines,
    styled,
)
from clamkit.plots.style import short_name
from helpers.paper_audit import DATASET_NAMES

Against = Mapping[str, pd.DataFrame]  # method → `metrics.compare` to Normal, a row for each place along an axis
HEAVY = 4  # classes drawn in full beside many others
SHOWN = ("clam", "clam_kl", "tce")  # methods drawn in full: the paper's, the better projection, the best rival


@styled
def fairness_training(std: Against, cov: Against) -> Figure:
    """Differences to Normal in std and COV of the test accuracies over the epochs (the paper's figure 3 shows levels).

    The first epochs, where every method swings by tens of points, may lie outside: the last third sets the scale.
    """
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.2))
    for axis, tables, title in zip(axes, (std, cov), (TITLES["std"], f"100 · {TITLES['cov']}"), strict=True):
        _curves(axis, tables)
        epoch_axis(axis, title)
        late = pd.concat([table[2 * len(table) // 3 :] for table in tables.values()])
        low, high = 100 * late["ci_low"].min(), 100 * late["ci_high"].max()
        if high > low:  # neither where there is one seed, without intervals
            axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes[0].set_ylabel("difference to Normal, points")
    _curves_legend(figure, std)
    return figure


@styled
def worst_class_curves(by_rank: Against) -> Figure:
    """Accuracy of the x-th worst class minus that under Normal (the paper's appendix on worst classes shows levels)."""
    figure, axis = plt.subplots(figsize=(6.4, 3.2))
    _curves(axis, by_rank)
    axis.set(xlabel="x-th worst class of each method", ylabel="difference to Normal, points")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _curves_legend(figure, by_rank)
    return figure


def _curves(axis: Axes, tables: Against) -> None:
    """Mean differences to Normal over seeds with 95 % intervals as bands; methods that are not SHOWN thin and grey."""
    axis.axhline(0, color="#333333", lw=0.8)
    for method, table in tables.items():
        middle, low, high = (100 * table[column] for column in ("mean_difference", "ci_low", "ci_high"))
        if method in SHOWN:
            axis.plot(table.index, middle, color=COLOURS[method], marker=MARKERS[method], mec="none", zorder=3)
            axis.fill_between(table.index, low, high, color=COLOURS[method], alpha=0.15, lw=0, zorder=2)
        else:
            axis.plot(table.index, middle, color="#b5b5b5", lw=0.8, zorder=1)


def _curves_legend(figure: Figure, tables: Against) -> None:
    shown = [method for method in tables if method in SHOWN]
    looks = [{"color": COLOURS[m], "marker": MARKERS[m], "mec": "none", "label": label(m)} for m in shown]
    if others := [label(method) for method in tables if method not in SHOWN]:
        looks.append({"color": "#b5b5b5", "lw": 0.8, "label": " · ".join(others)})
    figure.legend(handles=[Line2D([], [], **look) for look in looks], loc="outside upper center", ncols=4)


@styled
def class_differences(by_class: Against, class_names: Sequence[str]) -> Figure:
    """Accuracy of each class minus that under Normal, with intervals over seeds; a panel for each method.

    by_class: the rows are classes, from the top down. A class has its colour.
    """
    figure, axes = plt.subplots(1, len(by_class), figsize=(WIDTH, 3.0), sharex=True, sharey=True, squeeze=False)
    for axis, (method, table) in zip(axes[0], by_class.items(), strict=True):
        colours, y = class_colours(class_names, list(table.index)), range(len(table), 0, -1)
        axis.axvline(0, color="#333333", lw=0.8)
        for height, (name, row) in zip(y, table.iterrows(), strict=True):
            low, high = 100 * row["ci_low"], 100 * row["ci_high"]
            axis.plot([low, high], [height, height], color=colours[name], lw=2)
            axis.plot(100 * row["mean_difference"], height, "o", color=colours[name], ms=5)
        axis.set(title=label(method), yticks=list(y), yticklabels=table.index)
        axis.tick_params(axis="y", length=0)
    figure.supxlabel("difference to Normal, points (95 % intervals over seeds)", fontsize=9)
    return figure


@styled
def over_tau(tables: Mapping[str, Against], printed: pd.DataFrame) -> Figure:
    """What each step size τ changes against τ = 0, in points: ours in colour with 95 % intervals, the paper's in grey.

    tables   method → τ → `metrics.compare` to τ = 0
    printed  the τ table of `paper.results()`
    """
    metrics = {"average": "average", "std": "std", "decile_range": "range", "worst": "worst"}  # ours: the paper's name
    figure, axes = plt.subplots(1, len(metrics), figsize=(WIDTH, 2.9), sharex=True)
    paper = printed.assign(tau=printed["method"].str.removeprefix("tau=").astype(float))
    paper = paper.pivot(index=["metric", "dataset"], columns="tau", values="value")
    paper = paper.sub(paper[0.0], axis=0).drop(columns=0.0)
    order = [f"{tau:g}" for tau in paper.columns]
    for axis, (metric, name) in zip(axes, metrics.items(), strict=True):
        axis.axhline(0, color="#333333", lw=0.8)
        for (dataset, row), line in zip(paper.loc[name].iterrows(), ("-", "--"), strict=True):
            axis.plot(order, row, line, color="#888888", label=f"the paper, {DATASET_NAMES[str(dataset)]}")
        for method, own in tables.items():
            rows = 100 * pd.DataFrame({f"{float(tau):g}": table.loc[metric] for tau, table in own.items()}).T
            middle, low, high = (rows[column].astype(float) for column in ("mean_difference", "ci_low", "ci_high"))
            look = {"color": COLOURS[method], "marker": MARKERS[method], "mec": "none", "elinewidth": 1}
            axis.errorbar(rows.index, middle, [middle - low, high - middle], label=f"ours, {label(method)}", **look)
        axis.set(title=TITLES[metric], xlabel="τ")
    axes[0].set_ylabel("difference to τ = 0, points")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@styled
def front(frame: pd.DataFrame, classes: int = 10) -> Figure:
    """Average accuracy against the std of the classes: all methods, and CLAM as the floor or the step size moves.

    frame: as `as_frame` gives it, of one strength. Means over seeds, with standard errors as crosses.
    """
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.3), sharex=True, sharey=True)
    frame = frame.assign(floor=frame["u_min"].astype(float).fillna(0.5 / classes) * classes, step=frame["tau"])
    usual = {"floor": 0.5, "step": 1.0}
    for axis, (moving, title) in zip(
        axes, {"floor": "the floor n·u_min", "step": "the step size τ"}.items(), strict=True
    ):
        (other,) = set(usual) - {moving}
        own = frame[frame[other] == usual[other]]
        groups = own.groupby(["method", moving], sort=False)[["average", "std"]]
        mean, error = 100 * groups.mean(), 100 * groups.sem().fillna(0)
        for method in own["method"].unique():
            x, y = (mean.loc[method][name].sort_index() for name in ("average", "std"))
            dx, dy = (error.loc[method][name].sort_index() for name in ("average", "std"))
            look = {"color": COLOURS[method], "marker": MARKERS[method], "ms": 5, "lw": 1, "elinewidth": 0.7}
            axis.errorbar(x, y, dy, dx, **look)
            if len(x) > 1:
                place = {"xytext": (4, 3) if method == "clam" else (4, -9), "textcoords": "offset points", "zorder": 5}
                place["path_effects"] = [withStroke(linewidth=2, foreground="white")]  # a number crosses no line
                for value, at in zip(x.index, zip(x, y, strict=True), strict=True):
                    axis.annotate(f"{value:g}", at, size=6.5, color=COLOURS[method], **place)
        axis.set(title=f"CLAM's path: {title}", xlabel="average accuracy, %")
    axes[0].set_ylabel("std over classes, points (lower is fairer)")
    method_legend(figure, frame["method"], ncols=5)
    return figure


Tables = Mapping[str, Mapping[str, pd.DataFrame]]  # title of a panel → method → `metrics.compare` to Normal


@styled
def price(tables: Tables) -> Figure:
    """What methods gain in equity (downwards) and pay in average accuracy (leftwards), with intervals."""

    def draw(axis: Axes, middle: pd.Series, below: pd.Series, above: pd.Series, look: dict) -> None:
        errors = ([[below[name]], [above[name]]] for name in ("std", "average"))
        axis.errorbar(middle["average"], middle["std"], *errors, ls="", **look)

    across, up = "average accuracy, points against Normal", "std, points against Normal"
    figure = _against_normal(tables, draw, across, up)
    for axis in figure.axes[: len(tables)]:
        axis.axvline(0, color="#555555", lw=0.8, zorder=1)
    return figure


@styled
def tenths(tables: Tables) -> Figure:
    """Who gains and who pays: accuracy against Normal's by the rank of a class, a row of a table for each tenth."""

    def draw(axis: Axes, middle: pd.Series, below: pd.Series, above: pd.Series, look: dict) -> None:
        axis.errorbar(middle.index, middle, [below, above], lw=1, **look | {"ms": 4.5})
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))

    across = "tenths of the classes, from the worst to the best of each run"
    return _against_normal(tables, draw, across, "accuracy, points against Normal")


@styled
def profile(classes: Mapping[str, pd.DataFrame]) -> Figure:
    """The share of classes, over all seeds, below each accuracy: a curve for each method, a panel for each title.

    classes: columns method and test_accuracy, a row for each class and run. A curve further right is better.
    """
    figure, axes = _panels(list(classes), sharey=True)
    for axis, frame in zip(axes.flat, classes.values(), strict=False):
        for method, own in frame.groupby("method", sort=False):
            axis.ecdf(own["test_accuracy"], color=COLOURS[method], label=label(method), lw=1.3)
        axis.xaxis.set_major_formatter(PERCENT)
        axis.yaxis.set_major_formatter(PERCENT)
    method_legend(figure, [method for frame in classes.values() for method in frame["method"]])
    figure.supxlabel("test accuracy of a class", fontsize=9)
    figure.supylabel("share of classes below it", fontsize=9)
    return figure


def _panels(titles: Sequence[str], **options: Any) -> tuple[Figure, np.ndarray]:
    """Panels in rows of two, three in one row; a title "regime: images" takes two lines."""
    columns = 3 if len(titles) == 3 else 2
    rows = -(-len(titles) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 0.9 + 2.2 * rows), squeeze=False, **options)
    for axis, title in zip(axes.flat, titles, strict=False):
        axis.set_title(title.replace(": ", "\n"))
    for axis in axes.flat[len(titles) :]:
        axis.set_axis_off()
    return figure, axes


def _against_normal(tables: Tables, draw, across: str, up: str) -> Figure:
    """A panel for each kind of images. A method may be followed by a setting ("clam, τ = 0.1"): hollow marks.

    Intervals are drawn where a test is made: that of two seeds would be wider than the panel.
    """
    figure, axes = _panels(list(tables))
    for axis, methods in zip(axes.flat, tables.values(), strict=False):
        axis.axhline(0, color="#555555", lw=0.8)
        for name, table in methods.items():
            method, _, setting = name.partition(", ")
            look = {"color": COLOURS[method], "marker": MARKERS[method], "ms": 6, "elinewidth": 1}
            look |= {"label": f"{label(method)}, {setting}", "mfc": "white"} if setting else {"label": label(method)}
            middle, low, high = (100 * table[column] for column in ("mean_difference", "ci_low", "ci_high"))
            below, above = (size.where(table["n"] >= FEWEST, 0) for size in (middle - low, high - middle))
            draw(axis, middle, below, above, look)
    drawn = {text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=5)
    figure.supxlabel(across, fontsize=9)
    figure.supylabel(up, fontsize=9)
    return figure


@styled
def weights_and_accuracies(runs: Sequence[Run]) -> Figure:
    """The paper's comparison with APStar: weights and test accuracies of all classes over the epochs, side by side.

    The classes with the largest weights, over all runs and epochs, are drawn in full, the others thin.
    """
    heavy = set(pd.concat([run.wide("weight") for run in runs]).mean().nlargest(HEAVY).index)
    figure, axes = plt.subplots(2, len(runs), figsize=(WIDTH, 4.4), sharex=True, sharey="row", squeeze=False)
    for (above, below), run in zip(axes.T, runs, strict=True):
        few = len(run.class_names) <= 10
        colours = class_colours(run.class_names) if few else dict.fromkeys(run.class_names, "#999999")
        for axis, column in ((above, "weight"), (below, "test_accuracy")):
            for name, line in run.wide(column).items():
                look = {"lw": 1.4} if name in heavy else {"lw": 0.6, "alpha": 0.4} if few else {"lw": 0.5, "alpha": 0.6}
                axis.plot(line, color=colours[name], **look)
        above.set_title(label(run.config.method))
        below.set_xlabel("epoch")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        below.yaxis.set_major_formatter(PERCENT)
    axes[0, 0].set_ylabel("class weight (mean 1)")
    axes[1, 0].set_ylabel("test accuracy")
    if few:
        key = [Line2D([], [], color=colours[name], lw=1.4, label=short_name(name)) for name in runs[0].class_names]
        figure.legend(handles=key, loc="outside lower center", ncols=5)
    return figure


@styled
def weight_moves(moves: pd.DataFrame) -> Figure:
    """How far the class weights move from one epoch to the next, a panel for each value of `panel`.

    moves: columns panel, method, epoch and move (the part of all weight that changes class, as `late_move`).
    """
    panels = moves["panel"].unique()
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 2.8), sharey=True, squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        method_lines(
            moves[moves["panel"] == panel],
            "epoch",
            "move",
            axis,
            errorbar=None,
            markevery=max(1, moves["epoch"].nunique() // 5),
        )
        epoch_axis(axis, str(panel))
    axes[0, 0].set(yscale="log", ylabel="weight that changes class")
    axes[0, 0].yaxis.set_major_formatter(PERCENT)
    method_legend(figure, moves["method"])
    return figure


@styled
def shot_groups(groups: pd.DataFrame) -> Figure:
    """Test accuracy by size of the class, a panel for each strength of the crop, a mark for each method.

    groups: columns method, strength, seed, shots (ordered) and test_accuracy, one row for each run and group.
    """
    import seaborn as sns

    groups = groups.assign(shots=groups["shots"].cat.rename_categories(lambda name: name.replace(" (", "\n(")))

    strengths = sorted(groups["strength"].unique(), reverse=True)
    figure, axes = plt.subplots(1, len(strengths), figsize=(WIDTH, 3.0), sharey=True, squeeze=False)
    for axis, strength in zip(axes[0], strengths, strict=True):
        methods = list(groups["method"].unique())
        look = {
            "palette": [COLOURS[m] for m in methods],
            "hue_order": methods,
            "markers": [MARKERS[m] for m in methods],
        }
        rows = groups[groups["strength"] == strength]
        sns.pointplot(
            rows, x="shots", y="test_accuracy", hue="method", ax=axis, legend=False, dodge=0.5, linestyle="none",
            errorbar="sd", err_kws={"lw": 1}, ms=5, **look,
        )  # fmt: skip
        axis.set(
            title=f"crop ≥ {strength:g}" if strength < 1 else "no crop", xlabel="training images of a class", ylabel=""
        )
        axis.yaxis.set_major_formatter(PERCENT)
    axes[0, 0].set_ylabel("test accuracy")
    method_legend(figure, groups["method"])
    return figure


@styled
def real_labels(accuracy: pd.DataFrame) -> Figure:
    """Accuracy of each class by its original label (across) and by ReaL labels (up), a panel for each model.

    accuracy: columns original, real and model, a row for each class.
    """
    models = accuracy["model"].unique()
    width = min(3.5 * len(models), WIDTH)
    figure, axes = plt.subplots(1, len(models), figsize=(width, 0.6 + width / len(models)), sharey=True, squeeze=False)
    low = max(0, accuracy[["original", "real"]].min().min() - 0.05)
    for axis, model in zip(axes[0], models, strict=True):
        rows = accuracy[accuracy["model"] == model]
        axis.plot([0, 1], [0, 1], color="#999999", lw=0.8, zorder=1)
        look = {"s": 22, "alpha": 0.9} if len(rows) <= 30 else {"s": 7, "alpha": 0.4}
        axis.scatter(rows["original"], rows["real"], color=COLOURS["clam"], **look)
        axis.set(title=model, xlabel="by the original label", xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
        axis.xaxis.set_major_formatter(PERCENT)
        axis.yaxis.set_major_formatter(PERCENT)
    axes[0, 0].set_ylabel("accuracy by ReaL labels")
    return figure
