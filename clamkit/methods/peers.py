"""The peers of CLAM: weights that are given, and other people's rules for moving them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clamkit import paths
from clamkit.errors import ClamkitError, unknown
from clamkit.methods.weighters import Weighter


class Fixed(Weighter):
    """Class weights that are given and stay, scaled to sum to n.

    class_weights  a number for each class; a .json or .npy file of them; or a run, of which
    weights_of     "mean" (default) takes the mean over its epochs, the averaged strategy of the paper's Algorithm 1,
                   and "last" the weights that its last epoch had
    """

    def __init__(
        self,
        num_classes: int,
        class_weights: ArrayLike | str | os.PathLike | Any = None,
        weights_of: str | None = None,
        **common: Any,
    ):
        super().__init__(num_classes, **common)
        self.source, given = _read_weights(class_weights, weights_of)
        if given.shape != (num_classes,):
            shape = given.shape
            raise ClamkitError(f"{self.source} has shape {shape}: give a weight for each of {num_classes} classes.")
        bad = np.flatnonzero(~(np.isfinite(given) & (given >= 0)))
        if bad.size or not given.any():
            what = f"gives class {bad[0]} the weight {given[bad[0]]}" if bad.size else "is zero for every class"
            raise ClamkitError(f"{self.source} {what}: weights are finite numbers ≥ 0, at least one of them above 0.")
        self.set_weights(given / given.max() / (given / given.max()).sum())  # the largest first: no sum overflows

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return w

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        before = self.weights.clone()
        super()._load_from_state_dict(*args, **kwargs)
        if not np.allclose(before, self.weights, rtol=1e-9, atol=1e-12):
            raise ClamkitError(
                f"what is loaded was begun with other class weights than {self.source} gives now: restore them, or "
                "start anew."
            )


def _read_weights(given: Any, weights_of: str | None) -> tuple[str, np.ndarray]:
    """(what it is called in errors, the weights as given)"""
    if weights_of not in (None, "mean", "last"):
        raise unknown("choice of weights_of", weights_of, ("mean", "last"))
    if given is None:
        raise ClamkitError(
            "method 'fixed' needs class_weights=: a number for each class, a .json or .npy file of them, or the folder "
            "of a finished run."
        )
    if hasattr(given, "wide"):  # a run
        weights = given.wide("weight").to_numpy()
        return f"the run {given.name}", weights[-1] if weights_of == "last" else weights.mean(axis=0)
    if weights_of is not None:
        raise ClamkitError(f"weights_of={weights_of!r} chooses among the epochs of a run: give class_weights= a run.")
    name = "class_weights"
    try:
        if isinstance(given, str | os.PathLike):
            path = Path(os.path.expanduser(given))
            name = paths.shown(path)
            given = np.load(path, allow_pickle=False) if path.suffix == ".npy" else json.loads(path.read_bytes())
        return name, np.array([float(weight) for weight in given])
    except (OSError, EOFError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ClamkitError(
            f"{name} cannot be read as class weights ({error}): give a number for each class, a .json or .npy file of "
            "such a list, or a finished run."
        ) from error
