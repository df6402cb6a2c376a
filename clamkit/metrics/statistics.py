"""Is one method better than another? Paired tests, intervals, corrections, and the one rule that makes a verdict.

scipy.stats takes a second to import, so the functions that need it import it when called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.errors import ClamkitError, unknown
from clamkit.metrics.accuracy import HIGHER_IS_BETTER, METRICS

LEVEL = 0.05  # of significance, after correction
PAIR = ("crop_lower_bound", "seed")  # two runs that share these are compared with each other
DIGITS = 12  # differences are rounded here, so that 0.3 − 0.2 and 0.2 − 0.1 have one rank
Sample = pd.DataFrame | pd.Series | ArrayLike  # what `compare` takes on either side

SUPPORTED, OPPOSITE, NOT_SUPPORTED, NOT_DECIDABLE = "supported", "the opposite", "not supported", "not decidable"


def decide(toward: bool, p: float, smallest_p: float, *, interval_toward: bool = False, level: float = LEVEL) -> str:
    """The verdict on a claim. Every table, notebook and page uses this rule.

    toward           whether the effect (that of the test: by ranks) has the sign that the claim gives it
    p                of the effect, corrected for the number of claims
    smallest_p       the smallest p that so few pairs could give at all, corrected likewise
    interval_toward  whether the effect's whole interval lies on the side of the claim

    supported, the opposite   p passes, and the effect points that way
    not decidable             no outcome of so few pairs could pass; or the interval says yes and the test does not
    not supported             neither
    """
    if p <= level:
        return SUPPORTED if toward else OPPOSITE
    return NOT_DECIDABLE if smallest_p > level or interval_toward else NOT_SUPPORTED


def smallest_p(pairs: int, claims: int = 1) -> float:
    """The least that a two-sided signed-rank test of so many pairs can give, times the number of claims."""
    return claims * 2.0 ** (1 - pairs)


def compare(
    a: Sample,
    b: Sample,
    *,
    metrics: str | Sequence[str] | None = None,
    on: str | Sequence[str] = PAIR,
    names: tuple[str, str] = ("a", "b"),
    confidence: float = 1 - LEVEL,
    resamples: int = 10_000,
    seed: int = 0,
) -> pd.DataFrame:
    """Is a different from b? Paired over (crop lower bound, seed), one row for each metric.

    a, b       two frames with the columns of `on` and of `metrics` (default: those of METRICS that both have), such as
               the rows of RunStore.frame() of two methods; or two Series, paired by index; or two vectors, by position
    names      what the verdict calls them

    n                 pairs
    mean_difference   mean of a − b, and ci_low, ci_high: its percentile bootstrap interval over the pairs
    p, p_holm         two-sided Wilcoxon signed-rank test (pairs without a difference dropped), and corrected for the
                      number of metrics after Holm
    effect            matched-pairs rank-biserial correlation (W₊ − W₋) / (W₊ + W₋): 1 where a is higher in every pair
    smallest_p        what p_holm could be at best: m pairs that differ cannot give p below 2/2ᵐ
    verdict           in words, by `decide`

    Every metric makes the correction stronger (8 pairs cannot pass it for 7 metrics): name those that matter. The pairs
    are taken as independent; runs that differ only in the crop bound are less than that.
    """
    from scipy.stats import wilcoxon

    if not 0 < confidence < 1:
        raise ClamkitError(f"confidence={confidence} must lie between 0 and 1, such as 0.95.")
    a, b = _as_frames(a, b, metrics, [on] if isinstance(on, str) else list(on))
    differences = _differences(a, b)
    moved = [d[d != 0] for d in differences.to_numpy().T]
    table = pd.DataFrame({"n": len(differences), "mean_difference": differences.mean()}).rename_axis("metric")
    table["ci_low"], table["ci_high"] = _bootstrap_interval(differences.to_numpy(), confidence, resamples, seed)
    table["p"] = [wilcoxon(d).pvalue if d.size else 1.0 for d in moved]
    table["p_holm"] = holm(table["p"].to_numpy())
    table["effect"] = [_rank_biserial(d) for d in moved]
    # Holm rejects nothing unless the smallest p passes after it was multiplied by the number of metrics
    first_step = smallest_p(max(d.size for d in moved), len(moved))
    table["smallest_p"] = [max(first_step, smallest_p(d.size)) for d in moved]
    rows = zip(moved, table.itertuples(), strict=True)
    table["verdict"] = [_in_words(d.size, row, names, 1 - confidence) for d, row in rows]
    return table


def compare_groups(
    frame: pd.DataFrame,
    of: object,
    against: object,
    metrics: Sequence[str],
    *,
    by: str = "method",
    on: Sequence[str] = ("strength", "seed"),
    names: tuple[str, str] | None = None,
) -> pd.DataFrame:
    """`compare` two values of a column of a table of runs, over those settings that both have.

    Where they share none, the same table with n = 0 and a verdict that says so.
    """
    metrics, on, names = list(metrics), list(on), names or (str(of), str(against))
    a, b = (frame[frame[by] == value].set_index(on)[metrics] for value in (of, against))
    shared = a.index.intersection(b.index)
    if shared.empty:
        columns = ["mean_difference", "ci_low", "ci_high", "p", "p_holm", "effect", "smallest_p"]
        table = pd.DataFrame(np.nan, index=pd.Index(metrics, name="metric"), columns=columns)
        table.insert(0, "n", 0)
        return table.assign(verdict=f"{NOT_DECIDABLE}: no setting has finished under both {names[0]} and {names[1]}")
    return compare(a.loc[shared].reset_index(), b.loc[shared].reset_index(), metrics=metrics, on=on, names=names)


def overall_verdict(table: pd.DataFrame, level: float = LEVEL) -> str:
    """The claim that a is better than b in every metric of a `compare` table, in one line."""
    pairs = int(table["n"].max())
    if not pairs:
        return str(table["verdict"].iloc[0])
    gain = table["effect"].where(table.index.isin(HIGHER_IS_BETTER), -table["effect"])  # its sign is what p is of
    rows = zip(gain > 0, table["p_holm"], table["smallest_p"], strict=True)
    decided = pd.Series([decide(*row, level=level) for row in rows], index=table.index)
    toward = f"{int((gain > 0).sum())} of {len(table)} metrics point that way over {pairs} pair{'s' * (pairs > 1)}"
    if (decided == SUPPORTED).all():
        return f"{SUPPORTED}: {toward}, all significant"
    if (decided == OPPOSITE).any():
        return f"{OPPOSITE}: significantly worse in {', '.join(table.index[decided == OPPOSITE])}"
    if (decided == NOT_DECIDABLE).any():
        return f"{NOT_DECIDABLE}: {toward}, too few to tell"
    return f"{NOT_SUPPORTED}: {toward}, {int((decided == SUPPORTED).sum())} significant"


def _in_words(differing: int, row: Any, names: tuple[str, str], level: float) -> str:
    if not differing:
        return f"{names[0]} and {names[1]} are equal in every pair"
    verdict = decide(True, row.p_holm, row.smallest_p, level=level)  # either direction would do
    if verdict == NOT_DECIDABLE:
        return f"{NOT_DECIDABLE}: with {differing} pairs that differ, p cannot be below {min(1, row.smallest_p):.2g}"
    if verdict == NOT_SUPPORTED:
        return f"no difference shown (p = {row.p_holm:.2g})"
    return f"{names[0]} is {'higher' if row.effect > 0 else 'lower'} than {names[1]} (p = {row.p_holm:.2g})"


def _rank_biserial(d: np.ndarray) -> float:
    ranks = pd.Series(np.abs(d)).rank().to_numpy()
    return float(np.sum(np.sign(d) * ranks) / ranks.sum()) if d.size else 0.0


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down correction: the i-th smallest of k is multiplied by k − i + 1, and none falls below another."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return corrected


def _bootstrap_interval(values: np.ndarray, confidence: float, resamples: int, seed: int) -> np.ndarray:
    """Percentile interval of the column means when rows are drawn with replacement; nan for a single row."""
    n = len(values)
    if n == 1:
        return np.full((2, values.shape[1]), np.nan)
    times_drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    means = times_drawn @ values / n
    return np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)


def _as_frames(a: Sample, b: Sample, metrics: Any, on: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """a and b with the pairs as index and the metrics as columns."""
    if isinstance(a, pd.DataFrame) and isinstance(b, pd.DataFrame):
        metrics = [metrics] if isinstance(metrics, str) else list(metrics or (m for m in METRICS if m in a and m in b))
        if not metrics:
            raise ClamkitError(f"the frames share no metric (looked for {', '.join(METRICS)}): name them in metrics=.")
        for frame in (a, b):
            for column in on + metrics:
                if column not in frame:
                    raise unknown("column", column, map(str, frame.columns))
        return a.set_index(on)[metrics], b.set_index(on)[metrics]
    if not (isinstance(a, pd.Series) and isinstance(b, pd.Series)):
        a, b = np.asarray(a), np.asarray(b)
        if a.ndim != 1 or a.shape != b.shape:
            raise ClamkitError(
                f"a has shape {a.shape} and b {b.shape}: give two frames, two Series or two vectors of one length."
            )
        a, b = pd.Series(a), pd.Series(b)
    return a.to_frame(a.name or "value"), b.to_frame(a.name or "value")


def _differences(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """a − b, pair by pair; pairs that are double, alone or not numbers are named."""

    def named(keys: pd.Index) -> str:
        pairs = (key if isinstance(key, tuple) else (key,) for key in keys[:5])
        texts = (", ".join(f"{n or 'pair'} {v}" for n, v in zip(keys.names, pair, strict=True)) for pair in pairs)
        return "; ".join(texts) + ("; …" if len(keys) > 5 else "")

    for own, frame, other in (("a", a, b), ("b", b, a)):
        if frame.index.has_duplicates:
            double = named(frame.index[frame.index.duplicated()].unique())
            raise ClamkitError(f"{own} has more than one row for {double}: keep one method and dataset, or extend on=.")
        alone = frame.index.difference(other.index)
        if len(alone):
            raise ClamkitError(f"rows of {own} without a partner: {named(alone)}. Run those too, or leave them out.")
    if a.empty:
        raise ClamkitError("there are no pairs to compare: a and b have no rows.")
    differences = a.astype(np.float64) - b.reindex(a.index).astype(np.float64)
    for metric, d in differences.items():
        if not np.isfinite(d).all():
            raise ClamkitError(f"{metric} is not a finite number in {named(d.index[~np.isfinite(d)])}.")
    return differences.round(DIGITS)


def wilson(right: ArrayLike, seen: ArrayLike, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval (low, high) of each class's accuracy: right of seen images."""
    from scipy.special import ndtri

    right, seen = np.asarray(right, dtype=np.float64), np.asarray(seen, dtype=np.float64)
    z = ndtri((1 + confidence) / 2)
    centre = (right + z**2 / 2) / (seen + z**2)
    half = z / (seen + z**2) * np.sqrt(right * (seen - right) / seen + z**2 / 4)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def sampling_std(right: ArrayLike, seen: ArrayLike) -> float:
    """The std over classes that comes from the number of images alone: √ mean of v(1 − v)/(n − 1).

    That is unbiased for the variance of v. One image tells nothing of its class's own: it takes v̄(1 − v̄), v̄ the mean
    over the classes.
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
    from scipy.stats import binom, false_discovery_control, fisher_exact

    right, seen, right_after, seen_after = map(np.asarray, (right, seen, right_after, seen_after))
    if lost is not None:
        lost, won = np.asarray(lost), np.asarray(won)
        p = np.minimum(1, 2 * binom.cdf(np.minimum(lost, won), lost + won, 0.5))
    else:
        tables = np.array([[right, seen - right], [right_after, seen_after - right_after]]).transpose(2, 0, 1)
        p = np.array([fisher_exact(table).pvalue for table in tables])
    change = right_after / seen_after - right / seen
    return pd.DataFrame({"change": change, "p": p, "p_holm": holm(p), "q": false_discovery_control(p)})
