"""The paper's printed numbers checked against its text and against each other.

claims()  each claim of the text that the numbers can decide
errata()  what does not fit together
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure

from clamkit.errors import unknown
from clamkit.lab import paper
from clamkit.lab.recipes import PAPER_EPOCHS
from clamkit.methods.specs import METHODS, PAPER_CLASSES
from clamkit.metrics import HIGHER_IS_BETTER, TAIL, tail_size
from clamkit.plots import COLOURS, MARKERS, label, styled
from helpers.players import ALPHA_ASSUMED, tau_paper

ROUNDING = 0.05  # half a unit of the last printed digit, in percent
SETTINGS = 8  # augmentation settings behind each printed mean, one of them without augmentation
DIGITS = 6  # differences of printed numbers are rounded here, so that equal is equal
DATASET_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion_mnist": "Fashion-MNIST",
    "mini_imagenet": "Mini-ImageNet",
    "imagenet": "ImageNet",
}
WORDS = DATASET_NAMES | {method: spec.label for method, spec in METHODS.items()}  # of what a margin is about
WORDS |= {"inaturalist2018": "iNaturalist", "imagenet_real": "ReaL", "cov": "COV", "worst": "worst 10 %"}
WORDS |= {f"tau={tau}": f"τ = {float(tau):g}" for tau in ("0", "0.1", "0.5", "1.0", "2.0", "10.0")}
TAU_METRICS = ("std", "cov", "range", "worst")  # those the appendix on τ speaks of


def by_method(table: str, metric: str, column: str = "value") -> pd.DataFrame:
    """One metric of one table as datasets × methods, in printed order; column: "value" or "spread"."""
    rows = _rows(table)
    rows = rows[rows["metric"] == metric]
    grid = rows.pivot(index="dataset", columns="method", values=column)
    return grid.loc[rows["dataset"].unique(), rows["method"].unique()]


def by_metric(table: str, dataset: str) -> pd.DataFrame:
    """One dataset of one table as methods × metrics."""
    rows = _rows(table)
    return rows[rows["dataset"] == dataset].pivot(index="method", columns="metric", values="value")


def _rows(table: str) -> pd.DataFrame:
    rows = paper.results()
    if table not in set(rows["table"]):
        raise unknown("table of the paper", table, rows["table"].unique())
    return rows[rows["table"] == table]


# --------------------------------------------------------------------------------------------------------- claims


def claims() -> pd.DataFrame:
    """Each claim of the text that its printed numbers can check: claim, section, holds, evidence.

    A claim is a set of margins and holds if every one is above 0. What the paper shows only in figures (when the
    weights settle, their order against the accuracies) needs runs: `helpers.run_measures.settling_epoch`,
    `run_measures.order_agreement`.
    """
    equity, difference = ("std", "cov", "range"), ("range_difference", "range_difference")
    six = pd.concat([_leads(table, *equity, over="normal") for table in ("fairness_crop", "inaturalist")])
    average, worst = _lead("average_crop", "average", "normal"), _lead("worst_crop", "worst", "normal")
    three = average.index.isin(average.nsmallest(3).index)
    inat = "appendix iNaturalist"
    rows = [
        ("CLAM has the lowest std on all five datasets", "table 1", _lead("fairness_crop", "std")),
        ("CLAM has the lowest COV on all five datasets", "table 1", _lead("fairness_crop", "cov")),
        ("CLAM has the lowest range on all five datasets", "table 1", _lead("fairness_crop", "range")),
        ("CLAM has lower std, COV and range than Normal on all six datasets", "abstract", six),
        ("CLAM consistently has the lowest range difference", "table 2", _lead(*difference)),
        ("CLAM's range difference is lower than Normal's", "contributions", _lead(*difference, over="normal")),
        ("Classes are unequal without augmentation too", "contributions", range_without_augmentation()["normal"]),
        ("CLAM has the best worst-10 % accuracy on all five datasets", "table 3", _lead("worst_crop", "worst")),
        ("CLAM's average is below Normal's on three of five", "table 4", average.where(~three, -average)),
        ("CLAM's average is the best on the other two", "table 4", _lead("average_crop", "average")[~three]),
        ("On those three the worst 10 % gain more than the average loses", "table 4", (worst + average)[three]),
        ("Every τ > 0 improves std, COV, range and worst 10 %", "appendix τ", _gains_over_tau_0()),
        ("The best τ for each of these is 0.1 or 0.5", "appendix τ", _leads_of_taus("tau=0.1", "tau=0.5")),
        (
            "Colour jitter: CLAM has the lowest std, COV and range on all four datasets",
            "appendix jitter",
            _leads("fairness_jitter", *equity),
        ),
        ("iNaturalist: Focal and GGF lower std and range but lose average accuracy", inat, _inaturalist_trade()),
        ("iNaturalist: CLAM has the lowest COV", inat, _lead("inaturalist", "cov")),
        (
            "iNaturalist: CLAM has the best average, worst 10 % and best 10 %",
            inat,
            _leads("inaturalist", "average", "worst", "best"),
        ),
        ("ReaL labels: CLAM improves std, COV and range", "appendix ReaL", _leads("real_labels", *equity)),
        ("ReaL labels: CLAM improves the worst 10 %", "appendix ReaL", _lead("real_labels", "worst")),
    ]
    checked = [(claim, section, *_check(margins.round(DIGITS))) for claim, section, margins in rows]
    return pd.DataFrame(checked, columns=["claim", "section", "holds", "evidence"])


def _check(margins: pd.Series) -> tuple[bool, str]:
    held, place = margins > 0, margins.idxmin()
    where = ", ".join(WORDS.get(part, part) for part in ([place] if isinstance(place, str) else place))
    least = f"{margins.min():+.3g}".replace("-", "−")
    return bool(held.all()), f"{held.sum()} of {len(margins)} hold; smallest margin {least} ({where})"


def _scores(table: str, metric: str) -> pd.DataFrame:
    """Datasets × methods with the sign turned where lower is better, so that higher always is."""
    return by_method(table, metric) * (1 if metric in HIGHER_IS_BETTER else -1)


def _lead(table: str, metric: str, over: str | None = None) -> pd.Series:
    """By how much CLAM is better than `over`, or than the best other method, on each dataset."""
    scores = _scores(table, metric)
    rival = scores.drop(columns="clam").max(axis=1) if over is None else scores[over]
    return scores["clam"] - rival


def _leads(table: str, *metrics: str, over: str | None = None) -> pd.Series:
    return pd.concat({metric: _lead(table, metric, over) for metric in metrics})


def _gains_over_tau_0() -> pd.Series:
    scores = {metric: _scores("tau", metric) for metric in TAU_METRICS}
    return pd.concat({m: s.drop(columns="tau=0").sub(s["tau=0"], axis=0).unstack() for m, s in scores.items()})


def _leads_of_taus(*taus: str) -> pd.Series:
    """By how much the best of `taus` is better than every other τ."""
    scores = {metric: _scores("tau", metric) for metric in TAU_METRICS}
    return pd.concat({m: s[list(taus)].max(axis=1) - s.drop(columns=list(taus)).max(axis=1) for m, s in scores.items()})


def _inaturalist_trade() -> pd.Series:
    """Normal − Focal and Normal − GGF."""
    rows = by_metric("inaturalist", "inaturalist2018")[["std", "range", "average"]]
    return (rows.loc["normal"] - rows.loc[["focal", "ggf"]]).unstack()


def range_without_augmentation() -> pd.DataFrame:
    """The range without augmentation that tables 1 and 2 imply, datasets × methods.

    Table 1 prints the mean over 8 settings, table 2 the mean over the 7 augmented ones of their distance to the eighth,
    so the eighth has mean − ⅞ · difference.
    """
    augmented = (SETTINGS - 1) / SETTINGS
    return by_method("fairness_crop", "range") - augmented * by_method("range_difference", "range_difference")


# --------------------------------------------------------------------------------------------------------- errata


def errata() -> pd.DataFrame:
    """What does not fit together: id → statement, verdict ("confirmed" or "not confirmed"), numbers (a dict)."""
    rows = {
        key: (statement, "confirmed" if confirmed else "not confirmed", numbers)
        for key, statement, confirmed, numbers in _inconsistencies()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["statement", "verdict", "numbers"]).rename_axis("id")


def largest_std(decile_range: float, num_classes: int, tail: float = TAIL) -> float:
    """Largest std (n − 1) of class accuracies in [0, 1] whose tail means differ by D: √((D²/4 + tD(1−D)) n/(n−1)).

    About the middle of the two tail means, a class between the tails is off by at most D/2. The best tail lies between
    the worst tail's mean w and 1 with mean b = w + D, which adds a variance of at most D(1 − b); the worst lies between
    0 and b, which adds at most Dw. Concave in D, so it holds for means over settings too.
    """
    share = tail_size(num_classes, tail) / num_classes
    variance = decile_range**2 / 4 + share * decile_range * (1 - decile_range)
    return float(np.sqrt(variance * num_classes / (num_classes - 1)))


def smallest_std(value_range: float, num_classes: int) -> float:
    """Smallest std (n − 1) of accuracies with max − min = R: two at the ends, the others in the middle, R/√(2(n−1))."""
    return float(value_range / np.sqrt(2 * (num_classes - 1)))


def _half_range(value_range, num_classes: int):
    """Largest std (n − 1) of accuracies with max − min = R: half at each end, R/2·√(n/(n−1))."""
    return value_range / 2 * np.sqrt(num_classes / (num_classes - 1))


def _inconsistencies() -> Iterator[tuple[str, str, bool, dict[str, Any]]]:
    """id, statement, whether the numbers confirm it, the numbers."""
    std, cov, average = (
        by_method(f"{table}_crop", metric)
        for table, metric in (("fairness", "std"), ("fairness", "cov"), ("average", "average"))
    )
    off_mean = float((cov / (std / average) - 1).abs().max(axis=None))
    sums = average.mul(pd.Series(PAPER_CLASSES), axis=0).reindex_like(average)
    off_sum = float((cov / (std / sums) - 1).min(axis=None))
    yield (
        "mean_lacks_n",
        "The appendix defines μ without 1/n, but table 1's COV is std / mean, not std / sum",
        off_mean < 0.02 < off_sum,  # 2 %: COV is printed with two or three digits
        {"largest error of std / mean": off_mean, "smallest error of std / sum": off_sum},
    )

    inat = by_metric("inaturalist", "inaturalist2018")
    n = PAPER_CLASSES["inaturalist2018"]
    tails = (inat["best"] - inat["worst"]).round(DIGITS)
    cap = _half_range(inat["range"], n)
    yield (
        "range_is_of_deciles",
        "The tables' range is mean(best 10 %) − mean(worst 10 %): as max − min it would rule out iNaturalist's std",
        (tails - inat["range"]).abs().max() <= 3 * ROUNDING and (inat["std"] - ROUNDING > cap).all(),
        {"best − worst": _dict(tails), **{m: _dict(inat[m]) for m in ("range", "std")}, "std at most": _dict(cap)},
    )
    cap = tails.map(lambda points: 100 * largest_std((points + 2 * ROUNDING) / 100, n))
    yield (
        "inaturalist_tails",
        "iNaturalist: no class accuracies have the printed std together with the printed best and worst 10 %",
        (inat["std"] - ROUNDING > cap).all(),
        {"std": _dict(inat["std"]), "std at most": _dict(cap)},
    )
    excess = inat["cov"] / (inat["std"] / inat["average"]) - 1
    yield (
        "inaturalist_cov",
        "iNaturalist: the printed COV is far above std / average, which table 1 agrees with",
        excess.min() > 5 * off_mean,
        {"COV / (std / average) − 1": _dict(excess), "largest in table 1": off_mean},
    )

    jitter, crop = (by_metric(f"fairness_{kind}", "cifar10").loc["clam"] for kind in ("jitter", "crop"))
    least = smallest_std(jitter["range"], PAPER_CLASSES["cifar10"])
    yield (
        "jitter_cifar10_clam",
        "CIFAR-10 with colour jitter: CLAM's std is too small for its range, and std and COV repeat table 1",
        jitter["std"] + ROUNDING < least and jitter["std"] == crop["std"] and jitter["cov"] == crop["cov"],
        {"colour jitter": _dict(jitter), "table 1": _dict(crop), "std at least": least},
    )

    difference = by_method("range_difference", "range_difference").loc["mini_imagenet"]
    yield (
        "lowest_range_difference",
        "Mini-ImageNet: CLAM's range difference is not the lowest, though the text says it consistently is",
        difference.idxmin() != "clam",
        {"lowest": difference.idxmin(), **_dict(difference[[difference.idxmin(), "clam"]])},
    )
    implied = range_without_augmentation()
    above = (implied["clam"] - implied["normal"]).round(DIGITS)
    doubt = 2 * ROUNDING * (1 + (SETTINGS - 1) / SETTINGS)  # four rounded numbers, two of them times ⅞
    yield (
        "range_without_augmentation",
        "Tables 1 and 2 imply that without augmentation CLAM's range is above Normal's on some datasets",
        (above > doubt).any(),
        {"CLAM − Normal": _dict(above), "rounding": doubt, "above": ", ".join(above[above > doubt].index)},
    )

    tau = by_metric("tau", "cifar100")
    same = tau.columns[tau.loc["tau=2.0"] == tau.loc["tau=10.0"]]
    yield (
        "tau_rows_repeat",
        "CIFAR-100: the rows of τ = 2 and τ = 10 are the same in all columns but one",
        len(same) == tau.shape[1] - 1,
        {"same": ", ".join(same), "columns": tau.shape[1]},
    )
    taus = {
        name: {f"α = {a:g}": tau_paper(PAPER_CLASSES[name], PAPER_EPOCHS[name], a) for a in (0, ALPHA_ASSUMED, 1)}
        for name in ("cifar100", "fashion_mnist")
    }
    yield (
        "theory_tau_assumes_alpha",
        "Theory's τ of 0.15 and 0.18 is computed right, from an α that is assumed and not measured",
        [round(tau[f"α = {ALPHA_ASSUMED:g}"], 2) for tau in taus.values()] == [0.15, 0.18],
        taus,
    )
    lead, spread = _lead("worst_crop", "worst"), by_method("worst_crop", "worst", "spread")["clam"]
    yield (
        "no_significance_test",
        "One seed, no test: CLAM's lead in the worst 10 % is below its printed spread (over settings) on every dataset",
        (lead < spread).all(),
        {"lead": _dict(lead), "spread": _dict(spread)},
    )


def _dict(values: pd.Series) -> dict[str, float]:
    return values.round(4).to_dict()


# ---------------------------------------------------------------------------------------------- tables and figures


def left_aligned(table: pd.DataFrame) -> Markdown:
    """A table of sentences as people read them: from the left, without row numbers."""
    rows = [list(table), [":---"] * table.shape[1], *table.astype(str).to_numpy().tolist()]
    return Markdown("\n".join(f"| {' | '.join(cells)} |" for cells in rows))


@styled
def audit(results: pd.DataFrame, implied: pd.DataFrame) -> Figure:
    """Left: printed COV against std / average. Right: CLAM's range without augmentation against Normal's.

    results: numbers of std, cov and average, with a column `source`; implied: `range_without_augmentation()`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.3))
    wide = results.pivot_table(index=["dataset", "method", "source"], columns="metric", values="value").reset_index()
    for source, rows in wide.groupby("source"):
        left.scatter(rows["std"] / rows["average"], rows["cov"], s=18, label=source)
    top = wide["cov"].max() * 1.05
    left.plot([0, top], [0, top], color="#999999", lw=1)
    left.set(xlabel="std / average", ylabel="printed COV", title="COV against its own definition")
    left.legend()
    right.barh(implied.index.map(DATASET_NAMES), implied["clam"] - implied["normal"], color=COLOURS["clam"])
    right.invert_yaxis()  # the first dataset on top
    right.axvline(0, color="#555555", lw=0.8)
    right.set(xlabel="CLAM − Normal, points", title="implied range without augmentation")
    return figure


@styled
def possible_std(num_classes: int, points: Mapping[str, tuple[float, float]]) -> Figure:
    """Which pairs (range, std) class accuracies can have at all, and where each method's printed row lies; in %."""
    ranges = np.linspace(0, 100, 200)
    low = [smallest_std(value_range, num_classes) for value_range in ranges]
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.fill_between(ranges, low, _half_range(ranges, num_classes), color="#e3eef7", label="possible")
    for method, (value_range, std) in points.items():
        axis.plot(value_range, std, MARKERS[method], color=COLOURS[method], ms=6, label=label(method))
    axis.set(xlabel="range (max − min), %", ylabel="std, %", title=f"std a range allows, {num_classes} classes")
    axis.set(xlim=(0, 60), ylim=(0, 25))
    axis.legend(loc="upper left")
    return figure
