"""Notebook 42: remedies side by side, the decision between them, and ResNet-50's predictions on ImageNet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.apps.fix import Fix
from clamkit.apps.predictions import Predictions, read
from clamkit.apps.words import changes, percent, points
from clamkit.engine.store import Run
from clamkit.metrics import fairness
from clamkit.plots import style
from helpers import verdicts
from helpers.class_names import imagenet_names

say = partial(verdicts.say, width=98)  # characters that fit beside the files in JupyterLab
SHOWN = ("average", "worst", "std", "range")
LOOKS = (("#555555", "s"), ("#0072b2", "o"), ("#e69f00", "D"))  # of the remedies, in their order


def remedies(found: Fix, trained: Mapping[str, Run]) -> pd.DataFrame:
    """Accuracy of each class (rows) as the model is, with biases, and under runs trained otherwise."""
    runs = {name: run.test_accuracy for name, run in trained.items()}
    return pd.DataFrame({"as it is": found.classes["without"], "biases": found.classes["with"], **runs})


def costs(classes: pd.DataFrame) -> pd.DataFrame:
    """The metrics of each remedy, in percent, and by how many points they differ from the model as it is."""
    table = pd.DataFrame({name: fairness(column) for name, column in classes.items()}).T[list(SHOWN)]
    change = (table - table.iloc[0]).iloc[1:].add_prefix("Δ ")
    return 100 * table.join(change)


def who_pays(classes: pd.DataFrame) -> list[str]:
    """A line for each remedy: which classes gain, which pay."""
    lines = []
    for name in classes.columns[1:]:
        change = (classes[name] - classes.iloc[:, 0]).sort_values(kind="stable")
        gain, pay = change[change > 0][::-1], change[change < 0]
        lines.append(f"{name}: gain {changes(gain.to_dict(), 2)}; pay {changes(pay.to_dict(), 2)}.")
    return lines


def decision(classes: pd.DataFrame, images: int, max_cost: float) -> str:
    """The remedy with the best worst tenth of those that cost at most `max_cost` points; biases if they are as good.

    As good: nearer than one standard error of the difference of two accuracies of so many images.
    """
    table = costs(classes) / 100
    allowed = table.iloc[1:][table["Δ average"].iloc[1:] >= -max_cost / 100]
    gains = allowed[allowed["Δ worst"] > 0]["Δ worst"]
    if gains.empty:
        return f"Leave it: no remedy lifts the worst tenth for {max_cost:g} points of average accuracy."
    best = gains.idxmax()
    p = table.loc[best, "worst"]
    near = np.sqrt(2 * p * (1 - p) / images)
    chosen = "biases" if "biases" in gains and gains[best] - gains["biases"] < near else best
    told = f"worst tenth {points(gains[chosen])}, average {points(table.loc[chosen, 'Δ average'])} points"
    if chosen == best:
        return f"Take {chosen}: {told}, the most for at most {max_cost:g} points of average accuracy."
    more = f"{best} has {points(gains[best] - gains[chosen])} more, within the noise of {percent(near)}"
    return f"Take {chosen}, which need no training: {told}. {more}."


@style.styled
def figure_remedies(classes: pd.DataFrame) -> Figure:
    """The accuracy of each class under each remedy, the worst on top; where there are many, the 15 that move most."""
    if len(classes) > 15:
        moved = (classes.max(axis=1) - classes.min(axis=1)).nlargest(15).index
        classes = classes.loc[moved]
    rows = classes.sort_values(classes.columns[0], ascending=False)
    y = np.arange(len(rows))
    figure, axis = plt.subplots(figsize=(6.6, 0.9 + 0.27 * len(rows)))
    axis.hlines(y, rows.min(axis=1), rows.max(axis=1), color="#d0d0d0", lw=2, zorder=1)
    for (name, values), (colour, sign) in zip(rows.items(), LOOKS, strict=False):
        axis.scatter(values, y, s=30, color=colour, marker=sign, label=name, zorder=2)
    axis.set(
        yticks=y, yticklabels=[style.short_name(name) for name in rows.index], xlabel="accuracy on the test images"
    )
    axis.xaxis.set_major_formatter(style.PERCENT)
    figure.legend(loc="outside upper center", ncols=len(classes.columns))
    return figure


def imagenet_predictions(folder: str | os.PathLike | None = None) -> Predictions | None:
    """What a published ResNet-50 said of ImageNet's validation images, with the classes' names, where it is at hand.

    Looked for in `folder`, in CLAMKIT_REAL, and in shared/data/imagenet_val beside the project: resnet50_top1.csv.gz.
    """
    places = (folder, os.environ.get("CLAMKIT_REAL"), paths.project().parent / "shared/data/imagenet_val")
    files = [Path(place, "resnet50_top1.csv.gz") for place in places if place]
    if (file := next(filter(Path.is_file, files), None)) is None:
        return None
    names = np.array(list(imagenet_names().values()), dtype=object)
    table = pd.read_csv(file, usecols=["label", "pred_resnet50"]).set_axis(["label", "prediction"], axis=1)
    return replace(read(table.apply(lambda column: names[column])), title="ResNet-50 on ImageNet")
