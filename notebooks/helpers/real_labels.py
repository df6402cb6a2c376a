"""Accuracy against ReaL labels (Beyer et al. 2020): a list of right classes for each ImageNet validation image."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from clamkit.engine.store import Run, RunFolder
from clamkit.errors import ClamkitError
from clamkit.metrics import class_accuracy, fairness

COMMITTED = Path(__file__).with_name("real_resnet50.csv")  # accuracy of each class of ImageNet by both kinds of labels


def real_accuracy(
    pred, real_labels: Sequence[Sequence[int]], original_labels, num_classes: int | None = None
) -> np.ndarray:
    """Accuracy of each original class against ReaL labels (paper, appendix "ReaL").

    pred, original_labels  one class number for each image
    real_labels            the lists of real.json, one for each image: any of its classes is right;
                           images with an empty list are left out
    num_classes            default: the largest original label + 1

    Array of num_classes; nan where no image of a class has a ReaL label.
    """
    right, kept = _hits(pred, real_labels)
    original = np.asarray(original_labels)
    if original.shape != right.shape:
        raise ClamkitError(f"there are {right.size} predictions but original labels of shape {original.shape}.")
    if num_classes is None:
        num_classes = int(original.max()) + 1
    return class_accuracy(original[kept], np.where(right, original, -1)[kept], num_classes)


def real_top1(pred, real_labels: Sequence[Sequence[int]]) -> float:
    """Share of all images with a ReaL label whose prediction is one of their ReaL labels."""
    right, kept = _hits(pred, real_labels)
    return float(right[kept].mean())


def _hits(pred, real_labels: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """For each image: is the prediction among its ReaL labels, and has it any."""
    pred = np.asarray(pred)
    if pred.ndim != 1 or len(real_labels) != pred.size:
        raise ClamkitError(
            f"there are {len(real_labels)} ReaL label lists for predictions of shape {pred.shape}: give one list "
            "and one prediction for each image, in the same order (real.json has 50000, in validation-file order)."
        )
    count = np.array([len(labels) for labels in real_labels], dtype=np.int64)
    if not count.any():
        raise ClamkitError("no image has a ReaL label: there is nothing to measure.")
    image = np.repeat(np.arange(pred.size), count)
    label = np.concatenate([np.asarray(labels, dtype=np.int64) for labels in real_labels])
    right = np.zeros(pred.size, dtype=bool)
    right[image[label == pred[image]]] = True
    return right, count > 0


def by_class(prediction, real: Sequence[Sequence[int]], label: np.ndarray, model: str) -> pd.DataFrame:
    """Accuracy of each class by its original label and by ReaL labels: columns original, real and model."""
    columns = {"original": class_accuracy(label, prediction, int(label.max()) + 1)}
    return pd.DataFrame(columns | {"real": real_accuracy(prediction, real, label)}).assign(model=model).dropna()


def spread(accuracy: pd.DataFrame) -> pd.DataFrame:
    """average, std, decile range and worst tenth of `by_class`, in percent, by model and kind of labels."""
    rows = {(m, c): fairness(own[c]) for m, own in accuracy.groupby("model", sort=False) for c in ("original", "real")}
    return 100 * pd.DataFrame(rows).T[["average", "std", "decile_range", "worst"]]


def example() -> pd.DataFrame:
    """Three networks on twenty classes in ten pairs that tend to stand in one picture, 50 images of each: `by_class`.

    In pair k a share of the images, from 0 to 90 %, shows both things; 5 % of the lists are empty.
    """
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(20), 50)
    partner, elsewhere = label ^ 1, (label + 2) % 20
    together = rng.random(1000) < np.linspace(0, 0.9, 10)[label // 2]
    real = [[a, b] if two else [a] for a, b, two in zip(label, partner, together, strict=True)]
    real = [[] if empty else labels for labels, empty in zip(real, rng.random(1000) < 0.05, strict=True)]
    mistaken = rng.random(1000) < rng.permutation(np.linspace(0, 0.3, 20))[label]
    other = together & (rng.random(1000) < 0.5)  # names the one that is not the label
    luck = rng.random(1000) < 0.5
    networks = {
        "first": np.where(mistaken, elsewhere, np.where(other, partner, label)),
        "guesses better": np.where(mistaken, elsewhere, np.where(other & luck, partner, label)),
        "sees better": np.where(mistaken & luck, elsewhere, np.where(other, partner, label)),
    }
    return pd.concat([by_class(prediction, real, label, model) for model, prediction in networks.items()])


def measured(folder: str | None = None) -> pd.DataFrame:
    """`by_class` of the real networks whose predictions are in a folder; without one, of the committed ResNet-50.

    folder: with real.json and resnet50_top1.csv.gz (of each validation image the label, and pred_… of each network)
    """
    if folder is None:
        return pd.read_csv(COMMITTED)
    lists, images = _lists(folder), pd.read_csv(Path(folder, "resnet50_top1.csv.gz"))
    label, models = images["label"].to_numpy(), [column for column in images if column.startswith("pred_")]
    names = {"pred_resnet50": "ResNet-50"}
    return pd.concat([by_class(images[m], lists, label, names.get(m, m.removeprefix("pred_"))) for m in models])


def of_runs(runs: Sequence[Run], folder: str | None, metrics: Sequence[str]) -> pd.DataFrame:
    """method, strength, seed and metrics by ReaL labels of those runs that are on ImageNet and have their predictions.

    A run tests its images class by class and within a class in file order, so that sorting the lists by label (stably)
    puts them in the order of its predictions. Committed runs have none.
    """
    rows, own = [], [run for run in runs if run.config.dataset == "imagenet" and isinstance(run, RunFolder)]
    if folder is not None and own:
        lists, truth = _lists(folder), pd.read_csv(Path(folder, "resnet50_top1.csv.gz"))["label"].to_numpy()
        order = np.argsort(truth, kind="stable")
        for run in own:
            if not np.array_equal(run.predictions["label"], truth[order]):
                raise ClamkitError(f"{run} was not tested on the validation set of ImageNet: leave it out.")
            accuracy = real_accuracy(run.predictions["prediction"], [lists[i] for i in order], truth[order])
            where = {"method": run.config.method, "strength": run.config.strength, "seed": run.config.seed}
            rows.append(where | fairness(accuracy).to_dict())
    return pd.DataFrame(rows, columns=["method", "strength", "seed", *metrics])


def _lists(folder: str) -> list[list[int]]:
    return json.loads(Path(folder, "real.json").read_text())
