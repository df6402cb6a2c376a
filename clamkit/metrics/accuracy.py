"""Class accuracies and how evenly they are spread (paper, appendix "Evaluation Metrics").

Accuracies are fractions from 0 to 1 everywhere; the paper prints percent.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.checks import check_labels
from clamkit.errors import ClamkitError

TAIL = 0.10  # the paper's "worst 10 % of the classes"
METRICS = ("average", "std", "cov", "range", "decile_range", "worst", "best")  # what `fairness` gives
HIGHER_IS_BETTER = ("average", "worst", "best")  # of the others, lower


def class_accuracy(y_true: ArrayLike, y_pred: ArrayLike, num_classes: int) -> np.ndarray:
    """Share of each class's samples that were predicted right; nan where a class has no sample.

    >>> class_accuracy([0, 0, 1, 1], [0, 1, 1, 1], num_classes=2).tolist()
    [0.5, 1.0]
    """
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if y_true.shape != y_pred.shape or y_true.ndim != 1:
        raise ClamkitError(f"labels {y_true.shape} and predictions {y_pred.shape} must be vectors of the same length.")
    check_labels(y_true, num_classes)
    seen = np.bincount(y_true, minlength=num_classes)
    right = np.bincount(y_true[y_true == y_pred], minlength=num_classes)
    return np.divide(right, seen, out=np.full(num_classes, np.nan), where=seen > 0)


def tail_size(num_classes: int, tail: float = TAIL) -> int:
    """How many classes make a tail: the share, a half rounded up, at least one (10 classes: 1; 25: 3)."""
    if not 0 < tail <= 1:
        raise ClamkitError(f"tail={tail} is not a share of the classes: it must lie in (0, 1].")
    return max(1, int(round(tail * num_classes, 9) + 0.5))  # 9 digits: 0.29 · 50 is meant to be 14.5


def fairness(acc: ArrayLike, tail: float = TAIL) -> pd.Series:
    """How evenly accuracy is spread over the classes; all values are fractions, not percent.

    average       μ, the mean over classes (the appendix lacks the 1/n)
    std           with n − 1, as the paper
    cov           std / average
    range         max − min: the formula in the paper's appendix, and a run's own range
    decile_range  mean of the best tail − mean of the worst tail: what the paper's tables print as "range"
    worst, best   the tail means

    >>> fairness([0.9, 0.8, 0.4])[["average", "std", "worst"]].round(3).tolist()
    [0.7, 0.265, 0.4]
    """
    acc = np.asarray(acc, dtype=np.float64)
    if acc.ndim != 1 or acc.size < 2:
        raise ClamkitError(f"class accuracies have shape {acc.shape}: give a number for each of at least two classes.")
    bad = np.flatnonzero(~((acc >= 0) & (acc <= 1)))
    if bad.size:
        raise ClamkitError(
            f"the accuracy of class {bad[0]} is {acc[bad[0]]}: accuracies are fractions from 0 to 1 "
            f"({bad.size} of {acc.size} are not; divide percentages by 100, leave classes without samples out)."
        )
    return pd.Series(fairness_of_rows(acc, tail))


def fairness_of_rows(acc: np.ndarray, tail: float) -> dict[str, np.ndarray]:
    """The metrics of `fairness` over the last axis."""
    acc = np.sort(acc, axis=-1)
    k = tail_size(acc.shape[-1], tail)
    average, std = acc.mean(axis=-1), acc.std(axis=-1, ddof=1)
    worst, best = acc[..., :k].mean(axis=-1), acc[..., -k:].mean(axis=-1)
    with np.errstate(invalid="ignore"):  # nothing right in any class: 0 / 0 is nan
        cov = std / average
    return dict(zip(METRICS, (average, std, cov, acc[..., -1] - acc[..., 0], best - worst, worst, best), strict=True))
