"""Class accuracies and what they say about equity (paper, appendix "Evaluation Metrics"). Imports no torch.

Accuracies are fractions from 0 to 1 everywhere; the paper prints percent. scipy.stats takes over a second to import,
so the one function that needs it imports it when called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from clamkit.errors import ClamkitError, unknown

TAIL = 0.10  # the paper's "worst 10 % of the classes"
METRICS = ("average", "std", "cov", "range", "decile_range", "worst", "best")  # what `fairness` gives
HIGHER_IS_BETTER = ("average", "worst", "best")  # of the others, lower
SHOTS = (20, 100)  # a class has few training images below the first, many above the second
PAIR = ("crop_lower_bound", "seed")  # two runs that share these are compared with each other
TIE = 1e-9  # weights (mean 1) and accuracies nearer than this are equal: rounding errors make no order
DIGITS = 12  # differences are rounded here, so that 0.3 − 0.2 and 0.2 − 0.1 have one rank


def class_accuracy(y_true, y_pred, num_classes: int) -> np.ndarray:
    """Share of each class's samples that were predicted right; nan where a class has no sample."""
    y_true, y_pred = np.asarray(y_true), np.asarray(y_pred)
    if y_true.shape != y_pred.shape or y_true.ndim != 1:
        raise ClamkitError(
            f"labels {y_true.shape} and predictions {y_pred.shape} must be two vectors of the same length."
        )
    if y_true.size and (y_true.min() < 0 or y_true.max() >= num_classes):
        raise ClamkitError(
            f"labels run from {y_true.min()} to {y_true.max()}: with {num_classes} classes "
            f"they must lie in 0..{num_classes - 1}."
        )
    seen = np.bincount(y_true, minlength=num_classes)
    right = np.bincount(y_true[y_true == y_pred], minlength=num_classes)
    return np.divide(right, seen, out=np.full(num_classes, np.nan), where=seen > 0)


def real_accuracy(pred, real_labels: Sequence[Sequence[int]], original_labels, num_classes: int | None = None):
    """Accuracy of each original class against ReaL labels (paper, appendix "ReaL").

    pred, original_labels  one class number for each image
    real_labels            the lists of real.json, one for each image: any of its classes is right;
                           images with an empty list are left out
    num_classes            default: the largest original label + 1

    Array of num_classes; nan where no image of a class has a ReaL label.
    """
    right, kept = _real_hits(pred, real_labels)
    original = np.asarray(original_labels)
    if original.shape != right.shape:
        raise ClamkitError(f"there are {right.size} predictions but original labels of shape {original.shape}.")
    if num_classes is None:
        num_classes = int(original.max()) + 1
    return class_accuracy(original[kept], np.where(right, original, -1)[kept], num_classes)


def real_top1(pred, real_labels: Sequence[Sequence[int]]) -> float:
    """Share of all images with a ReaL label whose prediction is one of their ReaL labels."""
    right, kept = _real_hits(pred, real_labels)
    return float(right[kept].mean())


def _real_hits(pred, real_labels) -> tuple[np.ndarray, np.ndarray]:
    """For each image: is the prediction among its ReaL labels, and has it any."""
    pred = np.asarray(pred)
    if pred.ndim != 1 or len(real_labels) != pred.size:
        raise ClamkitError(
            f"there are {len(real_labels)} ReaL label lists for predictions of shape {pred.shape}: give one list "
            "and one prediction for each image, in the same order (real.json has 50000, in validation-file order)."
        )
    count = np.array([len(labels) for labels in real_labels], dtype=np.int64)
    if not count.any():
        raise ClamkitError("no image has a ReaL label: there is nothing to measure.")
    image = np.repeat(np.arange(pred.size), count)
    label = np.concatenate([np.asarray(labels, dtype=np.int64) for labels in real_labels])
    right = np.zeros(pred.size, dtype=bool)
    right[image[label == pred[image]]] = True
    return right, count > 0


def _accuracies(acc, classes=None, rows=None) -> np.ndarray:
    """Checked float64 array: a vector over classes or, where `rows` names the rows, rows × classes."""
    acc = np.asarray(acc, dtype=np.float64)
    if acc.ndim != (1 if rows is None else 2) or acc.shape[-1] < 2:
        raise ClamkitError(
            f"class accuracies have shape {acc.shape}: give one number for each of at least two classes."
        )
    bad = np.argwhere(~((acc >= 0) & (acc <= 1)))
    if bad.size:
        place = bad[0][-1] if classes is None else classes[bad[0][-1]]
        where = "" if rows is None else f" in {rows[bad[0][0]]}"
        raise ClamkitError(
            f"the accuracy of class {place}{where} is {acc[tuple(bad[0])]}: accuracies are fractions from 0 to 1 "
            f"({len(bad)} of {acc.size} are not; divide percentages by 100, leave classes without samples out)."
        )
    return acc


def tail_size(num_classes: int, tail: float = TAIL) -> int:
    """How many classes make a tail: the rounded share, at least one (10 classes: 1)."""
    if not 0 < tail <= 1:
        raise ClamkitError(f"tail={tail} is not a share of the classes: it must lie in (0, 1].")
    return max(1, round(tail * num_classes))


def fairness(acc, tail: float = TAIL) -> pd.Series:
    """How evenly accuracy is spread over the classes; all values are fractions, not percent.

    average       μ, the mean over classes (the appendix lacks the 1/n)
    std           with n − 1, as the paper
    cov           std / average
    range         max − min, the formula in the paper's appendix
    decile_range  mean of the best tail − mean of the worst tail, what the paper's tables print
    worst, best   the tail means
    """
    return pd.Series(_fairness(_accuracies(acc), tail))


def _fairness(acc: np.ndarray, tail: float) -> dict[str, np.ndarray]:
    """The metrics of `fairness` over the last axis."""
    acc = np.sort(acc, axis=-1)
    k = tail_size(acc.shape[-1], tail)
    average, std = acc.mean(axis=-1), acc.std(axis=-1, ddof=1)
    worst, best = acc[..., :k].mean(axis=-1), acc[..., -k:].mean(axis=-1)
    with np.errstate(invalid="ignore"):  # nothing right in any class: 0 / 0 is nan
        cov = std / average
    return dict(zip(METRICS, (average, std, cov, acc[..., -1] - acc[..., 0], best - worst, worst, best), strict=True))


def shot_groups(sizes, bounds: tuple[int, int] = SHOTS) -> pd.Categorical:
    """Which classes have many, a medium number of, or few training images; the usual split of long-tailed data.

    sizes: training images of each class. Default bounds: many > 100, medium 20 to 100, few < 20.
    """
    sizes, (few, many) = np.asarray(sizes), bounds
    if sizes.ndim != 1 or not sizes.size or not (sizes >= 0).all():
        raise ClamkitError("sizes must be the number of training images of each class, 0 or more, in a vector.")
    if not 0 < few <= many:
        raise ClamkitError(f"bounds={bounds}: the bound of few must be above 0 and not above that of many.")
    names = np.select([sizes > many, sizes >= few], ["many", "medium"], "few")
    return pd.Categorical(names, ["many", "medium", "few"], ordered=True)


def range_difference(with_aug, without_aug, *, kind: str = "decile_range", tail: float = TAIL) -> pd.Series:
    """What augmentation adds to the range (paper, table 2): range with − range without, over the augmented settings.

    with_aug     class accuracies of each augmented setting (the paper: 7 crop lower bounds below 1), settings × classes
    without_aug  class accuracies without augmentation
    kind         decile_range, as the paper's tables, or range (max − min)

    mean and std (n − 1; nan for one setting) of the differences, and their number n. Negative: augmentation evens out.
    """
    if kind not in ("range", "decile_range"):
        raise unknown("kind of range", kind, ("range", "decile_range"))
    base = fairness(without_aug, tail)[kind]
    differences = []
    for i, acc in enumerate(with_aug.to_numpy() if isinstance(with_aug, pd.DataFrame) else with_aug):
        if np.shape(acc) != np.shape(without_aug):
            given, wanted = np.shape(acc), np.shape(without_aug)
            raise ClamkitError(f"augmented setting {i} has shape {given}, not {wanted}: give settings × classes.")
        differences.append(fairness(acc, tail)[kind] - base)
    if not differences:
        raise ClamkitError("there is no augmented setting: give the class accuracies of at least one.")
    spread = np.std(differences, ddof=1) if len(differences) > 1 else np.nan
    return pd.Series({"mean": np.mean(differences), "std": spread, "n": len(differences)})


# ------------------------------------------------------------------------------------------- over a run's history


def fairness_over_epochs(history: pd.DataFrame, column: str = "test_accuracy", tail: float = TAIL) -> pd.DataFrame:
    """`fairness` of every epoch of a run's history: a frame indexed by epoch, one column for each metric."""
    wide = _epochs_by_classes(history, column)
    acc = _accuracies(wide, classes=wide.columns, rows=[f"epoch {epoch}" for epoch in wide.index])
    return pd.DataFrame(_fairness(acc, tail), index=wide.index)


def order_agreement(weights, accuracies) -> float:
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


# --------------------------------------------------------------------------------------------------- significance


def compare(
    a, b, *, metrics=None, on=PAIR, names=("a", "b"), confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
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
    verdict           in words. m pairs that differ cannot give p below 2/2ᵐ: where that is above 1 − confidence
                      (m ≤ 5 at 0.95 for one metric) it says that nothing can be concluded.

    Every metric makes the correction stronger (8 pairs cannot pass it for 7 metrics): name those that matter. The pairs
    are taken as independent; runs that differ only in the crop bound are less than that.
    """
    from scipy.stats import wilcoxon

    if not 0 < confidence < 1:
        raise ClamkitError(f"confidence={confidence} must lie between 0 and 1, such as 0.95.")
    a, b = _as_frames(a, b, metrics, [on] if isinstance(on, str) else list(on))
    differences = _differences(a, b)
    low, high = _bootstrap_interval(differences.to_numpy(), confidence, resamples, seed)
    moved = [d[d != 0] for d in differences.to_numpy().T]
    p = np.array([wilcoxon(d).pvalue if d.size else 1.0 for d in moved])
    table = pd.DataFrame(
        {"n": len(differences), "mean_difference": differences.mean(), "ci_low": low, "ci_high": high, "p": p}
    ).rename_axis("metric")
    table["p_holm"] = holm(p)
    table["effect"] = [_rank_biserial(d) for d in moved]
    # Holm rejects nothing unless the smallest p passes after it was multiplied by the number of metrics
    first_step = len(moved) * 2.0 ** (1 - max(d.size for d in moved))
    table["verdict"] = [
        _verdict(d.size, max(first_step, 2.0 ** (1 - d.size)), row.p_holm, row.effect, names, 1 - confidence)
        for d, row in zip(moved, table.itertuples(), strict=True)
    ]
    return table


def judge(frame: pd.DataFrame, of, against, metrics, *, by: str = "method", on=("strength", "seed"), names=None):
    """`compare` two values of a column of runs.as_frame over those settings that both have.

    Where they share none, the same table with n = 0 and a verdict that says so.
    """
    metrics, on, names = list(metrics), list(on), names or (str(of), str(against))
    a, b = (frame[frame[by] == value].set_index(on)[metrics] for value in (of, against))
    shared = a.index.intersection(b.index)
    if shared.empty:
        columns = ["mean_difference", "ci_low", "ci_high", "p", "p_holm", "effect"]
        table = pd.DataFrame(np.nan, index=pd.Index(metrics, name="metric"), columns=columns)
        table.insert(0, "n", 0)
        return table.assign(verdict=f"not decidable yet: no setting has finished under both {names[0]} and {names[1]}")
    return compare(a.loc[shared].reset_index(), b.loc[shared].reset_index(), metrics=metrics, on=on, names=names)


def ruling(table: pd.DataFrame, level: float = 0.05) -> str:
    """The claim that a is better than b in every metric of a `compare` table, in one line."""
    gain = table["mean_difference"].where(table.index.isin(HIGHER_IS_BETTER), -table["mean_difference"])
    sure, pairs = table["p_holm"] <= level, int(table["n"].max())
    if not pairs:
        return table["verdict"].iloc[0]
    toward = f"{int((gain > 0).sum())} of {len(table)} metrics point that way over {pairs} pair{'s' * (pairs > 1)}"
    if (sure & (gain > 0)).all():
        return f"holds: {toward}, all significant"
    if (sure & (gain < 0)).any():
        return f"contradicted: significantly worse in {', '.join(table.index[sure & (gain < 0)])}"
    if len(table) * 2.0 ** (1 - pairs) > level:
        return f"not decidable yet: {toward}, too few to tell"
    return f"not shown: {toward}, {int((sure & (gain > 0)).sum())} significant"


def _verdict(pairs: int, smallest: float, p: float, effect: float, names: tuple[str, str], level: float) -> str:
    if not pairs:
        return f"{names[0]} and {names[1]} are equal in every pair"
    if smallest > level:
        return f"too few pairs to conclude: with {pairs} that differ, p cannot be below {min(1, smallest):.2g}"
    if p > level:
        return f"no difference shown (p = {p:.2g})"
    return f"{names[0]} is {'higher' if effect > 0 else 'lower'} than {names[1]} (p = {p:.2g})"


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


def _as_frames(a, b, metrics, on: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
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
    if isinstance(a, pd.Series) and isinstance(b, pd.Series):
        name = a.name or "value"
        return a.to_frame(name), b.to_frame(name)
    if np.ndim(a) != 1 or np.shape(a) != np.shape(b):
        raise ClamkitError(
            f"a has shape {np.shape(a)} and b {np.shape(b)}: give two frames, two Series or two vectors of one length."
        )
    return pd.DataFrame({"value": np.asarray(a)}), pd.DataFrame({"value": np.asarray(b)})


def _differences(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """a − b, pair by pair; pairs that are double, alone or not numbers are named."""

    def named(keys) -> str:
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


# -------------------------------------------------------------------------------------------- classes, one by one


def wilson(right, seen, confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's score interval (low, high) of each class's accuracy: right of seen images."""
    from scipy.special import ndtri

    right, seen = np.asarray(right, dtype=np.float64), np.asarray(seen, dtype=np.float64)
    z = ndtri((1 + confidence) / 2)
    centre = (right + z**2 / 2) / (seen + z**2)
    half = z / (seen + z**2) * np.sqrt(right * (seen - right) / seen + z**2 / 4)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def sampling_std(right, seen) -> float:
    """The std over classes that comes from the number of images alone: √ mean of v(1 − v)/n."""
    v = np.asarray(right) / seen
    return float(np.sqrt(np.mean(v * (1 - v) / seen)))


def class_changes(right, seen, right_after, seen_after, lost=None, won=None) -> pd.DataFrame:
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
