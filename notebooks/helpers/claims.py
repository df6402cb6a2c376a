"""The paper's claims, and questions it leaves open, decided by our own runs.

`findings()` gives one row for each: the effect with a 95 % interval over the seeds, the p-value corrected over all of
its kind, what the paper prints, and a verdict. `of_regimes()` asks the main questions of small networks, of networks as
accurate as the paper's, and of networks that know their training images by heart. The runs are finished here or
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

from clamkit.engine.store import Run, as_frame
from clamkit.lab import paper
from clamkit.lab.controls import with_biases
from clamkit.lab.results import load_runs
from clamkit.methods.specs import BIASES, METHODS
from clamkit.metrics import (
    FEWEST,
    LEVEL,
    by_seed,
    compare_groups,
    decide,
    holm,
    seed_interval,
    seed_test,
)
from helpers.run_measures import order_agreement
from helpers.verdicts import number

RELEASED_CLIP = "the released clip"
NO_RUNS = "no runs yet"
POINT = 1.0  # of accuracy, in percent
COST = 1.0  # points of average accuracy that "limited cost" may be; the paper's largest is 0.7 (ImageNet)
LOW = {"std": "std", "cov": "100 · COV", "decile_range": "decile range"}  # what equity means: the lower, the better
SETTING = ["strength", "seed"]
NO_VALUES = pd.Series(dtype=float)
RIVALS = ("focal", "pw", "tce", "ggf")


@dataclass(frozen=True)
class Finding:
    """A claim and what our runs say to it.

    values   one number for each pair of runs (same augmentation, strength and seed) or for each run, in points; its
             index has the seed
    wanted   the sign that the claim gives them, beyond `margin`
    printed  the paper's own number
    matters  a difference surely smaller than this is called none; None: there is no such size
    """

    kind: str  # "paper" or "open": claimed there, or asked here; else the regime. p is corrected within a kind
    claim: str
    where: str
    what: str
    values: pd.Series
    wanted: int
    printed: float | None = None
    margin: float = 0.0
    matters: float | None = POINT


def findings(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> pd.DataFrame:
    """One row for each claim and question: claim, where, what, n, effect, low, high, p, paper, verdict."""
    runs_of = cache(runs_of)
    images = by_images(runs_of)
    return table([*of_the_paper(runs_of, images), *left_open(runs_of, images)])


def against_normal(
    images: dict[str, pd.DataFrame], metrics: Sequence, methods: Sequence[str] | None = None
) -> dict[str, dict[str, pd.DataFrame]]:
    """What methods (default: all) gain and lose against Normal, with intervals, by the images and then the method."""
    return {
        where: {
            method: compare_groups(frame, method, "normal", metrics)
            for method in frame["method"].unique()
            if method != "normal" and (methods is None or method in methods)
        }
        for where, frame in images.items()
    }


def table(found: Sequence[Finding]) -> pd.DataFrame:
    """t tests of the seeds' mean values against the margin, corrected over all rows of a kind after Holm.

    Rows with fewer seeds than a test takes are not tested, and not counted. The verdicts are those of `metrics.decide`.
    """
    if not found:
        return pd.DataFrame(columns=["kind", "claim", "where", "what", "n", "effect", "low", "high", "p", "verdict"])
    frame = pd.DataFrame([_row(finding) for finding in found])
    for _, family in frame[frame["n"] >= FEWEST].groupby("kind"):
        for column in ("p", "p_equal"):
            frame.loc[family.index, column] = holm(family[column].to_numpy())
    frame["verdict"] = [decide(row.toward, row.p, row.p_equal) if row.n else NO_RUNS for row in frame.itertuples()]
    return frame.drop(columns=["toward", "p_equal"])


def _row(finding: Finding) -> dict:
    values = finding.values.dropna().astype(float)
    effects = by_seed(values).to_numpy().round(9)
    row = {"kind": finding.kind, "claim": finding.claim, "where": finding.where, "what": finding.what}
    row |= {"n": len(effects), "pairs": len(values)}
    row |= dict.fromkeys(("effect", "low", "high", "p", "p_equal"), np.nan) | {"toward": False}
    if len(effects):
        beyond = effects + finding.wanted * finding.margin
        looks = 1 + (len(effects) > LOOKED_AT.get(finding.where, np.inf))
        p, p_equal = (min(1.0, looks * float(chance)) for chance in seed_test(beyond, finding.matters or 0.0))
        low, high = seed_interval(effects)
        row |= {"effect": effects.mean(), "low": float(low), "high": float(high), "p": p}
        row |= {"p_equal": 1.0 if finding.margin else p_equal, "toward": finding.wanted * beyond.mean() > 0}
    return row | {"paper": finding.printed}


# ------------------------------------------------------------------------------------------------ what is measured


def paired(frame: pd.DataFrame, of, against, metric: str, by: str = "method") -> pd.Series:
    """`metric` under one value of the column `by` minus that under another, in points, where both have finished.

    A pair has the same strength and seed and, unless `by` is the method, the same method.
    """
    same = SETTING if by == "method" else ["method", *SETTING]
    a, b = (frame[frame[by] == value].set_index(same)[metric] for value in (of, against))
    if not (a.index.is_unique and b.index.is_unique):
        raise ValueError(f"{of} or {against} has two runs of one setting: they would be paired by their places")
    return 100 * (a - b).dropna()


def growth(frame: pd.DataFrame, method: str) -> pd.Series:
    """Range with augmentation minus range without (crop bound 1), in points, for each crop and seed."""
    wide = frame[frame["method"] == method].pivot(index="strength", columns="seed", values="decile_range")
    without = wide.loc[1.0] if 1.0 in wide.index else np.nan
    return 100 * (wide.drop(index=1.0, errors="ignore") - without).stack().dropna()


def moves(run: Run) -> np.ndarray:
    """How far a class weight moves in each epoch after the first, on average over the classes."""
    return run.wide("weight").diff().abs().mean(axis=1).to_numpy()[1:]


def calming(run: Run) -> float:
    """Moves in the last quarter of the epochs against those in the first, in percent of the latter."""
    move = moves(run)
    quarter = max(1, len(move) // 4)
    return 100 * (move[-quarter:].mean() / move[:quarter].mean() - 1)


def by_setting(runs: Sequence[Run], measure: Callable[[Run], float]) -> pd.Series:
    """A number for each run, by its strength and seed."""
    index = pd.MultiIndex.from_tuples([(run.config.strength, run.config.seed) for run in runs], names=SETTING)
    return pd.Series([measure(run) for run in runs], index=index, dtype=float)


def _late_moves(runs: Sequence[Run]) -> pd.DataFrame:
    late = [{"move": np.array_split(moves(run), 2)[1].mean()} for run in runs]  # the second half
    return as_frame(runs)[["method", *SETTING]].join(pd.DataFrame(late, columns=["move"]))


def _printed(
    table: str, metric: str, against: str = "normal", dataset: str = "fashion_mnist", most: float = 10
) -> float:
    """The paper's CLAM minus another method; for the τ table, the worst τ up to `most` minus τ = 0."""
    rows = paper.results().query("table == @table and metric == @metric and dataset == @dataset")
    value = rows.set_index("method")["value"]
    if table == "tau":
        step = value.index.str.removeprefix("tau=").astype(float)
        return float((value[(step > 0) & (step <= most)] - value["tau=0"]).max())
    return float(value["clam"] - value[against]) * (100 if metric == "cov" else 1)


def _chance_of_none(values: pd.Series, wanted: int) -> float:
    """One-sided p of the seeds' means against the sign `wanted`."""
    effects = by_seed(values).to_numpy()
    p = float(seed_test(effects)[0])
    return p / 2 if wanted * effects.mean() > 0 else 1 - p / 2


# ------------------------------------------------------------------------------------------------------ the claims

CLOSER = "classes closer together than under Normal"
CHEAP = f"it costs less than {COST:g} point of average accuracy"
FASHION, CIFAR10, CIFAR100, MINI_IMAGENET = "Fashion-MNIST", "CIFAR-10", "CIFAR-100", "Mini-ImageNet"
GRIDS = {  # the images, and the runs on them with crops
    FASHION: ("mini_crop", "mini_projection"),
    CIFAR10: ("mini_cifar10",),
    CIFAR100: ("mini_cifar100",),
    MINI_IMAGENET: ("mini_mini_imagenet",),
}
IN_PAPER = {FASHION: "fashion_mnist", CIFAR10: "cifar10", CIFAR100: "cifar100", MINI_IMAGENET: "mini_imagenet"}
TENTHS = range(1, 11)  # of the classes, the worst first
SMALLER = "clam, τ = 0.1"
SMALLER_STEPS = {FASHION: "mini_tau", CIFAR10: "mini_tau_cifar10", CIFAR100: "mini_tau_cifar100"}


def by_images(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> dict[str, pd.DataFrame]:
    """The runs with crops by the images they are on: `as_frame`, CLAM with τ = 0.1 as a method of its own.

    The columns TENTHS are the mean accuracies of the worst (1) to the best (10) tenth of the classes of each run.
    """
    images = {}
    for where, grids in GRIDS.items():
        named = [(run.config.method, run) for grid in grids for run in runs_of(grid)]
        if where in SMALLER_STEPS:
            named += [(SMALLER, run) for run in runs_of(SMALLER_STEPS[where]) if _is_smaller(run)]
        images[where] = _with_tenths(*zip(*named, strict=True)) if named else _with_tenths([], [])
    return images


def _with_tenths(names: Sequence[str], runs: Sequence[Run]) -> pd.DataFrame:
    parts = [
        [part.mean() if part.size else np.nan for part in np.array_split(np.sort(run.test_accuracy), 10)]
        for run in runs
    ]
    return as_frame(runs).assign(method=list(names)).join(pd.DataFrame(parts, columns=TENTHS, dtype=float))


def _is_smaller(run: Run) -> bool:
    return run.config.method == "clam" and run.config.tau == 0.1


def of_the_paper(runs_of: Callable[[str], Sequence[Run]], images: dict[str, pd.DataFrame]) -> Iterator[Finding]:
    """Its claims, each for CLAM as it is in the paper: with the Euclidean projection and τ = 1."""

    def row(claim: str, what: str, values: pd.Series, *rest, where: str = FASHION):
        return Finding("paper", claim, where, what, values, *rest)

    for where in images:
        yield from (
            row(*claim, where=where)
            for claim in _on_images(images[where], runs_of(GRIDS[where][0]), IN_PAPER[where])
            if where == FASHION or len(claim[2])
        )
    tau, jitter, other = (as_frame(runs_of(grid)) for grid in ("mini_tau", "mini_jitter", "mini_architecture"))
    own = tau[tau["method"] == "clam"]
    each = {step: paired(own, step, 0.0, "std", by="tau") for step in sorted(own["tau"].unique()) if step > 0}
    for most in (10, 2):  # a claim on every τ is as sure as on the one that is least sure
        steps = [step for step in each if step <= most]
        least = max(steps, key=lambda step: _chance_of_none(each[step], -1), default=0)
        claim = f"every τ from 0.1 to {most} brings them closer (the least sure here: {least:g})"
        yield row(claim, "std", each.get(least, NO_VALUES), -1, _printed("tau", "std", most=most))
    values = paired(jitter, "clam", "normal", "std")
    yield row("with colour jitter: closer than under Normal", "std", values, -1, _printed("fairness_jitter", "std"))
    nets = other[other["model"].isin(["tiny_vit", "resnet18"])].groupby("model")
    each_net = {model: paired(own, "clam", "normal", "std") for model, own in nets}
    values = pd.concat(each_net, names=["model"]) if each_net else NO_VALUES
    yield row("with a small ViT and a ResNet-18: closer than under Normal", "std", values, -1)
    for where in SMALLER_STEPS:
        of = partial(paired, images[where], SMALLER, "normal")
        printed = dict.fromkeys(("std", "average"))
        if where != CIFAR10:  # which the paper's τ table does not have
            printed = {metric: _printed("tau", metric, dataset=IN_PAPER[where], most=0.1) for metric in printed}
        yield row("with τ = 0.1: closer than under Normal", "std", of("std"), -1, printed["std"], where=where)
        values = of("average")
        yield row(f"with τ = 0.1: {CHEAP}", "average", values, +1, printed["average"], COST, where=where)


def _on_images(frame: pd.DataFrame, runs: Sequence[Run], dataset: str) -> Iterator[tuple]:
    """The claims that are asked of every kind of images: the fields of a `Finding` from the claim on, `where` aside."""
    of, printed = partial(paired, frame, "clam"), partial(_printed, dataset=dataset)
    for metric, name in LOW.items():
        known = printed("fairness_crop", "range" if metric == "decile_range" else metric)
        yield CLOSER, name, of("normal", metric), -1, known
    for rival in RIVALS:
        known = printed("fairness_crop", "std", rival)
        yield f"… than under {METHODS[rival].label}", "std", of(rival, "std"), -1, known
    values = growth(frame, "clam") - growth(frame, "normal")
    known = printed("range_difference", "range_difference")
    yield "augmentation widens the range less", "growth of the range", values, -1, known
    yield "the worst classes gain", "worst 10 %", of("normal", "worst"), +1, printed("worst_crop", "worst")
    yield CHEAP, "average", of("normal", "average"), +1, printed("average_crop", "average"), COST
    clam = [run for run in runs if run.config.method == "clam"]
    values = by_setting(clam, lambda run: 100 * order_agreement(run.wide("weight").iloc[-1], run.test_accuracy))
    claim = "worse classes end with larger weights (paper: order reversed)"
    yield claim, "100 × rank correlation", values, -1, -100.0, 0.0, None
    yield "the weights come to rest", "moves, last quarter to first, %", by_setting(clam, calming), -1, None, 0.0, None
    values = paired(_late_moves(runs), "apstar", "clam", "move")
    yield "APStar's weights are less steady", "100 × late moves", values, +1, None, 0.0, None


def left_open(runs_of: Callable[[str], Sequence[Run]], images: dict[str, pd.DataFrame]) -> Iterator[Finding]:
    """What the paper does not ask; the wanted sign is that of an improvement. On other images only what has run."""
    crop = images[FASHION]
    looks = pd.concat([as_frame(runs_of("mini_accuracy")), crop[crop["method"].isin(["clam", "clam_kl"])]])
    looks["look"] = looks["accuracy_from"].astype(object).where(looks["accuracy_from"].notna(), "epoch")
    looks.loc[looks["epochs"] > looks["epochs"].min(), "look"] = "longer"

    def rows(question: str, where: str, frame: pd.DataFrame, of: str, against: str, by: str = "method"):
        for metric, wanted in (("std", -1), ("average", +1)):
            yield Finding("open", question, where, metric, paired(frame, of, against, metric, by), wanted)

    def everywhere(question: str, of: str, against: str) -> Iterator[Finding]:
        for where, frame in images.items():
            found = rows(question, where, frame, of, against)
            yield from (one for one in found if where == FASHION or len(one.values))

    for method, name in (
        ("clam_kl", "KL projection"),
        ("clam_clip", "the proof's clip"),
        ("clam_released", RELEASED_CLIP),
    ):
        yield from everywhere(f"{name} against the Euclidean projection", method, "clam")
    yield from everywhere(f"{RELEASED_CLIP} against the KL projection", "clam_released", "clam_kl")
    yield from everywhere("τ = 0.1 against τ = 1 (Euclidean projection)", SMALLER, "clam")
    for look, name in (("pass", "a second augmented pass"), ("clean", "a clean pass")):
        question = f"accuracies from {name} against those counted while training (both projections)"
        yield from rows(question, FASHION, looks, look, "epoch", "look")
    question = "19 epochs that count against 15 with a second augmented pass, in the same time (both projections)"
    yield from rows(question, FASHION, looks, "longer", "pass", "look")
    for where, frame in images.items():
        question, values = "CLAM against Normal, for those who are best off", paired(frame, "clam", "normal", "best")
        yield Finding("open", question, where, "best 10 %", values, +1)
    for rival in ("tce", "ggf", "apstar", "maxmin"):
        yield from everywhere(f"{METHODS[rival].label} against CLAM with the KL projection", rival, "clam_kl")
    yield from everywhere(f"{METHODS['tce'].label} against CLAM with τ = 0.1", "tce", SMALLER)


# ------------------------------------------------------------------------------------------------------ the regimes

REGIMES = {  # where, the grid of its runs, the paper's dataset that is the same
    "small networks: Fashion-MNIST (part)": ("small_embedded", None),
    "the paper's accuracy: Fashion-MNIST": ("fast_fashion_mnist", "fashion_mnist"),
    "the paper's accuracy: CIFAR-10": ("fast_cifar10", "cifar10"),
    "the paper's accuracy: CIFAR-100": ("fast_cifar100", "cifar100"),
    "100 % training accuracy: Fashion-MNIST (part)": ("long_embedded", None),
}
# Seeds that had been looked at when more were run: with more than these, p counts both looks (Bonferroni).
LOOKED_AT = {"small networks: Fashion-MNIST (part)": 5, "the paper's accuracy: Fashion-MNIST": 3}
CONTROL, TAIL_CONTROL = ("normal" + BIASES[objective] for objective in ("average-std", "worst-tail"))
TAIL_BIASES = "Normal with class biases for the worst tenth"
RIVALS_OF_NORMAL = {
    "clam": "CLAM",
    "clam_kl": "CLAM with the KL projection",
    SMALLER: "CLAM with τ = 0.1",
    "clam_kl, τ = 0.1": "CLAM with the KL projection and τ = 0.1",
    "tce": "TCE",
    "ggf": "GGF",
    CONTROL: "Normal with class biases",
}


def runs_by_regime(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> dict[str, list[Run]]:
    """The runs of each regime that has any, and Normal's once more with class biases of each kind that is at hand.

    Only at the strengths that CLAM has runs at, where it has any: all answers of a regime are about the same crops.
    """
    regimes = {}
    for where, (grid, _) in REGIMES.items():
        runs = list(runs_of(grid))
        strengths = {run.config.strength for run in runs if run.config.method == "clam"}
        runs = [run for run in runs if run.config.strength in strengths or not strengths]
        normal = [run for run in runs if run.config.method == "normal"]
        kinds = [{"average-std", *getattr(run, "biased_accuracy", BIASES)} for run in normal]
        biased = [with_biases(run, kind) for run, own in zip(normal, kinds, strict=True) for kind in sorted(own)]
        regimes[where] = runs + biased
    return {where: runs for where, runs in regimes.items() if runs}


def by_regime(regimes: dict[str, list[Run]]) -> dict[str, pd.DataFrame]:
    """`as_frame` of the runs, with TENTHS; another setting of a method is a method of its own.

    `trained` is the mean training accuracy of the last epoch, under the augmentation of the run.
    """
    frames = {}
    for where, runs in regimes.items():
        trained = [float(run.wide("train_accuracy").iloc[-1].mean()) for run in runs]
        frames[where] = _with_tenths([_named(run) for run in runs], runs).assign(trained=trained)
    return frames


def _named(run: Run) -> str:
    config = run.config
    settings = {
        f"τ = {config.tau:g}": config.tau != 1,
        f"by {config.accuracy_from}": config.accuracy_from,
        "on sampling": config.acts_on == "sampling",
    }
    return ", ".join([config.method, *(name for name, differs in settings.items() if differs)])


def regime_summary(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How many runs each regime has, and where Normal stands in it, in percent, beside the paper's average."""
    rows = {}
    for where, frame in frames.items():
        normal, known = frame[frame["method"] == "normal"], printed_average(where)
        means = 100 * normal[["trained", "average", "std", "worst"]].mean()
        trained = ~frame["method"].str.contains("+", regex=False)
        rows[where] = {"runs": int(trained.sum()), "seeds": normal["seed"].nunique()} | means.round(1).to_dict()
        rows[where]["paper"] = f"{known:.1f}" if known else "–"
    return pd.DataFrame(rows).T.astype({"runs": int, "seeds": int}) if rows else pd.DataFrame()


def printed_average(where: str) -> float | None:
    """The paper's average accuracy of Normal with crops on the images of a regime, in percent."""
    known = paper.results().query("table == 'average_crop' and method == 'normal'").set_index("dataset")["value"]
    return known.get(REGIMES[where][1])


def since_first_edition(found: pd.DataFrame) -> pd.DataFrame:
    """The first edition's verdicts on the paper's claims beside those of `found`: claim, what, where, then, now."""
    then = pd.read_csv(Path(__file__).with_name("first_edition.csv"))
    now = found.rename(columns={"verdict": "now"})[["claim", "what", "where", "now"]]
    now = now.assign(claim=now["claim"].str.replace(r" \(the least sure.*\)", "", regex=True))
    return now.merge(then, on=["claim", "what", "where"])[["claim", "what", "where", "then", "now"]]


def of_regimes(regimes: dict[str, pd.DataFrame]) -> Iterator[Finding]:
    """The main questions in each regime: who is fairer than Normal, at what cost, and is CLAM fairer than biases?"""
    for where in regimes:
        for method in RIVALS_OF_NORMAL:
            yield from _main_questions(regimes[where], where, method, "normal")
        for method in ("clam", "clam_kl"):
            yield from _main_questions(regimes[where], where, method, CONTROL)
        for metric, wanted, claim in BETTER[1:]:
            values = paired(regimes[where], TAIL_CONTROL, "clam", metric)
            if len(values):
                yield Finding(where, f"{TAIL_BIASES} {claim} CLAM", where, metric, values, wanted)
        for method in ("clam", "clam_kl"):
            name = RIVALS_OF_NORMAL[method]
            claim = f"{name} by held-out accuracies is less accurate on test images (the paper's warning)"
            values = paired(regimes[where], f"{method}, by holdout", method, "average")
            if len(values):
                yield Finding(where, claim, where, "average", values, -1)


BETTER = (
    ("std", -1, "brings the classes closer than"),
    ("worst", +1, "lifts the worst tenth of the classes above that of"),
    ("average", +1, "is more accurate than"),
)


def of_average(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> Iterator[Finding]:
    """Algorithm 1 calls for the average of the weights over the rounds: trained with it, is CLAM another one?"""
    where = next(iter(REGIMES))
    frame = as_frame([*runs_of(REGIMES[where][0]), *runs_of("small_average")])
    frame = frame[frame["accuracy_from"].isna()] if "accuracy_from" in frame else frame
    for metric, wanted, claim in BETTER:
        values = paired(frame, "fixed", "clam", metric) if len(frame) else NO_VALUES
        if len(values):
            yield Finding(
                "averaged", f"Training with the mean of CLAM's weights {claim} CLAM", where, metric, values, wanted
            )


def equal_effort(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> pd.DataFrame:
    """Fresh runs of every method with the setting chosen for it on held-out images, and Normal's with class biases."""
    runs = list(runs_of("small_chosen"))
    return as_frame(runs + [with_biases(run) for run in runs if run.config.method == "normal"])


def of_effort(frame: pd.DataFrame) -> Iterator[Finding]:
    """With as much tuning for each, is any method better than class biases? Of the frame of `equal_effort`."""
    where = next(iter(REGIMES))
    for method in [] if frame.empty else frame["method"].unique():
        if method not in ("normal", CONTROL):
            for metric, wanted, claim in BETTER:
                values = paired(frame, method, CONTROL, metric)
                sentence = f"{METHODS[method].label} {claim} Normal with biases"
                yield Finding("effort", sentence, where, metric, values, wanted)


def _main_questions(frame: pd.DataFrame, where: str, of: str, against: str) -> Iterator[Finding]:
    name, beside = RIVALS_OF_NORMAL[of], "Normal" if against == "normal" else "Normal with biases"
    dataset = REGIMES[where][1] if (of, against) == ("clam", "normal") else None
    cheap = f"{name} costs less than {COST:g} point of average accuracy against {beside}"
    for claim, metric, wanted, margin, table_of_paper in (
        (f"{name} brings the classes closer than {beside}", "std", -1, 0.0, "fairness_crop"),
        (f"{name} lifts the worst tenth of the classes above that of {beside}", "worst", +1, 0.0, "worst_crop"),
        (cheap, "average", +1, COST, "average_crop"),
    ):
        values = paired(frame, of, against, metric)
        printed = _printed(table_of_paper, metric, dataset=dataset) if dataset else None
        if len(values):
            yield Finding(where, claim, where, metric, values, wanted, printed, margin)


# -------------------------------------------------------------------------------------------------------- for people

VERBS = ("brings", "lifts", "costs")
OPEN_WORDS = {"supported": "better", "the opposite": "worse"}  # of the verdicts, for questions that are open


def as_markdown(frame: pd.DataFrame) -> str:
    """Rows of `findings()` as a table: a line for each claim and what is measured, a column for each kind of images.

    A cell has the verdict and the number of seeds, the effect with its interval, p and the paper's number.
    """
    if frame.empty:
        return NO_RUNS
    frame = frame.assign(cell=[_cell(row) for row in frame.itertuples()])
    wide = frame.pivot_table("cell", ["claim", "what"], "where", "first", sort=False, fill_value="")
    lines = [["", *wide.columns], ["---"] * (1 + wide.shape[1])]
    before = None
    for (claim, what), *cells in wide.itertuples():
        lines.append([f"*{what}*" if claim == before else f"{claim}: *{what}*", *cells])
        before = claim
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main_findings(runs_of: Callable[[str], Sequence[Run]] = load_runs) -> pd.DataFrame:
    """The table of `of_regimes`."""
    return table(list(of_regimes(by_regime(runs_by_regime(runs_of)))))


def _cell(row) -> str:
    verdict = OPEN_WORDS.get(row.verdict, row.verdict) if row.kind == "open" else row.verdict
    if not row.n:
        return verdict
    interval = f" [{signed(row.low)}, {signed(row.high)}]" if row.n > 1 else ""
    sure = [f"p {chance(row.p)}"] if row.n >= FEWEST else []  # fewer seeds are not tested
    paper_says = [] if pd.isna(row.paper) else [f"paper {signed(row.paper)}"]
    lines = [f"**{verdict}** ({row.n})", f"{signed(row.effect)}{interval}", ", ".join(sure + paper_says)]
    return "<br>".join(filter(None, lines)).replace(" ", "\N{NO-BREAK SPACE}")


def signed(points: float) -> str:
    """An effect for people: the same on every page, so the last bits of sums and of float32 are left aside."""
    return number(round(points, 5), 1, sign=True)


def chance(p: float) -> str:
    """A p-value for people."""
    if p < 0.001:
        return "< 0.001"
    return f"{p:.4f}" if round(p, 3) == LEVEL else f"{p:.3f}"  # on which side of the level it lies
