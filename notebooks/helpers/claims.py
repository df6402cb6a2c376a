"""The paper's claims, and questions it leaves open, decided by our own runs.

`findings()` gives one row for each: the effect with a 95 % interval, the p-value corrected over all of its kind, what
the paper prints, and a verdict. The runs are those of the grids `mini_*`, finished here or committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare

from clamkit.engine.store import Run, as_frame
from clamkit.lab import paper
from clamkit.lab.results import load_runs
from clamkit.methods.specs import METHODS
from clamkit.metrics import LEVEL, compare, compare_groups, decide, holm, order_agreement, smallest_p

RELEASED_CLIP = "the released clip"
NO_RUNS = "no runs yet"
COST = 1.0  # points of average accuracy that "limited cost" may be; the paper's largest is 0.7 (ImageNet)
LOW = {"std": "std", "cov": "100 · COV", "decile_range": "range"}  # what equity means: the lower, the better
SETTING = ["strength", "seed"]
RIVALS = ("focal", "pw", "tce", "ggf")


@dataclass(frozen=True)
class Finding:
    """A claim and what our runs say to it.

    values   one number for each pair of runs (same augmentation, strength and seed) or for each run, in points
    wanted   the sign that the claim gives them, beyond `margin`
    printed  the paper's own number
    """

    kind: str  # "paper" or "open": claimed there, or asked here
    claim: str
    where: str
    what: str
    values: pd.Series
    wanted: int
    printed: float | None = None
    margin: float = 0.0


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
    """Wilcoxon signed-rank tests of the values against the margin, corrected over all rows of a kind after Holm.

    The verdicts are those of `metrics.decide`.
    """
    frame = pd.DataFrame([_row(finding) for finding in found])
    seen = frame["n"] > 0
    for _, family in frame[seen].groupby("kind"):
        frame.loc[family.index, "p"] = holm(family["p"].to_numpy())
    size = frame["kind"].map(frame[seen].groupby("kind").size())
    frame["verdict"] = [
        decide(row.toward, row.p, smallest_p(row.n, claims), interval_toward=row.interval_toward) if row.n else NO_RUNS
        for row, claims in zip(frame.itertuples(), size, strict=True)
    ]
    return frame.drop(columns=["toward", "interval_toward"])


def _row(finding: Finding) -> dict:
    values = finding.values.dropna().astype(float).reset_index(drop=True)
    row = {"kind": finding.kind, "claim": finding.claim, "where": finding.where, "what": finding.what, "n": len(values)}
    row |= dict.fromkeys(("effect", "low", "high", "p"), np.nan) | dict.fromkeys(("toward", "interval_toward"), False)
    if len(values):
        beyond = compare(values, pd.Series(-finding.wanted * finding.margin, index=values.index)).iloc[0]
        shift = values.mean() - beyond["mean_difference"]
        row |= {"effect": values.mean(), "low": beyond["ci_low"] + shift, "high": beyond["ci_high"] + shift}
        nearest_zero = min(finding.wanted * beyond["ci_low"], finding.wanted * beyond["ci_high"])
        row |= {"p": beyond["p"], "toward": finding.wanted * beyond["effect"] > 0}  # the sign that p is of
        row |= {"interval_toward": nearest_zero > 0}
    return row | {"paper": finding.printed}


# ------------------------------------------------------------------------------------------------ what is measured


def paired(frame: pd.DataFrame, of, against, metric: str, by: str = "method") -> pd.Series:
    """`metric` under one value of the column `by` minus that under another, in points, where both have finished.

    A pair has the same strength and seed and, unless `by` is the method, the same method.
    """
    same = SETTING if by == "method" else ["method", *SETTING]
    a, b = (frame[frame[by] == value].set_index(same)[metric] for value in (of, against))
    return 100 * (a - b).dropna()


def growth(frame: pd.DataFrame, method: str) -> pd.Series:
    """Range with augmentation minus range without (crop bound 1), in points, for each crop and seed."""
    wide = frame[frame["method"] == method].pivot(index="strength", columns="seed", values="decile_range")
    without = wide.loc[1.0] if 1.0 in wide.index else np.nan
    return 100 * (wide.drop(index=1.0, errors="ignore") - without).stack().dropna()


def seed_by_seed(images: dict[str, pd.DataFrame], metrics: Sequence[str] = ("average", "std", "worst")) -> pd.DataFrame:
    """CLAM minus Normal, a column for the mean of each seed: are pairs of the same seed correlated?

    p is that of Friedman's test that the seeds differ, over the crops that have run with all of them.
    """
    rows = {}
    for where, frame in images.items():
        for metric in metrics:
            wide = paired(frame, "clam", "normal", metric).unstack("seed")
            whole = wide.dropna()
            p = friedmanchisquare(*whole.T.to_numpy()).pvalue if whole.shape[1] > 2 and len(whole) > 1 else np.nan
            rows[where, metric] = wide.mean().add_prefix("seed ") if len(wide) else pd.Series(dtype=float)
            rows[where, metric]["p"] = p
    found = pd.DataFrame(rows).T.rename_axis(["images", "metric"])
    return found[[*found.columns.drop("p"), "p"]]


def moves(run: Run) -> np.ndarray:
    """How far a class weight moves in each epoch after the first, on average over the classes."""
    return run.wide("weight").diff().abs().mean(axis=1).to_numpy()[1:]


def calming(run: Run) -> float:
    """Moves in the last quarter of the epochs against those in the first, in percent of the latter."""
    move = moves(run)
    quarter = max(1, len(move) // 4)
    return 100 * (move[-quarter:].mean() / move[:quarter].mean() - 1)


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
        parts = [[part.mean() for part in np.array_split(np.sort(run.test_accuracy), 10)] for _, run in named]
        frame = as_frame([run for _, run in named]).assign(method=[name for name, _ in named])
        images[where] = frame.join(pd.DataFrame(parts, columns=TENTHS, dtype=float))
    return images


def _is_smaller(run: Run) -> bool:
    return run.config.method == "clam" and run.config.tau == 0.1


def of_the_paper(runs_of: Callable[[str], Sequence[Run]], images: dict[str, pd.DataFrame]) -> Iterator[Finding]:
    """Its claims, each for CLAM as it is in the paper: with the Euclidean projection and τ = 1."""

    def row(claim: str, what: str, values, wanted: int, printed=None, margin: float = 0.0, *, where: str = FASHION):
        return Finding("paper", claim, where, what, pd.Series(values, dtype=float), wanted, printed, margin)

    for where in images:
        yield from (
            row(*claim, where=where)
            for claim in _on_images(images[where], runs_of(GRIDS[where][0]), IN_PAPER[where])
            if where == FASHION or len(claim[2])
        )
    tau, jitter, other = (as_frame(runs_of(grid)) for grid in ("mini_tau", "mini_jitter", "mini_architecture"))
    own = tau[tau["method"] == "clam"]
    each = {step: paired(own, step, 0.0, "std", by="tau") for step in sorted(own["tau"].unique()) if step > 0}
    for most in (10, 2):
        worst = max((step for step in each if step <= most), key=lambda step: each[step].mean(), default=0)
        claim = f"every τ from 0.1 to {most} brings them closer (the worst here: {worst:g})"
        yield row(claim, "std", each.get(worst), -1, _printed("tau", "std", most=most))
    values = paired(jitter, "clam", "normal", "std")
    yield row("with colour jitter: closer than under Normal", "std", values, -1, _printed("fairness_jitter", "std"))
    each_net = [paired(other[other["model"] == model], "clam", "normal", "std") for model in ("tiny_vit", "resnet18")]
    yield row("with a small ViT and a ResNet-18: closer than under Normal", "std", pd.concat(each_net), -1)
    for where in SMALLER_STEPS:
        of = partial(paired, images[where], SMALLER, "normal")
        printed = dict.fromkeys(("std", "average"))
        if where != CIFAR10:  # which the paper's τ table does not have
            printed = {metric: _printed("tau", metric, dataset=IN_PAPER[where], most=0.1) for metric in printed}
        yield row("with τ = 0.1: closer than under Normal", "std", of("std"), -1, printed["std"], where=where)
        values = of("average")
        yield row(f"with τ = 0.1: {CHEAP}", "average", values, +1, printed["average"], COST, where=where)


def _on_images(frame: pd.DataFrame, runs: Sequence[Run], dataset: str) -> Iterator[tuple]:
    """The claims that are asked of every kind of images: claim, what, values, wanted[, printed[, margin]]."""
    of, printed = partial(paired, frame, "clam"), partial(_printed, dataset=dataset)
    for metric, name in LOW.items():
        known = printed("fairness_crop", "range" if metric == "decile_range" else metric)
        yield CLOSER, name, of("normal", metric), -1, known
    for rival in RIVALS:
        known = printed("fairness_crop", "std", rival)
        yield f"… than under {METHODS[rival].label}", "std", of(rival, "std"), -1, known
    values = growth(frame, "clam") - growth(frame, "normal")
    values = values.groupby("seed").mean()  # a seed has one run without crops, which all its growths share
    known = printed("range_difference", "range_difference")
    yield "augmentation widens the range less", "growth of the range, by seed", values, -1, known
    yield "the worst classes gain", "worst 10 %", of("normal", "worst"), +1, printed("worst_crop", "worst")
    yield CHEAP, "average", of("normal", "average"), +1, printed("average_crop", "average"), COST
    clam = [run for run in runs if run.config.method == "clam"]
    values = [100 * order_agreement(run.wide("weight").iloc[-1], run.test_accuracy) for run in clam]
    yield "worse classes end with larger weights (paper: order reversed)", "100 × rank correlation", values, -1, -100.0
    yield "the weights come to rest", "moves, last quarter to first, %", [calming(run) for run in clam], -1
    values = paired(_late_moves(runs), "apstar", "clam", "move")
    yield "APStar's weights are less steady", "100 × late moves", values, +1


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


# -------------------------------------------------------------------------------------------------------- for people

README_START, README_END = "<!-- findings -->", "<!-- -->"
OPEN_WORDS = {  # of the verdicts, for questions that are open
    "supported": "better",
    "the opposite": "worse",
    "not supported": "no gain shown",
    "not decidable": "undecided",
}


def as_markdown(frame: pd.DataFrame) -> str:
    """Rows of `findings()` as a table: a line for each claim and what is measured, a column for each kind of images.

    A cell has the verdict and the number of pairs or runs, the effect with its interval, p and the paper's number.
    """
    frame = frame.assign(cell=[_cell(row) for row in frame.itertuples()])
    wide = frame.pivot_table("cell", ["claim", "what"], "where", "first", sort=False, fill_value="")
    lines = [["", *wide.columns], ["---"] * (1 + wide.shape[1])]
    before = None
    for (claim, what), *cells in wide.itertuples():
        lines.append([f"*{what}*" if claim == before else f"{claim}: *{what}*", *cells])
        before = claim
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_readme(text: str, frame: pd.DataFrame) -> str:
    """The README's text with its table of the paper's claims, between two comments, written anew."""
    start, end = text.index(README_START) + len(README_START), text.index(README_END)
    return f"{text[:start]}\n\n{as_markdown(frame[frame['kind'] == 'paper'])}\n\n{text[end:]}"


def _cell(row) -> str:
    verdict = OPEN_WORDS.get(row.verdict, row.verdict) if row.kind == "open" else row.verdict
    if not row.n:
        return verdict
    interval = f" [{row.low:+z.1f}, {row.high:+z.1f}]" if row.n > 1 else ""
    paper_says = "" if pd.isna(row.paper) else f", paper {row.paper:+z.1f}"
    lines = f"**{verdict}** ({row.n})<br>{row.effect:+z.1f}{interval}<br>p {_chance(row.p)}{paper_says}"
    return lines.replace("-", "−").replace(" ", "\N{NO-BREAK SPACE}")


def _chance(p: float) -> str:
    if p < 0.001:
        return "< 0.001"
    return f"{p:.4f}" if round(p, 3) == LEVEL else f"{p:.3f}"  # on which side of the level it lies
