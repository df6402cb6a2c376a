"""Constrained simplices: what the min player may choose from (paper, section 4.1).

Each set S is convex, closed under permutation, holds the uniform distribution and offers the same five things:
`contains(w)`, `project(x, "euclidean" | "kl")`, `value(v)` = f(v) = min over S of w·v, `argmin(v)` and
`kl_diameter()` = max over S of KL(w‖uniform). Everything is float64, exact up to rounding and O(n log n).

Projecting puts the smallest entries of x on the lower bound of the set, the largest on the upper bound, and shifts
(Euclidean) or scales (KL) the rest equally. Where the cuts lie is one piecewise linear equation, which is evaluated at
all its breakpoints at once and then solved between two of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from clamkit.checks import of_classes, positive_int
from clamkit.errors import ClamkitError, check_known

PROJECTIONS = ("euclidean", "kl")
SUM_TOLERANCE = 1e-12  # a sum this close to 1 is 1 up to rounding
SMALLEST = np.finfo(np.float64).tiny  # below this, dividing by x overflows: such an x counts as zero


def normalise(x: np.ndarray) -> np.ndarray:
    """x / sum(x); x must be non-negative with a positive sum."""
    total = x.sum()
    if not 0 < total < np.inf or x.min() < 0:
        raise ClamkitError("a distribution needs non-negative entries with a positive, finite sum.")
    return x / total


def _cumulated(x: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, …, n entries."""
    return np.concatenate([[0.0], np.cumsum(x)])


def _clipped_sum(ascending: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Σ clip(x, low, high) for many pairs of bounds at once."""
    sums = _cumulated(ascending)
    below = np.searchsorted(ascending, low)
    above = np.maximum(np.searchsorted(ascending, high), below)
    return below * low + (ascending.size - above) * high + sums[above] - sums[below]


class SymmetricSet(ABC):
    """What the sets share. A subclass gives the four abstract parts."""

    n: int
    bounds: tuple[float, float] | None = None  # of each weight, where the set is given by such

    @abstractmethod
    def _inside(self, w: np.ndarray, tol: float) -> bool: ...

    @abstractmethod
    def _euclidean(self, x: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def _kl(self, x: np.ndarray) -> np.ndarray:
        """Up to a factor."""

    @abstractmethod
    def _vertex(self, v: np.ndarray) -> np.ndarray:
        """The minimiser of w·v, for v in ascending order."""

    def contains(self, w: ArrayLike, tol: float = 1e-9) -> bool:
        """Whether w sums to 1 and obeys the set's bounds, both up to `tol`."""
        w = of_classes(w, self.n, "w")
        return bool(abs(w.sum() - 1) <= tol and self._inside(w, tol))

    def project(self, x: ArrayLike, projection: str = "euclidean") -> np.ndarray:
        """The point of the set nearest to x, by Σ(w − x)² or by KL(w‖x).

        For "kl", x is non-negative and scaled to sum 1; where it is zero the result is the limit of x_i → 0+,
        the same small number for all such i. A point of the set comes back unchanged.
        """
        check_known("projection", projection, PROJECTIONS)
        x = of_classes(x, self.n, "x")
        if projection == "kl":
            x = normalise(x)
        if abs(x.sum() - 1) <= SUM_TOLERANCE and self._inside(x, 0):
            return x.copy()
        # adding a constant to x moves no Euclidean projection; this one keeps the largest entries precise
        w = self._euclidean(x - x.max()) if projection == "euclidean" else self._kl(np.where(x < SMALLEST, 0, x))
        return normalise(w)  # the sum is 1 up to rounding already

    def argmin(self, v: ArrayLike) -> np.ndarray:
        """A w of the set with the smallest w·v; the worse a class, the larger its weight."""
        v = of_classes(v, self.n, "v")
        order = np.argsort(v, kind="stable")
        w = np.empty(self.n)
        w[order] = self._vertex(v[order])
        return w

    def value(self, v: ArrayLike) -> float:
        """f(v) = min over the set of w·v."""
        ascending = np.sort(of_classes(v, self.n, "v"))
        return float(self._vertex(ascending) @ ascending)

    def kl_diameter(self) -> float:
        """D = max over the set of KL(w‖uniform) = max of Σ w ln(n w), reached at a vertex."""
        w = self._vertex(np.arange(self.n, dtype=np.float64))
        w = w[w > 0]
        return float(w @ np.log(self.n * w))


class LowerBounded(SymmetricSet):
    """{w ≥ u_min, Σw = 1}: the set of the paper's Algorithm 2; u_min = 0 is the whole simplex, None is 1/(2n).

    f(v) = u_min Σv + (1 − n·u_min) min v; for u_min = 1/(2n): ½ mean + ½ min.

    >>> LowerBounded(3, u_min=0.2).project([0.7, 0.3, 0.0]).round(2).tolist()
    [0.6, 0.2, 0.2]
    """

    def __init__(self, n: int, u_min: float | None = None):
        self.n = positive_int(n, "n")
        room = 1 / self.n
        u_min = room / 2 if u_min is None else u_min
        if not (0 <= u_min < room or self.n == u_min == 1):
            raise ClamkitError(
                f"u_min={u_min:g} leaves no room for {n} classes: it must be at least 0 and below 1/{n} = {room:g}. "
                f"The paper uses 1/(2n) = {room / 2:g}."
            )
        self.u_min = float(u_min)
        self.bounds = (self.u_min, np.inf)  # of each weight

    def _inside(self, w: np.ndarray, tol: float) -> bool:
        return bool(w.min() >= self.u_min - tol)

    def _euclidean(self, x: np.ndarray) -> np.ndarray:
        """max(x − θ, u_min), θ from Σw = 1 for the number of entries that stay above the floor."""
        free = 1 - self.n * self.u_min
        descending = np.sort(x)[::-1]
        thresholds = (np.cumsum(descending) - free) / np.arange(1, self.n + 1)
        kept = max(int(np.count_nonzero(descending >= thresholds)), 1)
        return np.maximum(x - thresholds[kept - 1], 0) + self.u_min

    def _kl(self, x: np.ndarray) -> np.ndarray:
        """max(c·x, u_min), c likewise."""
        descending = np.sort(x)[::-1]
        scales = (1 - np.arange(self.n - 1, -1, -1) * self.u_min) / np.cumsum(descending)
        kept = max(int(np.count_nonzero(scales * descending >= self.u_min)), 1)
        return np.maximum(scales[kept - 1] * x, self.u_min)

    def _vertex(self, v: np.ndarray) -> np.ndarray:
        w = np.full(self.n, self.u_min)
        w[0] += 1 - self.n * self.u_min
        return w


class Box(SymmetricSet):
    """{low ≤ w ≤ high, Σw = 1}. f(v) = low Σv + a greedy fill of (high − low) on the smallest v.

    >>> Box(3, low=0.2, high=0.5).project([0.9, 0.1, 0.0]).round(2).tolist()
    [0.5, 0.3, 0.2]
    """

    def __init__(self, n: int, low: float, high: float):
        self.n = positive_int(n, "n")
        room = 1 / self.n
        if not 0 <= low <= room <= high:
            none = f"no distribution over {n} classes has all weights in [{low:g}, {high:g}]"
            raise ClamkitError(f"{none}: low must be from 0 to 1/{n} = {room:g}, and high at least that.")
        self.low, self.high = self.bounds = float(low), min(float(high), 1.0)

    def _inside(self, w: np.ndarray, tol: float) -> bool:
        return bool(w.min() >= self.low - tol and w.max() <= self.high + tol)

    def _euclidean(self, x: np.ndarray) -> np.ndarray:
        """clip(x − θ, low, high), θ from Σw = 1."""
        ascending = np.sort(x)
        theta = np.sort(np.concatenate([ascending - self.high, ascending - self.low]), kind="stable")
        total = _clipped_sum(ascending, theta + self.low, theta + self.high) - self.n * theta
        return np.clip(x - np.interp(-1.0, -total, theta), self.low, self.high)

    def _kl(self, x: np.ndarray) -> np.ndarray:
        """clip(c·x, low, high), c from Σw = 1; zeros share what the others cannot hold."""
        ascending = np.sort(x)
        zeros = int(np.searchsorted(ascending, 0, "right"))
        positive, held = ascending[zeros:], (self.n - zeros) * self.high
        if held + zeros * self.low < 1:
            return np.where(x > 0, self.high, (1 - held) / max(zeros, 1))
        c = np.sort(np.concatenate([self.low / positive, self.high / positive]))
        c = c[c > 0]  # low = 0 needs no smaller c: the unclipped x would be in the set
        with np.errstate(over="ignore", invalid="ignore"):  # a bound beyond the largest float: c·x < low for all x
            total = np.nan_to_num(c * _clipped_sum(ascending, self.low / c, self.high / c), nan=self.n * self.low)
        return np.clip(np.interp(1.0, total, c) * x, self.low, self.high)

    def _vertex(self, v: np.ndarray) -> np.ndarray:
        gap = self.high - self.low
        return self.low + np.clip(1 - self.n * self.low - gap * np.arange(self.n), 0, gap)


class RatioBounded(SymmetricSet):
    """{max w ≤ ratio · min w, Σw = 1}: the set of the paper's practical section.

    Its vertices hold k classes at ratio·a and the rest at a = 1/(n − k + ratio·k), so with v ascending
    f(v) = min over k of [ratio Σ_{i≤k} v_i + Σ_{i>k} v_i] / (n − k + ratio·k).

    >>> RatioBounded(3, ratio=2.0).project([0.9, 0.1, 0.0]).round(2).tolist()
    [0.5, 0.25, 0.25]
    """

    def __init__(self, n: int, ratio: float):
        self.n = positive_int(n, "n")
        if not 1 <= ratio < np.inf:
            raise ClamkitError(f"ratio={ratio:g}: max w / min w is a finite number, at least 1.")
        self.ratio = float(ratio)

    def _inside(self, w: np.ndarray, tol: float) -> bool:
        return bool(w.min() >= -tol and w.max() <= self.ratio * w.min() + tol)

    def _euclidean(self, x: np.ndarray) -> np.ndarray:
        """clip(x, p, q) − θ, where p − θ = a and q − θ = ratio·a are the bounds w ends on.

        Optimality in a reads Σ(p − x)₊ = ratio Σ(x − q)₊ = level. As the level grows, p rises, q falls and so does
        Σw, until it is 1. Between two entries of x, p and q are linear in the level.
        """
        r, n = self.ratio, self.n
        ascending = np.sort(x)
        steps, count = ascending[1:] - ascending[:-1], np.arange(1, n)
        lifted = _cumulated(steps * count)  # Σ(p − x)₊ at p = each x, upwards
        lowered = _cumulated(steps[::-1] * (r * count))  # ratio Σ(x − q)₊ at q = each x, downwards
        level = np.sort(np.concatenate([lifted, lowered]), kind="stable")
        level = level[level <= min(lifted[-1], lowered[-1])]
        p, q = np.interp(level, lifted, ascending), np.interp(level, lowered, ascending[::-1])
        excess = (r - 1) * (x.sum() + level * (1 - 1 / r) - 1) - n * (r * p - q)  # (Σw − 1)·(ratio − 1)
        level = np.interp(0.0, -excess, level)
        w = np.clip(x, np.interp(level, lifted, ascending), np.interp(level, lowered, ascending[::-1]))
        w -= (w.sum() - 1) / n
        return np.maximum(w, w.max() / r)  # w ≥ a up to rounding; this keeps large ratios exact

    def _kl(self, x: np.ndarray) -> np.ndarray:
        """clip(x, b, ratio·b) / Z with Σ(ln b − ln x)₊ = ratio Σ(ln x − ln(ratio·b))₊."""
        r, log_r = self.ratio, np.log(self.ratio)
        if (x == 0).any():  # the limit: every positive entry is infinitely larger
            return np.where(x > 0, r, 1.0)
        ascending = np.sort(np.log(x))
        sums = _cumulated(ascending)
        p = np.sort(np.concatenate([ascending - log_r, ascending]), kind="stable")  # ln b
        below, above = np.searchsorted(ascending, p), np.searchsorted(ascending, p + log_r)
        lifted, lowered = below * p - sums[below], sums[-1] - sums[above] - (self.n - above) * (p + log_r)
        b = np.exp(np.interp(0.0, lifted - r * lowered, p))
        return np.clip(x, b, r * b)

    def _vertex(self, v: np.ndarray) -> np.ndarray:
        k, sums = np.arange(self.n + 1), _cumulated(v)
        best = np.argmin((self.ratio * sums + sums[-1] - sums) / (self.n - k + self.ratio * k))
        return normalise(np.where(k[1:] <= best, self.ratio, 1.0))

    def kl_diameter(self) -> float:
        """D = max over k of ln(n a) + k·ratio·a ln(ratio), a = 1/(n − k + ratio·k)."""
        k = np.arange(self.n + 1)
        a = 1 / (self.n - k + self.ratio * k)
        return float((np.log(self.n * a) + k * self.ratio * a * np.log(self.ratio)).max())


class Permutahedron(SymmetricSet):
    """The convex hull of all reorderings of w: the set behind GGF (paper, eq. 1 and 6). f(v) = Σ w↓_i v↑_i.

    Both projections are isotonic regressions along the descending order of x (Lim & Wright 2016; Blondel et al. 2020).

    >>> Permutahedron([0.5, 0.3, 0.2]).project([1.0, 0.0, 0.0]).round(2).tolist()
    [0.5, 0.25, 0.25]
    """

    def __init__(self, w: ArrayLike):
        self.n = positive_int(np.size(w), "the number of entries of w")
        self.w = np.sort(of_classes(w, self.n, "w"))[::-1]  # descending
        if self.w[-1] < 0 or abs(self.w.sum() - 1) > 1e-9:
            given = f"w has smallest entry {self.w[-1]:g} and sum {self.w.sum():g}"
            raise ClamkitError(f"{given}: it must be non-negative with sum 1 (divide it by its sum).")

    def _inside(self, w: np.ndarray, tol: float) -> bool:
        return bool((np.cumsum(np.sort(w)[::-1]) <= np.cumsum(self.w) + tol).all())

    def _euclidean(self, x: np.ndarray) -> np.ndarray:
        """x − (the non-increasing sequence nearest to x↓ − w↓)."""
        from scipy.optimize import isotonic_regression  # half a second to import, and only this set needs it

        order = np.argsort(-x)
        w = np.empty(self.n)
        w[order] = x[order] - isotonic_regression(x[order] - self.w, increasing=False).x
        return np.maximum(w, 0)

    def _kl(self, x: np.ndarray) -> np.ndarray:
        """x · (the non-decreasing sequence nearest to w↓/x↓, each entry counting x↓ times)."""
        from scipy.optimize import isotonic_regression

        order = np.argsort(-x)
        positive = np.count_nonzero(x)
        first, last = order[:positive], order[positive:]
        w = np.empty(self.n)
        w[first] = x[first] * isotonic_regression(self.w[:positive] / x[first], weights=x[first]).x
        w[last] = self.w[positive:].sum() / max(last.size, 1)
        return w

    def _vertex(self, v: np.ndarray) -> np.ndarray:
        return self.w
