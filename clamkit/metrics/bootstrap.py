"""Intervals for the spread over classes and its tails, which sampling makes look wider than they are."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import ndtri

from clamkit.metrics.accuracy import METRICS, TAIL, fairness_of_rows

SPREADS = np.linspace(0, 3, 13)  # how far the classes may lie apart, 1: as far as they came out
CUTS = np.linspace(0, 1, 7)  # how far the worst (or the best) are moved to the mean
CAUTION = 0.5  # a little less than the level is rejected: the truth may have a shape that is not among those tried
DRAWS = (200, 400)  # fewest and most samples of each
BUDGET = 4_000_000  # class accuracies drawn in all, unless the fewest samples need more


def fairness_intervals(
    right: ArrayLike, seen: ArrayLike, confidence: float = 0.95, *, tail: float = TAIL, seed: int = 0
) -> pd.DataFrame:
    """low and high of each metric of `fairness` for these classes, had there been images without end.

    The std, range and tails of finite samples are biased: noise spreads the classes. So a percentile bootstrap, which
    adds the noise once more, misses. Instead many true accuracies are tried: those seen (with half an image right and
    half a wrong one added) spread from not at all to 3 times as far, and with the worst or the best classes cut off
    at a level. Of each, samples of the same sizes are drawn. The interval of a metric has those under which what was
    seen is no outlier: a test, inverted. The average has no such bias, and its interval is normal.
    """
    right, seen = np.asarray(right, dtype=np.float64), np.asarray(seen, dtype=np.int64)
    v, smooth, generator = right / seen, (right + 0.5) / (seen + 1), np.random.default_rng(seed)
    mean = smooth.mean()
    families = (
        np.clip(mean + SPREADS[:, None] * (smooth - mean), 0, 1),
        np.maximum(smooth, smooth.min() + CUTS[:, None] * (mean - smooth.min())),
        np.minimum(smooth, smooth.max() + CUTS[:, None] * (mean - smooth.max())),
    )
    draws = int(np.clip(BUDGET // (sum(map(len, families)) * len(v)), *DRAWS))
    level, observed = CAUTION * (1 - confidence) / 2, fairness_of_rows(v, tail)
    kept: dict[str, list[np.ndarray]] = {metric: [] for metric in METRICS}
    for tried in families:
        drawn = [fairness_of_rows(generator.binomial(seen, row, (draws, len(v))) / seen, tail) for row in tried]
        for metric, true in fairness_of_rows(tried, tail).items():
            low, high = np.quantile([np.nan_to_num(of[metric]) for of in drawn], (level, 1 - level), axis=1)
            outside = np.maximum(low - np.nan_to_num(observed[metric]), np.nan_to_num(observed[metric]) - high)
            kept[metric].append(_finer(true, outside))
    rows = {}
    for metric, parts in kept.items():
        true, outside = np.concatenate(parts, axis=1)
        rows[metric] = true[outside <= max(0.0, outside.min()) + 1e-12]  # if all reject it, the nearest
    half = ndtri((1 + confidence) / 2) * np.sqrt((smooth * (1 - smooth) / seen).sum()) / len(v)
    rows["average"] = np.array([v.mean() - half, v.mean() + half])
    found = pd.DataFrame({metric: [values.min(), values.max()] for metric, values in rows.items()}, ["low", "high"]).T
    found.loc["worst", "high"] += half  # classes that are alike are all where the average is, which is not known
    found.loc["best", "low"] -= half
    bounded = [metric for metric in METRICS if metric != "cov"]
    found.loc[bounded] = found.loc[bounded].clip(0, 1)
    return found


def _finer(true: np.ndarray, outside: np.ndarray, between: int = 100) -> np.ndarray:
    """Both with many values between each two that were tried: they bend little, however narrow the interval is."""
    places = np.arange(len(true))
    fine = np.linspace(0, len(true) - 1, between * (len(true) - 1) + 1)
    return np.array([np.interp(fine, places, true), np.interp(fine, places, outside)])
