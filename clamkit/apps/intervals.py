"""How sure is what some test images say of one model's classes: the accuracy of each, its change, their spread.

The images are what was drawn here; where several seeds were trained, `clamkit.metrics.statistics` goes by these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.ndimage import zoom
from scipy.special import expit, logit, ndtri

from clamkit.metrics.accuracy import METRICS, TAIL, fairness_of_rows, tail_size
from clamkit.metrics.statistics import holm

SPREADS = np.array([0, 0.25, 0.5, 0.7, 0.85, 1, 1.15, 1.35, 1.7, 2.2, 3])  # of the logits, 1: as they came out
CUTS = np.array([0, 0.4, 0.7, 0.9, 1])  # how far the lowest limit, and the highest, are moved to the mean
CAUTION = 0.25  # less than the level is rejected: the truth may have a shape that is not among those tried
DRAWS = (60, 400)  # fewest and most samples of each
BUDGET = 1_500_000  # class accuracies drawn in all, unless the fewest samples need more
BETWEEN = 50  # values between each two that were tried: they bend little, however narrow the interval is


def wilson(right: ArrayLike, seen: ArrayLike, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval (low, high) of each class's accuracy: right of seen images."""
    right, seen = np.asarray(right, dtype=np.float64), np.asarray(seen, dtype=np.float64)
    z = ndtri((1 + confidence) / 2)
    centre = (right + z**2 / 2) / (seen + z**2)
    half = z / (seen + z**2) * np.sqrt(right * (seen - right) / seen + z**2 / 4)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def sampling_std(right: ArrayLike, seen: ArrayLike) -> float:
    """The std over classes that comes from the number of images alone: √ mean of v(1 − v)/(n − 1), which is unbiased
    for the variance of v. A class with one image takes v̄(1 − v̄), v̄ the mean over the classes.
    """
    seen = np.asarray(seen)
    v = np.asarray(right) / seen
    alone = seen == 1
    variance = np.where(alone, v.mean() * (1 - v.mean()), v * (1 - v) / np.where(alone, 1, seen - 1))
    return float(np.sqrt(np.mean(variance)))


def class_changes(
    right: ArrayLike, seen: ArrayLike, right_after: ArrayLike, seen_after: ArrayLike, lost: Any = None, won: Any = None
) -> pd.DataFrame:
    """Did the accuracy of each class change? One row a class: change, p, p_holm, q.

    lost, won  images that were right before and wrong after, and the other way round, where the images are the same:
               p is McNemar's exact test, which looks at these alone. Without them p is Fisher's exact test of two
               independent samples.
    p_holm, q  p corrected for the number of classes: after Holm (no false alarm among the classes named, with
               probability 1 − level) and after Benjamini and Hochberg (a share ≤ level of the classes named is false)
    """
    from scipy.stats import binom, false_discovery_control, fisher_exact  # a second, and only comparisons need it

    right, seen, right_after, seen_after = map(np.asarray, (right, seen, right_after, seen_after))
    if lost is not None:
        lost, won = np.asarray(lost), np.asarray(won)
        p = np.minimum(1, 2 * binom.cdf(np.minimum(lost, won), lost + won, 0.5))
    else:
        tables = np.array([[right, seen - right], [right_after, seen_after - right_after]]).transpose(2, 0, 1)
        p = np.array([fisher_exact(table).pvalue for table in tables])
    change = right_after / seen_after - right / seen
    return pd.DataFrame({"change": change, "p": p, "p_holm": holm(p), "q": false_discovery_control(p)})


def fairness_intervals(
    right: ArrayLike, seen: ArrayLike, confidence: float = 0.95, *, tail: float = TAIL, seed: int = 0
) -> pd.DataFrame:
    """low and high of each metric of `fairness` for these classes, had there been images without end.

    The std, range and tails of finite samples are biased: noise spreads the classes. So a percentile bootstrap, which
    adds the noise once more, misses. Instead many true accuracies are tried, and samples of the same sizes drawn of
    each. The interval of a metric has those under which what was seen is no outlier: a test, inverted. Tried are those
    seen with their logits (half an image right and half a wrong one added) spread from not at all to 3 times as far;
    and, for classes that are more alike than they look, every class at the end of its own Wilson interval (for all
    classes at once) that is farther from the mean, cut off at a lowest and a highest accuracy.

    The true worst tenth has no lower mean in the sample than the tenth that came out worst, so the outer ends of tails
    and ranges are at least those of Wilson intervals added up (Newcombe). The average, which nothing biases, has the
    wider of that and the normal interval.
    """
    right, seen = np.asarray(right, dtype=np.float64), np.asarray(seen, dtype=np.int64)
    v, generator, n = right / seen, np.random.default_rng(seed), len(right)
    mean = v.mean().clip(0.5 / (seen.sum() + 1), 1 - 0.5 / (seen.sum() + 1))
    z = logit((right + 0.5) / (seen + 1))
    lows, highs = wilson(right, seen, 1 - (1 - confidence) / n)
    lowest = lows.min() + CUTS[:, None, None] * (mean - lows.min())
    highest = highs.max() + CUTS[:, None] * (mean - highs.max())
    families = (
        _with_mean(SPREADS[:, None] * (z - z.mean()), mean),
        np.clip(np.where(v < mean, lows, highs), lowest, highest),
    )
    draws = int(np.clip(BUDGET // sum(tried.size for tried in families), *DRAWS))
    level, observed = CAUTION * (1 - confidence) / 2, fairness_of_rows(v, tail)
    kept: dict[str, list[np.ndarray]] = {metric: [] for metric in METRICS}
    for tried in families:
        drawn = [
            fairness_of_rows(generator.binomial(seen, row, (draws, n)) / seen, tail) for row in tried.reshape(-1, n)
        ]
        for metric, true in fairness_of_rows(tried, tail).items():
            quantiles = np.quantile([np.nan_to_num(of[metric]) for of in drawn], (level, 1 - level), axis=1)
            low, high = (_finer(quantile.reshape(true.shape)) for quantile in quantiles)
            outside = np.maximum(low - np.nan_to_num(observed[metric]), np.nan_to_num(observed[metric]) - high)
            kept[metric].append(np.array([_finer(np.nan_to_num(true)), outside]))
    rows = {}
    for metric, parts in kept.items():
        true, outside = np.concatenate(parts, axis=1)
        rows[metric] = true[outside <= max(0.0, outside.min()) + 1e-12]  # if all reject it, the nearest
    found = pd.DataFrame({metric: [values.min(), values.max()] for metric, values in rows.items()}, ["low", "high"]).T
    smooth = expit(z)
    half = ndtri((1 + confidence) / 2) * np.sqrt((smooth * (1 - smooth) / np.maximum(seen - 1, 1)).sum()) / n
    return _outer_ends(found, v, wilson(right, seen, confidence), half, tail)


def _with_mean(z: np.ndarray, mean: float) -> np.ndarray:
    """Accuracies of logits, each row moved so that its mean is this; by bisection."""
    low, high = np.full((len(z), 1), -40.0), np.full((len(z), 1), 40.0)
    for _ in range(50):
        middle = (low + high) / 2
        above = expit(z + middle).mean(axis=1, keepdims=True) > mean
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return expit(z + low)


def _finer(values: np.ndarray) -> np.ndarray:
    """Values on a line or a grid with many between each two, flat; linear."""
    size = [BETWEEN * (length - 1) + 1 for length in values.shape]
    return zoom(values, np.divide(size, values.shape), order=1).ravel()


def _outer_ends(
    found: pd.DataFrame, v: np.ndarray, ends: tuple[np.ndarray, np.ndarray], half: float, tail: float
) -> pd.DataFrame:
    """The average, and the ends of tails and ranges that selection does not bias inward, by Wilson intervals summed."""
    order, k = np.argsort(v, kind="stable"), tail_size(len(v), tail)
    lower, upper = v - ends[0], ends[1] - v

    def summed(sides: np.ndarray) -> float:
        return float(np.sqrt((sides**2).sum()) / len(sides))

    down, up = max(half, summed(lower)), max(half, summed(upper))
    found.loc["average"] = [v.mean() - down, v.mean() + up]
    alike = pd.DataFrame({"low": [0.0, -down], "high": [up, 0.0]}, ["worst", "best"])
    found.loc[alike.index] += alike  # classes that are alike are all where the average is, which is not known either
    for metric, size in (("decile_range", k), ("range", 1)):
        worst, best = order[:size], order[-size:]
        far = v[best].mean() - v[worst].mean() + np.hypot(summed(lower[worst]), summed(upper[best]))
        found.loc[metric, "high"] = max(found.loc[metric, "high"], far)
        if size == k:
            found.loc["worst", "low"] = min(found.loc["worst", "low"], v[worst].mean() - summed(lower[worst]))
            found.loc["best", "high"] = max(found.loc["best", "high"], v[best].mean() + summed(upper[best]))
    one = max(v.mean() - ends[0][order[0]], ends[1][order[-1]] - v.mean())  # all alike but one, at its own limit
    found.loc["std", "high"] = max(found.loc["std", "high"], one / np.sqrt(len(v)))
    bounded = [metric for metric in METRICS if metric != "cov"]
    found.loc[bounded] = found.loc[bounded].clip(0, 1)
    return found
