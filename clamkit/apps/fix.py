"""The free remedy: class biases for a finished model, what they gain, what they cost, how to apply them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.apps.predictions import Source, read
from clamkit.apps.words import changes, percent, points, read_limit, some
from clamkit.errors import ClamkitError
from clamkit.files import atomic
from clamkit.methods.posthoc import OBJECTIVES, Biases, fit_biases
from clamkit.metrics import HIGHER_IS_BETTER, METRICS, class_accuracy, fairness
from clamkit.plots import style

MAX_COST, BY = 0.005, "average-std"  # of average accuracy where neither a cost nor a target is given; objective
SHOWN = {"average": "average", "worst": "worst 10 %", "std": "std", "range": "range"}
FEWEST_IMAGES = 4  # of a class: two halves, each of two parts
COLOUR, CHOSEN = "#0072b2", "#d55e00"


@dataclass(frozen=True, eq=False)
class Fix:
    """biases: fitted on all images there are for it; metrics, classes: without and with, on images not fitted on."""

    title: str
    biases: Biases
    metrics: pd.DataFrame
    classes: pd.DataFrame
    measured: str
    kind: str
    max_cost: float | None = None
    target: tuple[str, float] | None = None

    @property
    def right(self) -> np.ndarray:
        """Share of all images that are right, without and with: classes of many images count more."""
        return np.average(self.classes[["without", "with"]], axis=0, weights=self.classes["images"])

    @property
    def useful(self) -> bool:
        """Whether there are biases, and images they were not fitted on confirm that classes become more even."""
        change = self.metrics["with"] - self.metrics["without"]
        gain = OBJECTIVES[self.biases.objective](change, 1.0)
        if self.target:
            gain = change[self.target[0]] * (1 if self.target[0] in HIGHER_IS_BETTER else -1)
        return bool(self.biases.values.any() and gain > 1e-12)


def read_target(text: str) -> tuple[str, float]:
    """ "worst=0.6", "worst=60%": the metric and the value that it shall reach."""
    allowed = [metric for metric in METRICS if metric != "cov"]
    example = "a metric and the accuracy that it shall reach, such as worst=0.6 or worst=60%"
    return read_limit(text, "target", "=", allowed, example)[::2]


def fix(source: Source, *, by: str = BY, max_cost: float | None = None, target: tuple[str, float] | None = None) -> Fix:
    """Class biases for logits in a file or a run; at most MAX_COST of average is paid where nothing else is asked.

    A run's biases are fitted on its held-out images and measured on its test images. The images of a file are halved,
    class by class: biases fitted on each half, choice included, are measured on the other; those given are of all.
    """
    data = read(source)
    if target and by != BY:
        raise ClamkitError(f"a target says what to choose by: ask for {target[0]}={target[1]:g} or for {by}, not both.")
    if data.scores is not None and len(data.names) < 2:
        raise ClamkitError(f"{data.title} has one class, {data.names[0]!r}: biases need at least two classes.")
    if data.scores is None:
        raise ClamkitError(
            f"{data.title} has predictions only: biases are added to logits, so they must be there. Give logits or "
            "probabilities [images, classes] and labels in an npz file, or a column logit_<class> for each class."
        )
    max_cost = MAX_COST if max_cost is None and target is None else max_cost
    labels, scores, names = data.labels, data.scores, data.names
    if data.held_out:
        parts = [((scores, labels), data.held_out)]
        whole, measured = data.held_out, "Fitted on the held-out images, measured on the test images."
    else:
        if data.method:
            raise ClamkitError(
                f"{data.title} has no held-out images to fit biases on, and test images are not for fitting: train it "
                "with --holdout 50, images of each class."
            )
        few = [name for name, size in zip(names, _sizes(labels, names), strict=True) if size < FEWEST_IMAGES]
        if few:
            raise ClamkitError(
                f"{len(few)} of {len(names)} classes of {data.title} have fewer than {FEWEST_IMAGES} images "
                f"({some(few)}): biases are fitted on one half and measured on the other, each of two parts. Give more "
                "images of these, or leave their columns and rows out."
            )
        half = _half(labels)
        sides = [(scores[side], labels[side]) for side in (half, ~half)]
        parts, whole = [(sides[0], sides[1]), (sides[1], sides[0])], (scores, labels)
        measured = "Fitted on one half of the images and measured on the other, both ways."
    biases = _fit(*whole, names, by, max_cost, target)
    told, sizes = [], []  # sizes: halves of 5 images have 3 and 2
    for (test, test_labels), fitted_on in parts:
        values = biases if fitted_on is whole else _fit(*fitted_on, names, by, max_cost, target, given_up=True)
        seen = np.flatnonzero(_sizes(test_labels, names))
        sizes.append(_sizes(test_labels, names)[seen])
        said = (test.argmax(axis=1), values.predict(test))
        told += [class_accuracy(test_labels, prediction, len(names))[seen] for prediction in said]
    columns = {"without": told[::2], "with": told[1::2]}
    means = {name: np.mean(rows * (sizes / np.mean(sizes, axis=0)), axis=0) for name, rows in columns.items()}
    classes = pd.DataFrame({**means, "images": np.sum(sizes, axis=0)}, np.array(names)[seen])
    metrics = pd.DataFrame({name: np.mean([fairness(r) for r in rows], 0) for name, rows in columns.items()}, METRICS)
    return Fix(data.title, biases, metrics, classes, measured, data.kind, max_cost, target)


def _sizes(labels: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    return np.bincount(labels, minlength=len(names))


def _half(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Every other image of each class, in a random order."""
    order = np.random.default_rng(seed).permutation(len(labels))
    return pd.Series(labels[order], order).groupby(labels[order]).cumcount().sort_index().to_numpy() % 2 == 0


def _fit(scores, labels, names, by, max_cost, target, *, given_up: bool = False) -> Biases:
    """As asked; given_up: none where the target is out of reach."""
    if target is None:
        return fit_biases(scores, labels, objective=by, max_cost=max_cost, class_names=names)
    biases = fit_biases(scores, labels, class_names=names)
    try:
        biases = biases.reaching(*target)
        if not biases.values.any():
            without = f"it is {biases.path[target[0]].iloc[0]:.1%}"
            biases = replace(biases, choice=f"{target[0]}={target[1]:g} is reached without biases: {without}.")
        if max_cost is not None and biases.cost > max_cost:
            raise ClamkitError(
                f"{target[0]}={target[1]:g} costs {biases.cost:.2%} of average, more than the {max_cost:.2%} allowed: "
                "allow more, or ask for less."
            )
    except ClamkitError:
        if not given_up:
            raise
        return biases.at(0)
    return biases


# -------------------------------------------------------------------------------------------------------- in words


def sentences(found: Fix) -> list[str]:
    """What biases do, in a few lines."""
    biases, table = found.biases, found.metrics
    lines = [f"{found.title}: {len(biases.values):,} classes. {found.measured}"]
    if not biases.values.any():
        return [*lines, f"{biases.choice} So none are written."]
    rows = {name: table.loc[metric] for metric, name in SHOWN.items()}
    if found.classes["images"].nunique() > 1:  # the average over classes may rise while this falls
        rows["images right"] = found.right
    for name, (before, after) in rows.items():
        lines.append(f"  {name:<12}{percent(before):>8} → {percent(after):>7}  ({points(after - before)} points)")
    change = (found.classes["with"] - found.classes["without"]).sort_values(kind="stable")
    pay, gain = change[change < 0], change[change > 0][::-1]
    lines += [f"Gain: {changes(gain.to_dict())}. Pay: {changes(pay.to_dict())}.", biases.choice]
    if found.target and found.useful:
        value, wanted = table.loc[found.target[0], "with"], found.target[1]
        if value < wanted - 1e-12 if found.target[0] in HIGHER_IS_BETTER else value > wanted + 1e-12:
            lines.append(f"Measured as above it is {percent(value)}: ask for more to be sure.")
    cost = table.loc["average", "without"] - table.loc["average", "with"]
    if found.useful and found.max_cost is not None and cost > found.max_cost + 1e-12:
        lines.append(f"Measured as above they cost {percent(cost, 2)} of average, more than asked: allow less.")
    if not found.useful:
        lines.append("But other images do not confirm it: nothing is shown to be gained, so none are written.")
    return lines


def lines_of_code(path: Path | str, kind: str = "logits") -> dict[str, str]:
    """How to apply the biases: a line each for PyTorch, numpy, and behind an ONNX session."""
    values = f'json.load(open("{paths.shown(path)}"))["values"]'
    torch, numpy, onnx = "model(x)", "logits", "session.run(None, inputs)[0]"
    if kind == "probabilities":
        torch, numpy, onnx = "(model(x) + 1e-12).log()", "np.log(probabilities + 1e-12)", f"np.log({onnx} + 1e-12)"
    return {
        "PyTorch": f"prediction = ({torch} + torch.tensor({values}, device=x.device)).argmax(-1)",
        "numpy": f"prediction = ({numpy} + np.array({values})).argmax(-1)",
        "ONNX": f"prediction = ({onnx} + np.array({values}, np.float32)).argmax(-1)",
    }


# ------------------------------------------------------------------------------------------------------- the picture


@style.styled
def figure_front(found: Fix) -> Figure:
    """Cost against gain along the path of biases: the worst classes and the spread against average accuracy lost."""
    path = found.biases.path
    cost = path["average"].iloc[0] - path["average"]
    chosen = path.index.get_loc(found.biases.strength)
    last = _last_shown(cost.to_numpy(), chosen)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), sharex=True)
    for axis, metric in zip(axes, ("worst", "std"), strict=True):
        y = path[metric]
        drawn = {"color": COLOUR, "ms": 3.5, "lw": 1.2, "label": "biases, ever stronger"}
        axis.plot(-100 * cost[: last + 1], y[: last + 1], "-o", **drawn)
        axis.plot(0, y.iloc[0], "s", color="#555555", ms=7, label="without")
        if chosen:
            axis.plot(-100 * cost.iloc[chosen], y.iloc[chosen], "o", color=CHOSEN, ms=9, label="chosen")
        if found.max_cost is not None and cost[: last + 1].max() > 0:
            axis.axvline(-100 * found.max_cost, color="#9a9a9a", ls="--", lw=1, label="most that may be paid")
        if found.target and found.target[0] == metric:
            axis.axhline(found.target[1], color="#9a9a9a", ls=":", lw=1.2, label="target")
        axis.set(title=style.TITLES[metric], xlabel="change of average accuracy, points")
        axis.yaxis.set_major_formatter(style.PERCENT)
    handles = {text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def _last_shown(cost: np.ndarray, chosen: int, most: float = 0.05) -> int:
    """The front is drawn until biases cost more than anybody pays; what was chosen is always on it."""
    return max(chosen, int(np.append(np.flatnonzero(cost > most), len(cost) - 1)[0]))


def report(
    source: Source, biases: Path, folder: Path | None = None, target: str | None = None, **asked: Any
) -> tuple[Fix, str]:
    """Fit, write the biases and the picture, and say what they do and how to apply them."""
    found = fix(source, target=read_target(target) if target else None, **asked)
    lines, figure = sentences(found), figure_front(found)
    try:
        picture = style.save(figure, "fix_front", folder)
        if found.useful:
            biases.parent.mkdir(parents=True, exist_ok=True)
            with atomic(biases) as temporary:
                temporary.write_text(found.biases.to_json(), encoding="utf-8")
            lines.append(f"{paths.shown(biases)} holds the biases. To apply them (import json first):")
            lines += [f"  {name:<8} {line}" for name, line in lines_of_code(biases, found.kind).items()]
        elif biases.exists():
            lines.append(f"{paths.shown(biases)} was there before: its biases are of another fit.")
    except OSError as error:
        raise ClamkitError(f"cannot write {error.filename or 'the result'}: {error}. Choose another place.") from error
    finally:
        plt.close(figure)
    lines.append(f"front of cost and gain: {paths.shown(picture)}")
    return found, "\n".join(lines)
