"""Checks of single values: the value as it is used, or an error that names it."""

from __future__ import annotations

from math import inf, isfinite
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike

from clamkit.errors import ClamkitError


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


def fraction(value: float, name: str) -> float:
    """A number from 0 to 1."""
    if not 0 <= value <= 1:
        raise ClamkitError(f"{name}={value} is not allowed: it must lie between 0 and 1.")
    return float(value)


def step_size(tau: float) -> float:
    if not (isfinite(tau) and tau >= 0):
        raise ClamkitError(f"tau={tau} is not a step size: it must be a finite number ≥ 0 (the paper uses 1).")
    return float(tau)


def class_sizes(values: ArrayLike | None, num_classes: int, name: str) -> np.ndarray:
    """The size of each class, or its share of all, as floats; every class needs one above 0."""
    found = np.asarray([] if values is None else values, dtype=np.float64)
    if found.shape != (num_classes,) or not (np.isfinite(found) & (found > 0)).all():
        given = "None" if values is None else f"of shape {found.shape}, from {found.min(initial=np.inf):g}"
        raise ClamkitError(
            f"{name}={given}: give the number of training images of each of {num_classes} classes or groups, or its "
            "share of them, all above 0."
        )
    return found
