"""Figures of runs: one function each, returning a matplotlib Figure. Those that one notebook alone draws are beside it.

helpers/run_figures.py beside the notebooks says which of the paper's figures is drawn where. Widths are for a text
6.5 inches wide, where labels keep 8 points.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clamkit.engine.store import Run
from clamkit.errors import ClamkitError
from clamkit.plots.style import (
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
    png,
    short_name,
    styled,
)

STRENGTH_NAMES = {"crop": "crop lower bound", "jitter": "jitter strength"}
PANELS = {"weight": "class weight", "train_accuracy": "training accuracy", "test_accuracy": "test accuracy"}
LIVE_DPI = 140
History = Sequence[Mapping[str, Sequence[float]]]  # for each epoch so far, the columns of a run's history by class
NAMED = 10  # of more classes than this, all are grey lines and the worst alone has a name


@styled
def fairness_over_strength(frame: pd.DataFrame) -> Figure:
    """Average, spread and worst classes against the strength of augmentation: a line a method, a band over seeds."""
    kind = frame["augmentation"].iloc[0]
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.6), sharex=True)
    for axis, metric in zip(axes.flat, ("average", "std", "range", "worst"), strict=True):
        method_lines(frame, "strength", metric, axis)
        axis.set(title=TITLES[metric], xlabel=STRENGTH_NAMES[kind], xticks=sorted(frame["strength"].unique()))
        axis.yaxis.set_major_formatter(PERCENT)
    if kind == "crop":
        axes[0, 0].invert_xaxis()  # stronger augmentation to the right
    method_legend(figure, frame["method"])
    return figure


@styled
def class_curves(classes: pd.DataFrame, methods: Sequence[str], augmentation: str = "crop") -> Figure:
    """Accuracy of every class against the strength of augmentation, a panel for each method.

    classes: columns method, strength, seed, class_name and test_accuracy, as `lab.tables.final_classes` gives them.
    """
    figure, axes = plt.subplots(1, len(methods), figsize=(WIDTH, 3.6), sharey=True, squeeze=False)
    names = list(classes["class_name"].unique())
    colours, markers = class_colours(names), dict(zip(names, cycle("o^vPX<>psD"), strict=False))
    for axis, method in zip(axes[0], methods, strict=True):
        table = classes[classes["method"] == method].pivot_table(
            index="strength", columns="class_name", values="test_accuracy", sort=False
        )
        for name in names:
            axis.plot(
                table[name].sort_index(), color=colours[name], marker=markers[name], mec="none", label=short_name(name)
            )
        axis.set(title=label(method), xlabel=STRENGTH_NAMES[augmentation])
        axis.yaxis.set_major_formatter(PERCENT)
        if augmentation == "crop":
            axis.invert_xaxis()
    axes[0, 0].set_ylabel("test accuracy")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


@styled
def class_accuracies(runs: Sequence[Run], *, most: int = 20) -> Figure:
    """Test accuracy of each class under each run, worst class of the first run on top."""
    first = runs[0].test_accuracy.dropna().sort_values(ascending=False).tail(most)
    figure, axis = plt.subplots(figsize=(6.4, 1.1 + 0.27 * len(first)))
    y = np.arange(len(first))
    table = pd.DataFrame({i: run.test_accuracy[first.index] for i, run in enumerate(runs)})
    axis.hlines(y, table.min(axis=1), table.max(axis=1), color="#c8c8c8", lw=2, zorder=1)
    for i, run in enumerate(runs):
        method = run.config.method
        axis.scatter(table[i], y, s=34, color=COLOURS[method], marker=MARKERS[method], label=label(method), zorder=2)
    axis.set(yticks=y, yticklabels=map(short_name, first.index), xlabel="test accuracy")
    axis.xaxis.set_major_formatter(PERCENT)
    config = runs[0].config
    some = len(first) < runs[0].test_accuracy.count()
    shown = f"The {len(first)} worst classes under {label(config.method)}" if some else "Class by class"
    axis.set_title(f"{shown}, {STRENGTH_NAMES[config.augmentation]} {config.strength:g}")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(runs))
    return figure


@styled
def weight_evolution(run: Run, baseline: Run, classes: Sequence[str] | None = None) -> Figure:
    """The paper's 2×2 figure: weights, test accuracy, gap to the baseline over the epochs, and the final gap.

    classes: by name; default the three worst and the two best under the baseline. Who loses most is always added.
    """
    if run.class_names != baseline.class_names:
        raise ClamkitError(f"{run} and {baseline} are of different datasets: their classes cannot be compared.")
    weights, accuracy = run.wide("weight"), run.wide("test_accuracy")
    gap = 100 * (accuracy - baseline.wide("test_accuracy"))
    ranked, loser = baseline.test_accuracy.dropna().sort_values().index, str(gap.iloc[-1].idxmin())
    classes = list(dict.fromkeys([*([*ranked[:3], *ranked[-2:]] if classes is None else classes), loser]))
    colours = class_colours(run.class_names, classes)
    figure, axes = plt.subplots(2, 2, figsize=(WIDTH, 4.6))
    ours, theirs = label(run.config.method), label(baseline.config.method)
    panels = {f"{ours}: class weights (mean 1)": weights, "test accuracy": accuracy, f"gap to {theirs}, points": gap}
    for axis, (title, frame) in zip(axes.flat, panels.items(), strict=False):
        for name in classes:
            axis.plot(frame.index, frame[name], color=colours[name], label=short_name(name))
        epoch_axis(axis, title)
        if frame is accuracy:
            axis.yaxis.set_major_formatter(PERCENT)
    axes[0, 0].axhline(1, color="#999999", lw=0.8, ls=":")
    axes[1, 0].axhline(0, color="#999999", lw=0.8)
    axes[1, 1].bar(classes, gap.iloc[-1][classes], color=[colours[name] for name in classes])
    axes[1, 1].axhline(0, color="#333333", lw=0.8)
    axes[1, 1].set_title(f"at the end: {loser} {gap.iloc[-1].min():+.0f} points".replace(" -", " −"))
    plt.setp(axes[1, 1].get_xticklabels(), rotation=25, ha="right", rotation_mode="anchor")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(classes))
    return figure


def training_curves(run: Run) -> Figure:
    """Weights, training and test accuracy of every class over the epochs; at most ten classes are named."""
    return class_panels({column: run.wide(column) for column in PANELS})


@styled
def class_panels(frames: Mapping[str, pd.DataFrame]) -> Figure:
    """The columns PANELS of a history, each as epochs × class names; the order is that of the last test accuracies."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(WIDTH, 3.0))
    names = list(frames["test_accuracy"].columns)
    worst_first = frames["test_accuracy"].iloc[-1].sort_values(kind="stable").index  # nan comes last
    few = len(names) <= NAMED
    colours = class_colours(names)
    for axis, (column, title) in zip(axes, PANELS.items(), strict=True):
        frame = frames[column]
        look = {"marker": "o", "ms": 3} if len(frame) == 1 else {}  # one epoch is a point, not a line
        if few:
            for name in worst_first:
                axis.plot(frame.index, frame[name], color=colours[name], label=short_name(name), **look)
        else:
            axis.plot(frame.index, frame, color="#999999", lw=0.5, alpha=0.5)
            axis.plot(frame.index, frame.mean(axis=1), color="#000000", label="mean", **look)
            worst = {"color": COLOURS["clam_kl"], "label": f"{short_name(worst_first[0])}, the worst"}
            axis.plot(frame.index, frame[worst_first[0]], **worst, **look)
        epoch_axis(axis, title)
        if column != "weight":
            axis.yaxis.set_major_formatter(PERCENT)
    order = "worst class first" if few else None
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, title=order)
    return figure


def live_view() -> Callable[[History, Sequence[str]], None] | None:
    """A function that redraws one picture in the notebook's output, for `train(config, watch=live_view())`.

    None where nobody looks: without a kernel to show pictures, and with CLAMKIT_PROGRESS=0.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or os.environ.get("CLAMKIT_PROGRESS") == "0":
        return None
    from IPython.display import Image, display

    handle = None

    def watch(history: History, class_names: Sequence[str]) -> None:
        nonlocal handle
        picture = Image(live_png(history, class_names))
        if handle is None or len(history) == 1:  # another training has begun
            handle = display(picture, display_id=True)
        else:
            handle.update(picture)

    return watch


def live_png(history: History, class_names: Sequence[str]) -> bytes:
    """`training_curves` of an unfinished run."""
    epochs = pd.RangeIndex(1, len(history) + 1, name="epoch")
    values = {column: np.stack([np.asarray(row[column]) for row in history]) for column in PANELS}
    figure = class_panels({column: pd.DataFrame(v, epochs, list(class_names)) for column, v in values.items()})
    try:
        return png(figure, LIVE_DPI)
    finally:
        plt.close(figure)  # or the notebook would show it a second time


@styled
def differences(tables: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Mean difference and its interval for each metric (a panel) and method (a row), from `metrics.compare`."""
    metrics = next(iter(tables.values())).index
    figure, axes = plt.subplots(1, len(metrics), figsize=(WIDTH, 0.9 + 0.27 * len(tables)), sharey=True, squeeze=False)
    y = np.arange(len(tables))[::-1]
    for axis, metric in zip(axes[0], metrics, strict=True):
        for height, (method, table) in zip(y, tables.items(), strict=True):
            row = table.loc[metric]
            axis.plot([100 * row["ci_low"], 100 * row["ci_high"]], [height, height], color=COLOURS[method], lw=2)
            axis.plot(100 * row["mean_difference"], height, marker=MARKERS[method], color=COLOURS[method], ms=6)
        axis.axvline(0, color="#555555", lw=0.8)
        axis.set(title=TITLES.get(metric, metric), yticks=y)
    axes[0, 0].set_yticklabels([label(method) for method in tables])
    figure.supxlabel(title, fontsize=9)
    return figure
