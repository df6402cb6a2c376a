"""Constrained simplices: what the min player may choose from (paper, section 4.1).

Each set S is closed under permutation and offers the same four things:
`contains(w)`, `project(x, "euclidean" | "kl")`, `value(v)` = f(v) = min over S of w·v, and `argmin(v)`.
Everything is float64, exact up to rounding and O(n log n) through one sort.
"""

from __future__ import annotations

import numpy as np

from clamkit.errors import ClamkitError, unknown

METRICS = ("euclidean", "kl")


def _vector(x, n: int, name: str) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.shape != (n,):
        raise ClamkitError(f"{name} has shape {x.shape}: it must be a vector of {n} numbers, one for each class.")
    if not np.isfinite(x).all():
        raise ClamkitError(f"{name} holds nan or infinite entries: all {n} numbers must be finite.")
    return x


def normalise(x: np.ndarray) -> np.ndarray:
    """x / sum(x); x must be non-negative with a positive sum."""
    total = x.sum()
    if (x < 0).any() or not total > 0:
        raise ClamkitError("a distribution needs non-negative entries with a positive sum.")
    return x / total


def multiplicative_weights(w: np.ndarray, v: np.ndarray, tau: float) -> np.ndarray:
    """One hedge step x = w·exp(−τv) / Z (paper, eq. 6 before the projection).

    v is shifted by its minimum first, so that a large τ cannot turn every entry into zero.
    """
    if not (np.isfinite(tau) and tau >= 0):
        raise ClamkitError(f"tau={tau} is not a step size: it must be a finite number ≥ 0 (the paper uses 1).")
    alive = w > 0  # the shift is by the smallest v that still carries weight
    return normalise(w * np.exp(-tau * np.clip(v - v[alive].min(), 0, None)))


class LowerBounded:
    """{w ≥ u_min, Σw = 1}: the set of the paper's Algorithm 2; u_min = 0 is the whole simplex."""

    def __init__(self, n: int, u_min: float):
        if n < 1:
            raise ClamkitError(f"n={n} classes: there must be at least one.")
        room = 1 / n
        if not 0 <= u_min < room and not (n == 1 and u_min <= 1):
            raise ClamkitError(
                f"u_min={u_min:g} leaves no room for {n} classes: it must be at least 0 and below 1/{n} = {room:g}. "
                f"The paper uses 1/(2n) = {room / 2:g}."
            )
        self.n, self.u_min = int(n), float(u_min)

    def contains(self, w, tol: float = 1e-9) -> bool:
        w = _vector(w, self.n, "w")
        return bool(abs(w.sum() - 1) <= tol and w.min() >= self.u_min - tol)

    def project(self, x, metric: str = "euclidean") -> np.ndarray:
        """The nearest point of the set: max(x − θ, u_min), or by KL(w‖x) max(c·x, u_min)."""
        if metric not in METRICS:
            raise unknown("projection", metric, METRICS)
        x = _vector(x, self.n, "x")
        return self._euclidean(x) if metric == "euclidean" else self._kl(normalise(x))

    def _euclidean(self, x: np.ndarray) -> np.ndarray:
        free = 1 - self.n * self.u_min  # mass above the floor, to be placed as on a plain simplex
        descending = np.sort(x - self.u_min)[::-1]
        thresholds = (np.cumsum(descending) - free) / np.arange(1, self.n + 1)
        theta = thresholds[np.flatnonzero(descending > thresholds)[-1]] if free > 0 else descending[0]
        return np.maximum(x - self.u_min - theta, 0) + self.u_min

    def _kl(self, x: np.ndarray) -> np.ndarray:
        descending = np.sort(x)[::-1]
        kept = np.arange(1, self.n + 1)  # how many of the largest entries stay above the floor
        scales = (1 - (self.n - kept) * self.u_min) / np.cumsum(descending)
        above = np.flatnonzero(scales * descending >= self.u_min)
        return np.maximum(scales[above[-1]] * x, self.u_min) if above.size else np.full(self.n, 1 / self.n)

    def argmin(self, v) -> np.ndarray:
        """A w of the set with the smallest w·v: the floor everywhere, the rest on the worst class."""
        w = np.full(self.n, self.u_min)
        w[np.argmin(_vector(v, self.n, "v"))] += 1 - self.n * self.u_min
        return w

    def value(self, v) -> float:
        """f(v) = u_min Σv + (1 − n·u_min) min v; for u_min = 1/(2n): ½ mean + ½ min."""
        v = _vector(v, self.n, "v")
        return float(self.u_min * v.sum() + (1 - self.n * self.u_min) * v.min())

    def kl_diameter(self) -> float:
        """D = max over the set of KL(w‖uniform), reached at a vertex."""
        top = 1 - (self.n - 1) * self.u_min
        floor = (self.n - 1) * self.u_min * np.log(self.n * self.u_min) if self.u_min > 0 else 0.0
        return float(top * np.log(self.n * top) + floor)


def clip_renormalise(x, low: float, high: float = np.inf) -> np.ndarray:
    """clip(x, low, high) / Z, the map of the paper's proof (high = ∞) and of the released code.

    Not a projection: the result may leave [low, high]. With u_min = 1/6,
    (.7, .25, .05) goes to (.627, .224, .149).
    """
    return normalise(np.clip(np.asarray(x, dtype=np.float64), low, high))
