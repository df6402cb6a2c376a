"""Class accuracies and what they say about equity (paper, appendix "Evaluation Metrics"). Imports no torch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from clamkit.errors import ClamkitError

TAIL = 0.10  # the paper's "worst 10 % of the classes"


def class_accuracy(y_true, y_pred, num_classes: int) -> np.ndarray:
    """Share of each class's samples that were predicted right; nan where a class has no sample."""
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if y_true.shape != y_pred.shape or y_true.ndim != 1:
        raise ClamkitError(
            f"labels {y_true.shape} and predictions {y_pred.shape} must be two vectors of the same length."
        )
    if y_true.size and (y_true.min() < 0 or y_true.max() >= num_classes):
        raise ClamkitError(
            f"labels run from {y_true.min()} to {y_true.max()}: with {num_classes} classes "
            f"they must lie in 0..{num_classes - 1}."
        )
    seen = np.bincount(y_true, minlength=num_classes)
    right = np.bincount(y_true[y_true == y_pred], minlength=num_classes)
    return np.divide(right, seen, out=np.full(num_classes, np.nan), where=seen > 0)


def _accuracies(acc) -> np.ndarray:
    acc = np.asarray(acc, dtype=np.float64)
    if acc.ndim != 1 or acc.size < 2:
        raise ClamkitError(
            f"class accuracies have shape {acc.shape}: give one number for each of at least two classes."
        )
    bad = np.flatnonzero(~((acc >= 0) & (acc <= 1)))
    if bad.size:
        raise ClamkitError(
            f"the accuracy of class {bad[0]} is {acc[bad[0]]}: accuracies are fractions from 0 to 1 "
            f"({bad.size} of {acc.size} are not; divide percentages by 100, leave classes without samples out)."
        )
    return acc


def tail_size(num_classes: int, tail: float = TAIL) -> int:
    """How many classes make a tail: the rounded share, at least one (10 classes: 1)."""
    if not 0 < tail <= 1:
        raise ClamkitError(f"tail={tail} is not a share of the classes: it must lie in (0, 1].")
    return max(1, round(tail * num_classes))


def fairness(acc, tail: float = TAIL) -> pd.Series:
    """How evenly accuracy is spread over the classes; all values are fractions, not percent.

    average       μ, the mean over classes (the appendix lacks the 1/n)
    std           with n − 1, as the paper
    cov           std / average
    range         max − min, the formula in the paper's appendix
    decile_range  mean of the best tail − mean of the worst tail, what the paper's tables print
    worst, best   the tail means
    """
    acc = np.sort(_accuracies(acc))
    k = tail_size(acc.size, tail)
    average, std = acc.mean(), acc.std(ddof=1)
    worst, best = acc[:k].mean(), acc[-k:].mean()
    return pd.Series(
        {
            "average": average,
            "std": std,
            "cov": std / average if average > 0 else np.nan,
            "range": acc[-1] - acc[0],
            "decile_range": best - worst,
            "worst": worst,
            "best": best,
        }
    )
