"""What a run's history says: fairness over the epochs, whether the worst classes weigh most, and come to rest."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.checks import fraction
from clamkit.errors import ClamkitError, unknown
from clamkit.metrics.accuracy import TAIL, checked_accuracies, fairness_of_rows

TIE_TOLERANCE = 1e-9  # weights (mean 1) and accuracies nearer than this are equal: rounding errors make no order


def fairness_over_epochs(history: pd.DataFrame, column: str = "test_accuracy", tail: float = TAIL) -> pd.DataFrame:
    """`fairness` of every epoch of a run's history: a frame indexed by epoch, one column for each metric."""
    wide = epochs_by_classes(history, column)
    acc = checked_accuracies(wide, classes=wide.columns, rows=[f"epoch {epoch}" for epoch in wide.index])
    return pd.DataFrame(fairness_of_rows(acc, tail), index=wide.index)


def order_agreement(weights: ArrayLike, accuracies: ArrayLike) -> float:
    """Spearman rank correlation of class weights and class accuracies, from −1 to 1.

    −1: the order is reversed, the worst class has the largest weight, as the paper says of converged runs (§5.2).
    Values nearer than TIE_TOLERANCE share their mean rank; nan where all weights or all accuracies are equal.
    """
    weights, accuracies = np.asarray(weights, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    if weights.shape != accuracies.shape or weights.ndim != 1 or weights.size < 2:
        raise ClamkitError(
            f"weights {weights.shape} and accuracies {accuracies.shape} must be two vectors over the same classes, "
            "at least two."
        )
    if not (np.isfinite(weights).all() and np.isfinite(accuracies).all()):
        raise ClamkitError("weights or accuracies are not all finite: leave classes without samples out.")
    a, b = (pd.Series(levels(values, TIE_TOLERANCE)).rank().to_numpy() for values in (weights, accuracies))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    return float(np.corrcoef(a, b)[0, 1])


def late_move(history: pd.DataFrame, share: float = 0.25) -> float:
    """How far the weights still move at the end of a run, from 0 (at rest) to 1: an absolute measure.

    The total variation ½ Σ|w' − w| between the weights of one epoch and the next, as distributions: the part of all
    weight that changes class. Its mean over the last quarter (`share`) of the moves, at least one; nan for one epoch.
    """
    wide = epochs_by_classes(history, "weight").to_numpy(dtype=np.float64)
    w = wide / wide.sum(axis=1, keepdims=True)
    moves = np.abs(np.diff(w, axis=0)).sum(axis=1) / 2
    last = max(1, round(fraction(share, "share") * len(moves)))
    return float(moves[-last:].mean()) if len(moves) else np.nan


def levels(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Rank of each value, from 0, without gaps; neighbours at most `tolerance` apart share one."""
    order = np.argsort(values, kind="stable")
    ranks = np.zeros_like(order)
    ranks[order[1:]] = np.cumsum(np.diff(values[order]) > tolerance)
    return ranks


def epochs_by_classes(history: pd.DataFrame, column: str) -> pd.DataFrame:
    for name in ("epoch", "class", column):
        if name not in history:
            raise unknown("history column", name, map(str, history.columns))
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
