"""Numbers that one notebook alone takes from runs, datasets and the paper.

05  by_strength, order_agreement
20  paper_table (what the paper prints, beside our own)
21  fairness_over_epochs, spread_by_epoch; against_normal (also 23: differences to Normal, by epoch or by rank)
22  weight_orders, settling_epoch (when the order of the class weights is found)
23  by_rank
24  crop_changes (what the tightest crop does to each class)
27  simulate, weight_moves, steadiness (do the weights come to rest?)
28  shot_groups (iNaturalist: classes with many and with few images)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.checks import fraction
from clamkit.engine.store import Run
from clamkit.errors import ClamkitError, check_known
from clamkit.lab import paper, tables
from clamkit.methods.specs import METHODS
from clamkit.metrics import LEVEL, TAIL, compare_groups, fairness, holm, seed_interval, seed_test, tail_size

SETTING = ["method", "strength", "seed"]
SHOTS = (20, 100)  # a class has few training images below the first, many above the second
TIE_TOLERANCE = 1e-9  # weights (mean 1) and accuracies nearer than this are equal: rounding errors make no order


def settings(runs: Sequence[Run]) -> pd.DataFrame:
    """Method, strength and seed of each run."""
    return pd.DataFrame([[getattr(run.config, name) for name in SETTING] for run in runs], columns=SETTING)


def against_normal(frame: pd.DataFrame, x: str, y: str) -> dict[str, pd.DataFrame]:
    """For each method `metrics.compare` with Normal: a row for each value of the column x, the effects those of y.

    frame: columns method, strength, seed, x and y, one row for each of them. Methods that share no setting with Normal
    are left out.
    """
    places, methods = list(frame[x].unique()), [method for method in frame["method"].unique() if method != "normal"]
    if "normal" not in set(frame["method"]):
        return {}
    wide = frame.astype({y: float}).pivot_table(index=SETTING, columns=x, values=y).reset_index()
    found = {method: compare_groups(wide, method, "normal", places) for method in methods}
    return {method: table.set_axis(places).rename_axis(x) for method, table in found.items() if table["n"].max()}


def epochs_by_classes(history: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of a history as epochs × classes; refused where it is not that of one whole run."""
    for name in ("epoch", "class", column):
        check_known("history column", name, history)
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


def fairness_over_epochs(history: pd.DataFrame, column: str = "test_accuracy", tail: float = TAIL) -> pd.DataFrame:
    """`fairness` of every epoch of a run's history: a frame indexed by epoch, one column for each metric."""
    rows = {}
    for epoch, accuracies in epochs_by_classes(history, column).iterrows():
        try:
            rows[epoch] = fairness(accuracies, tail)
        except ClamkitError as error:
            raise ClamkitError(f"epoch {epoch}: {error}") from error
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("epoch")


def spread_by_epoch(runs: Sequence[Run]) -> pd.DataFrame:
    """std and COV of the test accuracies in each epoch of each run."""
    parts = [
        fairness_over_epochs(run.history)[["std", "cov"]].reset_index().assign(**dict(zip(SETTING, own, strict=True)))
        for run, own in zip(runs, settings(runs).itertuples(index=False), strict=True)
    ]
    columns = [*SETTING, "epoch", "std", "cov"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def by_rank(classes: pd.DataFrame) -> pd.DataFrame:
    """`tables.final_classes` with the rank of each class in its run, 1 the worst; in the order of the ranks."""
    rank = classes.groupby(SETTING)["test_accuracy"].rank(method="first")
    return classes.assign(rank=rank.astype(int)).sort_values("rank", kind="stable")


def weight_orders(runs: Sequence[Run]) -> pd.DataFrame:
    """Of each run: does the order of its weights reverse that of its accuracies, when was it found, is it at rest?"""
    measured = [
        (
            order_agreement(run.wide("weight").iloc[-1], run.test_accuracy),
            settling_epoch(run.history),
            run.config.epochs,
            100 * late_move(run.history),
        )
        for run in runs
    ]
    columns = ["correlation", "settled", "epochs", "late_move"]
    return settings(runs).join(pd.DataFrame(measured, columns=columns, dtype=float))


def crop_changes(classes: pd.DataFrame) -> pd.DataFrame:
    """Accuracy at the tightest crop minus that without one, in points, by method and seed (rows) and class (columns).

    Empty where runs with a crop and without (bound 1.0) are not both there.
    """
    wide = classes.astype({"test_accuracy": float}).pivot_table(
        index=["strength", "method", "seed"], columns="class_name", values="test_accuracy", sort=False
    )
    strengths = wide.index.unique("strength")
    if 1.0 not in strengths or min(strengths) == 1.0:
        return pd.DataFrame(columns=wide.columns, index=wide.index.droplevel("strength")[:0])
    return 100 * (wide.loc[min(strengths)] - wide.loc[1.0]).dropna()


def weight_moves(runs: Sequence[Run]) -> pd.DataFrame:
    """The part of all weight that changes class from one epoch to the next: method, strength, seed, epoch and move."""
    parts = []
    for run, own in zip(runs, settings(runs).to_dict("records"), strict=True):
        share = run.wide("weight").div(run.wide("weight").sum(axis=1), axis=0)
        parts.append((share.diff().abs().sum(axis=1) / 2).iloc[1:].rename("move").reset_index().assign(**own))
    columns = [*SETTING, "epoch", "move"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def steadiness(runs: Sequence[Run], normal: Sequence[Run] = ()) -> pd.DataFrame:
    """The last quarter of each run: do weights and test accuracies rest, and how much weight have the hardest classes?

    normal   runs of Normal, which say what is hard; without any, `hard` is nan

    weights  `late_move`: the part of all weight that changes class from one epoch to the next
    tests    mean change of a class's test accuracy from one epoch to the next
    hard     share of all weight on the tenth of the classes with the lowest training accuracies under Normal, at the
             same strength and on average over seeds
    """
    measured, hardest = [], {}
    for strength in sorted({run.config.strength for run in normal}):
        own = [run.wide("train_accuracy").iloc[-1] for run in normal if run.config.strength == strength]
        hardest[strength] = (sum(own) / len(own)).nsmallest(tail_size(len(own[0]))).index
    for run in runs:
        last = max(1, round((run.config.epochs - 1) / 4))
        tests = run.wide("test_accuracy").diff().abs().mean(axis=1).tail(last).mean()
        weight, hard = run.wide("weight").tail(last).mean(), hardest.get(run.config.strength)
        share = np.nan if hard is None else weight[hard].sum() / weight.sum()
        measured.append((late_move(run.history), tests, share))
    return settings(runs).join(pd.DataFrame(measured, columns=["weights", "tests", "hard"], dtype=float))


def simulate(method: str, classes: int, seed: int, epochs: int = 60) -> pd.DataFrame:
    """A rule against a simulated network. Of each epoch: moves, the weight on the truly hardest tenth, the largest.

    The accuracy of class i is a sigmoid of its ease ~ N(2, 0.8), half the logarithm of its weight, a warm-up, and noise
    with a standard deviation of 0.15; its loss is −log accuracy.
    """
    from clamkit.methods.weighters import build_method

    weighter, rng = build_method(method, None, classes), np.random.default_rng(seed)
    ease, tail, rows = np.sort(rng.normal(2, 0.8, classes)), tail_size(classes), []
    for epoch in range(1, epochs + 1):
        w = weighter.weights.numpy().copy()
        logit = ease + 0.5 * np.log(w) - 3 * np.exp(-epoch / 10) + rng.normal(0, 0.15, classes)
        weighter.step(accuracy=1 / (1 + np.exp(-logit)), loss=np.log1p(np.exp(-logit)))
        new = weighter.weights.numpy()
        move = np.abs(new - w).sum() / 2 / classes  # total variation, as `late_move`
        rows.append({"epoch": epoch, "move": move, "hard": new[:tail].sum() / classes, "top": new.max()})
    return pd.DataFrame(rows).assign(method=method, panel=f"{classes:,} classes", classes=classes, seed=seed)


def settling_epoch(history: pd.DataFrame, tolerance: float = TIE_TOLERANCE) -> int:
    """First epoch from which the order of the class weights no longer changes, to the end of the run.

    The order of an epoch is its ranking with ties: sorted by weight, neighbours that are at most `tolerance` apart are
    tied. Epoch e has settled if every epoch from e on has the ranking of the last; becoming tied, or ceasing to be, is
    a change. The last epoch means that the order was still changing; the first, that it never did (uniform weights).
    With many classes some pair of near-equal ones swaps until the end: keep the rows of a few classes, as the paper's
    figures do, or raise `tolerance` (weights have mean 1).
    """
    if not tolerance >= 0:
        raise ClamkitError(f"tolerance={tolerance} must be a difference of weights, 0 or more.")
    wide = epochs_by_classes(history, "weight")
    orders = np.array([levels(weights, tolerance) for weights in wide.to_numpy(dtype=np.float64)])
    differs = np.flatnonzero((orders != orders[-1]).any(axis=1))
    return int(wide.index[differs[-1] + 1 if differs.size else 0])


def shot_groups(sizes: ArrayLike, bounds: tuple[int, int] = SHOTS) -> pd.Categorical:
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


def paper_table(dataset: str) -> pd.DataFrame:
    """What the paper prints for a dataset with crops, in the same shape; its range is our decile range."""
    names = {"range": "decile_range"}
    rows = paper.results()
    rows = rows[(rows["dataset"] == dataset) & rows["table"].isin(["fairness_crop", "average_crop", "worst_crop"])]
    table = rows.assign(metric=rows["metric"].replace(names)).pivot(index="method", columns="metric", values="value")
    order = [method for method in METHODS if method in table.index]
    found = {heading: table[metric] for metric, heading in tables.HEADINGS.items() if metric in table}
    return pd.DataFrame(found).loc[order].rename(index={name: METHODS[name].label for name in order})


def order_agreement(weights: ArrayLike, accuracies: ArrayLike) -> float:
    """Spearman rank correlation of class weights and class accuracies, from −1 to 1.

    −1: the order is reversed, the worst class has the largest weight, as the paper says of converged runs (§5.2).
    Values nearer than TIE_TOLERANCE share their mean rank; nan where all weights or all accuracies are equal.
    """
    weights, accuracies = np.asarray(weights, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    if weights.shape != accuracies.shape or weights.ndim != 1 or weights.size < 2:
        raise ClamkitError(
            f"weights {weights.shape} and accuracies {accuracies.shape} must be two vectors over the same classes, "
            "at least two."
        )
    if not (np.isfinite(weights).all() and np.isfinite(accuracies).all()):
        raise ClamkitError("weights or accuracies are not all finite: leave classes without samples out.")
    a, b = (pd.Series(levels(values, TIE_TOLERANCE)).rank().to_numpy() for values in (weights, accuracies))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return np.nan
    return float(np.corrcoef(a, b)[0, 1])


def late_move(history: pd.DataFrame, share: float = 0.25) -> float:
    """How far the weights still move at the end of a run, from 0 (at rest) to 1: an absolute measure.

    The total variation ½ Σ|w' − w| between the weights of one epoch and the next, as distributions: the part of all
    weight that changes class. Its mean over the last quarter (`share`) of the moves, at least one; nan for one epoch.
    """
    wide = epochs_by_classes(history, "weight").to_numpy(dtype=np.float64)
    w = wide / wide.sum(axis=1, keepdims=True)
    moves = np.abs(np.diff(w, axis=0)).sum(axis=1) / 2
    last = max(1, round(fraction(share, "share") * len(moves)))
    return float(moves[-last:].mean()) if len(moves) else np.nan


def levels(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Rank of each value, from 0, without gaps; neighbours at most `tolerance` apart share one."""
    order = np.argsort(values, kind="stable")
    ranks = np.zeros_like(order)
    ranks[order[1:]] = np.cumsum(np.diff(values[order]) > tolerance)
    return ranks


def by_strength(differences: pd.Series, confidence: float = 1 - LEVEL, shuffles: int = 9_999) -> pd.DataFrame:
    """Does an effect depend on the strength of the augmentation? One row for each: mean, ci_low, ci_high, p_holm.

    differences  of paired runs, with the levels `strength` and `seed`; only strengths that all seeds have are taken

    `attrs["p"]` is that of a permutation test that the strength does not matter (the values of a seed change places);
    `attrs["changes_sign"]` says whether some strength has an effect above 0 and another one below it, after Holm.
    """
    wide = differences.unstack("strength").dropna(axis=1)
    if wide.empty:
        raise ClamkitError("there is no strength of the augmentation that all seeds have run with.")
    table = pd.DataFrame({"n": len(wide), "mean": wide.mean()})
    table["ci_low"], table["ci_high"] = seed_interval(wide, confidence)
    table["p_holm"] = holm(seed_test(wide)[0])
    rng, values = np.random.default_rng(0), wide.to_numpy()
    spread = values.mean(axis=0).var() - 1e-15  # rounding may not turn an equal spread into a smaller one
    wider = sum(rng.permuted(values, axis=1).mean(axis=0).var() >= spread for _ in range(shuffles))
    table.attrs["p"] = (1 + wider) / (1 + shuffles)
    sure = np.sign(table.loc[table["p_holm"] <= 1 - confidence, "mean"])
    table.attrs["changes_sign"] = bool((sure > 0).any() and (sure < 0).any())
    return table
