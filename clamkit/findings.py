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

from clamkit import paper
from clamkit.methods import METHODS
from clamkit.metrics import compare, holm, judge, order_agreement
from clamkit.runs import Run, as_frame
from clamkit.sweep import at_hand

LEVEL = 0.05
RELEASED = "the released clip"
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


def findings(runs_of: Callable[[str], Sequence[Run]] = at_hand) -> pd.DataFrame:
    """One row for each claim and question: claim, where, what, n, effect, low, high, p, paper, verdict."""
    runs_of = cache(runs_of)
    images = _images(runs_of)
    return table([*of_the_paper(runs_of, images), *left_open(runs_of, images)])


def prices(runs_of: Callable[[str], Sequence[Run]] = at_hand) -> dict[str, dict[str, pd.DataFrame]]:
    """Average and std against Normal with intervals, by the images and then the method."""
    return {
        where: {
            method: judge(frame, method, "normal", ["average", "std"])
            for method in frame["method"].unique()
            if method != "normal"
        }
        for where, frame in _images(runs_of).items()
    }


def table(found: Sequence[Finding]) -> pd.DataFrame:
    """Wilcoxon signed-rank tests of the values against the margin, corrected over all rows of a kind after Holm.

    Not decidable: so few values that no outcome could pass the test, or an interval wholly on the side of the claim
    where the corrected test does not pass.
    """
    rows = []
    for finding in found:
        values = finding.values.dropna().astype(float).reset_index(drop=True)
        row = {"kind": finding.kind, "claim": finding.claim, "where": finding.where, "what": finding.what}
        row |= {
            "n": len(values),
            "effect": np.nan,
            "low": np.nan,
            "high": np.nan,
            "p": np.nan,
            "toward": False,
            "points": False,
        }
        if len(values):
            beyond = compare(values, pd.Series(-finding.wanted * finding.margin, index=values.index)).iloc[0]
            shift = values.mean() - beyond["mean_difference"]
            row |= {"effect": values.mean(), "low": beyond["ci_low"] + shift, "high": beyond["ci_high"] + shift}
            near, _ = sorted((finding.wanted * beyond["ci_low"], finding.wanted * beyond["ci_high"]))
            row |= {"p": beyond["p"], "toward": finding.wanted * beyond["mean_difference"] > 0, "points": near > 0}
        rows.append(row | {"paper": finding.printed})
    frame = pd.DataFrame(rows)
    seen = frame["n"] > 0
    for _, family in frame[seen].groupby("kind"):
        frame.loc[family.index, "p"] = holm(family["p"].to_numpy())
    size = frame["kind"].map(frame[seen].groupby("kind").size())
    smallest = size * 2.0 ** (1 - frame["n"])  # the least a corrected p can be
    frame["verdict"] = np.select(
        [~seen, (frame["p"] <= LEVEL) & frame["toward"], frame["p"] <= LEVEL, (smallest > LEVEL) | frame["points"]],
        ["not decidable yet: no runs", "supported", "not supported: the opposite", "not decidable at this scale"],
        "not supported",
    )
    return frame.drop(columns=["toward", "points"])


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
    if 1.0 not in wide.index:
        return pd.Series(dtype=float)
    return 100 * (wide.drop(index=1.0) - wide.loc[1.0]).stack()


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

CHEAP = f"it costs less than {COST:g} point of average accuracy"
FASHION = "Fashion-MNIST part, crops"
CIFAR10 = "CIFAR-10, 1,000 images a class"
CIFAR100 = "CIFAR-100, 150 images a class"
OTHER_IMAGES = {
    CIFAR10: "mini_cifar10",
    CIFAR100: "mini_cifar100",
    "Mini-ImageNet, 50 images a class": "mini_mini_imagenet",
}
SMALLER = "clam, τ = 0.1"
SMALLER_STEPS = {FASHION: "mini_tau", CIFAR10: "mini_tau_cifar10", CIFAR100: "mini_tau_cifar100"}


def _images(runs_of: Callable[[str], Sequence[Run]]) -> dict[str, pd.DataFrame]:
    """The runs with crops by the images they are on; CLAM with a smaller step as a method of its own."""
    grids = {FASHION: ["mini_crop", "mini_projection"]} | {where: [grid] for where, grid in OTHER_IMAGES.items()}
    images = {where: as_frame([run for name in names for run in runs_of(name)]) for where, names in grids.items()}
    for where, grid in SMALLER_STEPS.items():
        steps = as_frame(runs_of(grid)).query("method == 'clam' and tau == 0.1").assign(method=SMALLER)
        images[where] = pd.concat([images[where], steps], ignore_index=True)
    return images


def of_the_paper(runs_of: Callable[[str], Sequence[Run]], images: dict[str, pd.DataFrame]) -> Iterator[Finding]:
    """Its claims, each for CLAM as it is in the paper: with the Euclidean projection and τ = 1."""
    runs = runs_of("mini_crop")
    clam = [run for run in (*runs, *runs_of("mini_long")) if run.config.method == "clam"]
    crop, jitter, other, tau = (
        as_frame(runs_of(grid)) for grid in ("mini_crop", "mini_jitter", "mini_architecture", "mini_tau")
    )

    def row(claim: str, what: str, values, wanted: int, printed=None, *, where: str = FASHION, margin: float = 0.0):
        return Finding("paper", claim, where, what, pd.Series(values, dtype=float), wanted, printed, margin)

    for metric, name in LOW.items():
        printed = _printed("fairness_crop", "range" if metric == "decile_range" else metric)
        yield row(
            "the classes lie closer together than under Normal",
            name,
            paired(crop, "clam", "normal", metric),
            -1,
            printed,
        )
    for rival in RIVALS:
        values = paired(crop, "clam", rival, "std")
        yield row(f"… than under {METHODS[rival].label}", "std", values, -1, _printed("fairness_crop", "std", rival))
    values = growth(crop, "clam") - growth(crop, "normal")
    printed = _printed("range_difference", "range_difference")
    yield row("augmentation widens the range less", "growth of the range", values, -1, printed)
    values = paired(crop, "clam", "normal", "worst")
    yield row("the worst classes gain", "worst 10 %", values, +1, _printed("worst_crop", "worst"))
    values = paired(crop, "clam", "normal", "average")
    yield row(CHEAP, "average", values, +1, _printed("average_crop", "average"), margin=COST)
    values = [100 * order_agreement(run.wide("weight").iloc[-1], run.test_accuracy) for run in clam]
    claim = "worse classes end with larger weights (paper: exactly reversed order)"
    yield row(claim, "100 × rank correlation", values, -1, -100.0)
    values = [calming(run) for run in clam]
    yield row("the weights come to rest", "moves, last quarter to first, %", values, -1)
    for where, of_grid in ((FASHION, runs), (CIFAR100, runs_of("mini_cifar100"))):
        values = paired(_late_moves(of_grid), "apstar", "clam", "move")
        yield row("APStar's weights are less steady", "100 × late moves", values, +1, where=where)
    own = tau[tau["method"] == "clam"]
    each = {step: paired(own, step, 0.0, "std", by="tau") for step in sorted(own["tau"].unique()) if step > 0}
    for most in (10, 2):
        worst = max((step for step in each if step <= most), key=lambda step: each[step].mean(), default=0)
        claim = f"every τ from 0.1 to {most} helps (the worst here: {worst:g})"
        yield row(claim, "std", each.get(worst), -1, _printed("tau", "std", most=most))
    where = "Fashion-MNIST part, colour jitter"
    values = paired(jitter, "clam", "normal", "std")
    yield row("the same with another augmentation", "std", values, -1, _printed("fairness_jitter", "std"), where=where)
    each_net = [paired(other[other["model"] == model], "clam", "normal", "std") for model in ("tiny_vit", "resnet18")]
    where = "Fashion-MNIST part, a small ViT and ResNet-18"
    yield row("the same with other networks", "std", pd.concat(each_net), -1, where=where)
    for where, grid in OTHER_IMAGES.items():
        of = partial(paired, images[where], "clam")
        printed = partial(_printed, dataset=grid.removeprefix("mini_"))
        claim = "the same on other images"
        for metric in ("std", "cov"):
            values = of("normal", metric)
            yield row(claim, LOW[metric], values, -1, printed("fairness_crop", metric), where=where)
        for rival in RIVALS:
            if len(values := of(rival, "std")):
                claim = f"… than under {METHODS[rival].label}"
                yield row(claim, "std", values, -1, printed("fairness_crop", "std", rival), where=where)
        claim = "… the worst classes gain"
        yield row(claim, "worst 10 %", of("normal", "worst"), +1, printed("worst_crop", "worst"), where=where)
        values = of("normal", "average")
        yield row(f"… {CHEAP}", "average", values, +1, printed("average_crop", "average"), where=where, margin=COST)
    in_tau_table = {FASHION: "fashion_mnist", CIFAR100: "cifar100"}
    for where in SMALLER_STEPS:
        of = partial(paired, images[where], SMALLER, "normal")
        printed = {
            metric: _printed("tau", metric, dataset=in_tau_table[where], most=0.1) if where in in_tau_table else None
            for metric in ("std", "average")
        }
        yield row("the same with τ = 0.1", "std", of("std"), -1, printed["std"], where=where)
        yield row(f"… {CHEAP}", "average", of("average"), +1, printed["average"], where=where, margin=COST)


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

    for method, name in (("clam_kl", "KL projection"), ("clam_clip", "the proof's clip"), ("clam_released", RELEASED)):
        yield from everywhere(f"{name} against the Euclidean projection", method, "clam")
    yield from everywhere(f"{RELEASED} against the KL projection", "clam_released", "clam_kl")
    yield from everywhere("τ = 0.1 against τ = 1 (Euclidean projection)", SMALLER, "clam")
    for look, name in (("pass", "a second augmented pass"), ("clean", "a clean pass")):
        question = f"accuracies from {name} against those counted while training (both projections)"
        yield from rows(question, FASHION, looks, look, "epoch", "look")
    question = "19 epochs that count against 15 with a second augmented pass, in the same time (both projections)"
    yield from rows(question, FASHION, looks, "longer", "pass", "look")
    for rival in ("tce", "ggf", "apstar", "maxmin"):
        yield from everywhere(f"{METHODS[rival].label} against CLAM with the KL projection", rival, "clam_kl")
    yield from everywhere(f"{METHODS['tce'].label} against CLAM with τ = 0.1", "tce", SMALLER)


# -------------------------------------------------------------------------------------------------------- for people


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """`findings()` as text: effect and interval in one column, rounded."""

    def ours(row) -> str:
        interval = f" [{row.low:+z.1f}, {row.high:+z.1f}]" if row.n > 1 else ""
        return f"{row.effect:+z.1f}{interval}".replace("-", "−") if row.n else ""

    def chance(p: float) -> str:
        if np.isnan(p) or p < 0.001:
            return "" if np.isnan(p) else "< 0.001"
        return f"{p:.4f}" if round(p, 3) == LEVEL else f"{p:.3f}"  # on which side of the level it lies

    columns = {
        "claim": frame["claim"],
        "where": frame["where"],
        "measured": frame["what"],
        "pairs or runs": frame["n"].astype(str),
        "ours [95 %]": [ours(row) for row in frame.itertuples()],
        "p": [chance(p) for p in frame["p"]],
        "paper": ["" if np.isnan(x) else f"{x:+.1f}".replace("-", "−") for x in frame["paper"].astype(float)],
        "verdict": frame["verdict"],
    }
    return pd.DataFrame(columns)


ANSWERS = {
    "supported": "better",
    "not supported: the opposite": "worse",
    "not supported": "no gain shown",
    "not decidable at this scale": "undecided",
}


def answers(frame: pd.DataFrame) -> pd.DataFrame:
    """The open questions as text, one row for each and each place: is the first better, in std and on average?"""
    text = shown(frame).rename(columns={"claim": "question"})
    chance = text["p"].where(text["p"].str.startswith("<"), "= " + text["p"])
    text["answer"] = (text["ours [95 %]"] + ", p " + chance + ": " + text["verdict"].map(ANSWERS)).where(
        frame["n"] > 0, "no runs yet"
    )
    names = ["question", "where", "pairs or runs"]
    return text.pivot_table("answer", names, "measured", "first", sort=False).reset_index()


def in_readme(runs_of: Callable[[str], Sequence[Run]] = at_hand) -> dict[str, str]:
    """The tables of the README, by the name of their place in it."""
    found = findings(runs_of)
    return {
        "findings": as_markdown(shown(found[found["kind"] == "paper"])),
        "open": as_markdown(answers(found[found["kind"] == "open"])),
    }


def as_markdown(text: pd.DataFrame) -> str:
    """A table of text for the README."""
    lines = [list(text), ["---"] * text.shape[1], *text.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
