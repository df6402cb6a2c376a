"""Is one method better than another? The seed is the unit: intervals, tests, corrections, and the rule for verdicts.

Runs of one seed at several crop bounds share their images' order, first weights and luck, so they are not independent.
Each seed gives one number, its mean difference over the bounds; what is said of two methods rests on these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.errors import ClamkitError, check_known
from clamkit.metrics.accuracy import METRICS

LEVEL = 0.05  # of significance, after correction
POINT = 0.01  # of accuracy: a difference surely below it is none that matters
FEWEST = 3  # seeds that may decide anything
UNIT = "seed"
PAIR = ("crop_lower_bound", UNIT)  # two runs that share these are compared with each other
COLUMNS = ["n", "pairs", "mean_difference", "ci_low", "ci_high", "p", "p_holm", "p_equal", "verdict"]  # of `compare`
DIGITS = 12  # differences are rounded here, so that 0.3 − 0.2 and 0.2 − 0.1 are the same
Sample = pd.DataFrame | pd.Series | ArrayLike  # what `compare` takes on either side

SUPPORTED, OPPOSITE, NO_DIFFERENCE, NOT_DECIDED = "supported", "the opposite", "no difference", "not decided"


def decide(toward: bool, p: float, p_equal: float = 1.0, *, level: float = LEVEL) -> str:
    """The verdict on a claim. Every table, notebook and page uses this rule.

    toward   whether the effect has the sign that the claim gives it
    p        that there is no effect, corrected for the number of claims
    p_equal  that the effect is as large as matters, corrected likewise

    supported, the opposite   p passes, and the effect points that way
    no difference             it does not, and p_equal passes: the effect is too small to matter
    not decided               neither: more seeds are needed
    """
    if p <= level:
        return SUPPORTED if toward else OPPOSITE
    return NO_DIFFERENCE if p_equal <= level else NOT_DECIDED


def by_seed(differences: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """One number for each seed: the mean over the other levels of the index, such as the crop bounds.

    Where some seed lacks a setting, only the settings that all seeds have are averaged, as effects depend on them; if
    they have none in common, whatever there is. Without a level `seed` every row is a unit of its own.
    """
    if UNIT not in differences.index.names:
        return differences
    if differences.index.nlevels > 1:
        setting = differences.reset_index(level=UNIT).index
        whole = differences[setting.value_counts().loc[setting].to_numpy() == differences.index.unique(UNIT).size]
        differences = whole if len(whole) else differences
    return differences.groupby(level=UNIT).mean()


def seed_interval(effects: ArrayLike, confidence: float = 1 - LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval (low, high) of the mean of each column over the seeds, its rows; nan for a single seed."""
    from scipy.special import stdtrit

    effects = np.asarray(effects, dtype=np.float64)
    mean, error, freedom = _moments(effects)
    half = stdtrit(freedom, (1 + confidence) / 2) * error if freedom else np.full(np.shape(mean), np.nan)
    return mean - half, mean + half


def seed_test(effects: ArrayLike, margin: float = POINT) -> tuple[np.ndarray, np.ndarray]:
    """(p, p_equal) of each column over the seeds, its rows; 1 where fewer than three seeds have run.

    p        two-sided t test that the mean is 0
    p_equal  two one-sided t tests that it lies outside ± margin
    """
    from scipy.special import stdtr

    effects = np.asarray(effects, dtype=np.float64)
    mean, error, freedom = _moments(effects)
    if freedom + 1 < FEWEST:
        return np.ones(np.shape(mean)), np.ones(np.shape(mean))
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.stack([np.abs(mean), margin - np.abs(mean)]) / error  # from 0, and from the nearer margin
    distance = np.where(np.isnan(distance), 0.0, distance)  # 0 / 0: every seed gave exactly this value
    return np.minimum(1, 2 * stdtr(freedom, -distance[0])), stdtr(freedom, -distance[1])


def _moments(effects: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean over the rows, its standard error, degrees of freedom."""
    freedom = len(effects) - 1
    error = effects.std(axis=0, ddof=1) / np.sqrt(len(effects)) if freedom > 0 else np.full(effects.shape[1:], np.nan)
    return effects.mean(axis=0), error, max(freedom, 0)


def compare(
    a: Sample,
    b: Sample,
    *,
    metrics: str | Sequence[str] | None = None,
    on: str | Sequence[str] = PAIR,
    names: tuple[str, str] = ("a", "b"),
    margin: float = POINT,
    confidence: float = 1 - LEVEL,
) -> pd.DataFrame:
    """Is a different from b? Paired over (crop lower bound, seed), decided over the seeds; one row for each metric.

    a, b    two frames with the columns of `on` and of `metrics` (default: those of METRICS that both have), such as
            rows of RunStore.frame(); or two Series, paired by index; or two vectors, by position
    names   what the verdict calls them
    margin  a difference smaller than this does not matter (0.01 is one point of accuracy)

    n, pairs         seeds (with vectors, and Series without a level `seed`: pairs), and pairs of runs
    mean_difference  mean of a − b over the seeds, with its t interval ci_low, ci_high
    p, p_holm        two-sided t test over the seeds, and corrected for the number of metrics after Holm
    p_equal          equivalence test: is the difference smaller than the margin? Corrected likewise
    verdict          in words, by `decide`; fewer than three seeds decide nothing

    >>> clam, normal = [0.80, 0.82, 0.81], [0.70, 0.72, 0.70]  # one number for each seed
    >>> print(compare(clam, normal, names=("CLAM", "Normal"))["verdict"].iloc[0])
    CLAM is higher than Normal...
    """
    if not 0 < confidence < 1:
        raise ClamkitError(f"confidence={confidence} must lie between 0 and 1, such as 0.95.")
    a, b = _as_frames(a, b, metrics, [on] if isinstance(on, str) else list(on))
    differences = _differences(a, b)
    effects = by_seed(differences)
    table = pd.DataFrame({"n": len(effects), "pairs": len(differences), "mean_difference": effects.mean()})
    table["ci_low"], table["ci_high"] = seed_interval(effects, confidence)
    p, p_equal = seed_test(effects, margin)
    table["p"], table["p_holm"], table["p_equal"] = p, holm(p), holm(p_equal)
    table["verdict"] = [_in_words(row, names, margin, 1 - confidence) for row in table.itertuples()]
    return table.rename_axis("metric")


def compare_groups(
    frame: pd.DataFrame,
    of: object,
    against: object,
    metrics: Sequence[str],
    *,
    by: str = "method",
    on: Sequence[str] = ("strength", UNIT),
    names: tuple[str, str] | None = None,
) -> pd.DataFrame:
    """`compare` two values of a column of a table of runs, over those settings that both have.

    Where they share none, the same table with n = 0 and a verdict that says so.
    """
    metrics, on, names = list(metrics), list(on), names or (str(of), str(against))
    a, b = (frame[frame[by] == value].set_index(on)[metrics] for value in (of, against))
    shared = a.index.intersection(b.index)
    if shared.empty:
        table = pd.DataFrame(np.nan, index=pd.Index(metrics, name="metric"), columns=COLUMNS).assign(n=0, pairs=0)
        return table.assign(verdict=f"{NOT_DECIDED}: no setting has finished under both {names[0]} and {names[1]}")
    return compare(a.loc[shared].reset_index(), b.loc[shared].reset_index(), metrics=metrics, on=on, names=names)


def _in_words(row: Any, names: tuple[str, str], margin: float, level: float) -> str:
    verdict = decide(True, row.p_holm, row.p_equal, level=level)  # either direction would do
    if verdict == SUPPORTED:
        side = "higher" if row.mean_difference > 0 else "lower"
        return f"{names[0]} is {side} than {names[1]} (p = {row.p_holm:.2g})"
    if verdict == NO_DIFFERENCE:
        return f"{NO_DIFFERENCE} of {margin:g} or more (p = {row.p_equal:.2g})"
    if row.n < FEWEST:
        return f"{NOT_DECIDED}: {row.n} of at least {FEWEST} seeds"
    return f"{NOT_DECIDED}: the interval is [{row.ci_low:+.2g}, {row.ci_high:+.2g}] (p = {row.p_holm:.2g})"


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down correction: the i-th smallest of k is multiplied by k − i + 1, and none falls below another."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return corrected


def _as_frames(a: Sample, b: Sample, metrics: Any, on: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """a and b with the pairs as index and the metrics as columns."""
    if isinstance(a, pd.DataFrame) and isinstance(b, pd.DataFrame):
        metrics = [metrics] if isinstance(metrics, str) else list(metrics or (m for m in METRICS if m in a and m in b))
        if not metrics:
            raise ClamkitError(f"the frames share no metric (looked for {', '.join(METRICS)}): name them in metrics=.")
        for frame in (a, b):
            for column in on + metrics:
                check_known("column", column, frame)
        return a.set_index(on)[metrics], b.set_index(on)[metrics]
    if not (isinstance(a, pd.Series) and isinstance(b, pd.Series)):
        a, b = np.asarray(a), np.asarray(b)
        if a.ndim != 1 or a.shape != b.shape:
            raise ClamkitError(f"a has shape {a.shape} and b {b.shape}: give two frames, two Series or two vectors.")
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
