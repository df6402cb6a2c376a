"""What a run's history says: fairness over the epochs, when the weights settle, in which order they end."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.errors import ClamkitError, unknown
from clamkit.metrics.accuracy import TAIL, checked_accuracies, fairness_of_rows

TIE = 1e-9  # weights (mean 1) and accuracies nearer than this are equal: rounding errors make no order


def fairness_over_epochs(history: pd.DataFrame, column: str = "test_accuracy", tail: float = TAIL) -> pd.DataFrame:
    """`fairness` of every epoch of a run's history: a frame indexed by epoch, one column for each metric."""
    wide = _epochs_by_classes(history, column)
    acc = checked_accuracies(wide, classes=wide.columns, rows=[f"epoch {epoch}" for epoch in wide.index])
    return pd.DataFrame(fairness_of_rows(acc, tail), index=wide.index)


def order_agreement(weights: ArrayLike, accuracies: ArrayLike) -> float:
    """Spearman rank correlation of class weights and class accuracies, from −1 to 1.

    −1: the order is reversed, the worst class has the largest weight, as the paper says of converged runs (§5.2).
    Values nearer than TIE share their mean rank; nan where all weights or all accuracies are equal.
    """
    weights, accuracies = np.asarray(weights, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    if weights.shape != accuracies.shape or weights.ndim != 1 or weights.size < 2:
        raise ClamkitError(
            f"weights {weights.shape} and accuracies {accuracies.shape} must be two vectors over the same classes, "
            "at least two."
        )
    if not (np.isfinite(weights).all() and np.isfinite(accuracies).all()):
        raise ClamkitError("weights or accuracies are not all finite: leave classes without samples out.")
    a, b = (pd.Series(_levels(values, TIE)).rank().to_numpy() for values in (weights, accuracies))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    return float(np.corrcoef(a, b)[0, 1])


def settling_epoch(history: pd.DataFrame, tolerance: float = TIE) -> int:
    """First epoch from which the order of the class weights no longer changes, to the end of the run.

    The order of an epoch is its ranking with ties: sorted by weight, neighbours that are at most `tolerance` apart are
    tied. Epoch e has settled if every epoch from e on has the ranking of the last; becoming tied, or ceasing to be, is
    a change. The last epoch means that the order was still changing; the first, that it never did (uniform weights).
    With many classes some pair of near-equal ones swaps until the end: keep the rows of a few classes, as the paper's
    figures do, or raise `tolerance` (weights have mean 1).
    """
    if not tolerance >= 0:
        raise ClamkitError(f"tolerance={tolerance} must be a difference of weights, 0 or more.")
    wide = _epochs_by_classes(history, "weight")
    levels = _levels(wide.to_numpy(dtype=np.float64), tolerance)
    differs = np.flatnonzero((levels != levels[-1]).any(axis=1))
    return int(wide.index[differs[-1] + 1 if differs.size else 0])


def _levels(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Rank of each value along the last axis, from 0, without gaps; neighbours at most `tolerance` apart share one."""
    order = np.argsort(values, axis=-1, kind="stable")
    steps = np.diff(np.take_along_axis(values, order, axis=-1), axis=-1) > tolerance
    ranks = np.concatenate([np.zeros_like(order[..., :1]), np.cumsum(steps, axis=-1)], axis=-1)
    levels = np.empty_like(order)
    np.put_along_axis(levels, order, ranks, axis=-1)
    return levels


def _epochs_by_classes(history: pd.DataFrame, column: str) -> pd.DataFrame:
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
