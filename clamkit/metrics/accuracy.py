"""Class accuracies and how evenly they are spread (paper, appendix "Evaluation Metrics"); the same for every epoch.

Accuracies are fractions from 0 to 1 everywhere; the paper prints percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.checks import check_labels
from clamkit.errors import ClamkitError, check_known

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


def checked_accuracies(acc: ArrayLike, classes: Any = None, rows: Sequence[str] | None = None) -> np.ndarray:
    """Checked float64 array: a vector over classes or, where `rows` names the rows, rows × classes."""
    acc = np.asarray(acc, dtype=np.float64)
    if acc.ndim != (1 if rows is None else 2) or acc.shape[-1] < 2:
        raise ClamkitError(f"class accuracies have shape {acc.shape}: give a number for each of at least two classes.")
    bad = np.argwhere(~((acc >= 0) & (acc <= 1)))
    if bad.size:
        place = bad[0][-1] if classes is None else classes[bad[0][-1]]
        where = "" if rows is None else f" in {rows[bad[0][0]]}"
        raise ClamkitError(
            f"the accuracy of class {place}{where} is {acc[tuple(bad[0])]}: accuracies are fractions from 0 to 1 "
            f"({len(bad)} of {acc.size} are not; divide percentages by 100, leave classes without samples out)."
        )
    return acc


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
    decile_range  mean of the best tail − mean of the worst tail: what the paper's tables print as "range", and what
                  claims about them are checked by
    worst, best   the tail means

    >>> fairness([0.9, 0.8, 0.4])[["average", "std", "worst"]].round(3).tolist()
    [0.7, 0.265, 0.4]
    """
    return pd.Series(fairness_of_rows(checked_accuracies(acc), tail))


def fairness_of_rows(acc: np.ndarray, tail: float) -> dict[str, np.ndarray]:
    """The metrics of `fairness` over the last axis."""
    acc = np.sort(acc, axis=-1)
    k = tail_size(acc.shape[-1], tail)
    average, std = acc.mean(axis=-1), acc.std(axis=-1, ddof=1)
    worst, best = acc[..., :k].mean(axis=-1), acc[..., -k:].mean(axis=-1)
    with np.errstate(invalid="ignore"):  # nothing right in any class: 0 / 0 is nan
        cov = std / average
    return dict(zip(METRICS, (average, std, cov, acc[..., -1] - acc[..., 0], best - worst, worst, best), strict=True))


def fairness_over_epochs(history: pd.DataFrame, column: str = "test_accuracy", tail: float = TAIL) -> pd.DataFrame:
    """`fairness` of every epoch of a run's history: a frame indexed by epoch, one column for each metric."""
    wide = epochs_by_classes(history, column)
    acc = checked_accuracies(wide, classes=wide.columns, rows=[f"epoch {epoch}" for epoch in wide.index])
    return pd.DataFrame(fairness_of_rows(acc, tail), index=wide.index)


def epochs_by_classes(history: pd.DataFrame, column: str) -> pd.DataFrame:
    for name in ("epoch", "class", column):
        check_known("history column", name, history)
    if not len(history):
        raise ClamkitError("the history has no rows: train at least one epoch.")
    if not np.isfinite(history[["epoch", "class"]].to_numpy(dtype=np.float64)).all():
        raise ClamkitError("the history has epochs or classes that are no numbers: give it as a run has it.")
    twice = history.duplicated(["epoch", "class"])
    if twice.any():
        epoch, klass = history.loc[twice, ["epoch", "class"]].iloc[0]
        raise ClamkitError(f"epoch {epoch} has class {klass} twice: give the history of one run.")
    wide = history.pivot(index="epoch", columns="class", values=column)
    if wide.size != len(history):
        few = history.groupby("epoch").size().idxmin()
        raise ClamkitError(f"epoch {few} lacks some of the {wide.shape[1]} classes: every epoch needs the same ones.")
    return wide
