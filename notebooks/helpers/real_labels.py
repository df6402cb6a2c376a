"""Accuracy against ReaL labels (Beyer et al. 2020): a list of right classes for each ImageNet validation image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clamkit.errors import ClamkitError
from clamkit.metrics import class_accuracy


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
