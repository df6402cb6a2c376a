"""Checks of values: the value as it is used, or an error that names it."""

from __future__ import annotations

from math import inf
from numbers import Integral
from typing import Any

import numpy as np

from clamkit.errors import ClamkitError

FINITE = float(np.finfo(np.float64).max)


def positive_int(value: object, name: str) -> int:
    """`value` as an int of at least 1."""
    if not isinstance(value, Integral) or value < 1:
        raise ClamkitError(f"{name}={value}: it must be a whole number, at least 1.")
    return int(value)


def positive(value: float, name: str, hint: str = "") -> float:
    """A finite number above 0."""
    if not 0 < value < inf:
        raise ClamkitError(f"{name}={value:g}: it must be a finite number above 0. {hint}".rstrip())
    return float(value)


def non_negative(value: float, name: str, hint: str = "") -> float:
    """A finite number from 0 on."""
    if not 0 <= value < inf:
        raise ClamkitError(f"{name}={value}: it must be a finite number ≥ 0. {hint}".rstrip())
    return float(value)


def step_size(tau: float) -> float:
    return non_negative(tau, "tau", "The paper takes 1.")


def fraction(value: float, name: str, hint: str = "", *, below: float = inf) -> float:
    """A number from 0 to 1, and below `below`."""
    if not (0 <= value <= 1 and value < below):
        allowed = "between 0 and 1" if below > 1 else f"in [0, {below:g})"
        raise ClamkitError(f"{name}={value} is not allowed: it must lie {allowed}. {hint}".rstrip())
    return float(value)


def in_class_order(values: Any, num_classes: int, name: str) -> np.ndarray:
    """float64, of a list, an array, a tensor; of a Series or dict by its labels: `value_counts()` orders by size."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    if hasattr(values, "keys"):
        labels = {str(label): label for label in dict(values)}  # text in JSON
        if labels.keys() != set(map(str, range(num_classes))):
            raise ClamkitError(f"{name} has the labels {', '.join([*labels][:3])}, …, not the class numbers 0 to "
                               f"{num_classes - 1}: label it by these, or give a list in their order.")  # fmt: skip
        values = [values[labels[str(number)]] for number in range(num_classes)]
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ClamkitError(f"{name}: not numbers ({error}). Give one for each of {num_classes} classes.") from error


def of_classes(
    values: Any, num_classes: int, name: str, low: float = -FINITE, high: float = FINITE, *, nan: bool = False
) -> np.ndarray:
    """float64 [num_classes]: a number for each class from low to high, by default any finite one; or `nan`."""
    found = in_class_order(values, num_classes, name)
    if found.shape != (num_classes,):
        raise ClamkitError(f"{name} has shape {found.shape}: give one number for each of {num_classes} classes.")
    fits = (found >= low) & (found <= high)
    if not fits.all() and (bad := np.flatnonzero(~(fits | (np.isnan(found) & nan)))).size:
        ends = f" from {low:g}" * (low > -FINITE) + f" to {high:g} (not percent)" * (high < FINITE)
        raise ClamkitError(f"{name} of class {bad[0]} is {found[bad[0]]}: it must be a finite number{ends}.")
    return found


def class_sizes(values: Any, num_classes: int, name: str = "sizes", *, images: bool = False) -> np.ndarray:
    """The size of each class, or unless `images` its share of all, as floats; every class needs one above 0."""
    found = in_class_order([] if values is None else values, num_classes, name)
    if found.shape != (num_classes,) or not (np.isfinite(found) & (found > 0) & (found >= images)).all():
        given = "=None" if values is None else f" has shape {found.shape}, smallest {found.min(initial=np.inf):g}"
        least = "at least 1: numbers of images, not shares" if images else "above 0"
        raise ClamkitError(f"{name}{given}: give a size for each of {num_classes} classes or groups, all {least}.")
    return found


def check_labels(labels: np.ndarray, num_classes: int, name: str = "labels") -> None:
    """Refuse what is no class number, and numbers beyond 0 … num_classes − 1."""
    if labels.dtype.kind not in "iub":
        raise ClamkitError(f"{name} are of type {labels.dtype}: give class numbers from 0 to {num_classes - 1}.")
    if labels.size and (labels.min() < 0 or labels.max() >= num_classes):
        ends = f"from {labels.min()} to {labels.max()}: with {num_classes} classes"
        raise ClamkitError(f"{name} run {ends} they must lie in 0..{num_classes - 1}.")
