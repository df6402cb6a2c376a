"""The paper's own numbers, settings and claims, and where they contradict each other. Imports no torch.

results()            every number of every table
claims()             each claim of the text that printed numbers can check, checked
ERRATA               what does not fit together, computed from the numbers
hyperparameters()    settings of a method on a dataset; epochs() how long the paper trains

Numbers are as printed: percent, except COV. Each cell is the mean over 8 augmentation settings of one seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import numpy as np
import pandas as pd

from clamkit import paths
from clamkit.errors import ClamkitError, unknown
from clamkit.metrics import TAIL, tail_size

# The paper runs "8 crop lower bounds" and "8 color jitter parameters", one of them without augmentation, and lists
# neither: these are our choice.
CROP_LOWER_BOUNDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
JITTER_STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)

NUM_CLASSES = {
    "cifar10": 10,
    "fashion_mnist": 10,
    "cifar100": 100,
    "mini_imagenet": 100,
    "imagenet": 1000,
    "inaturalist2018": 8142,
}
ROUNDING = 0.05  # half a unit of the last printed digit, in percent
SETTINGS = 8  # augmentation settings behind each printed mean, one of them without augmentation
DIGITS = 6  # differences of printed numbers are rounded here, so that equal is equal
HIGHER_IS_BETTER = ("average", "worst", "best")
TAU_METRICS = ("std", "cov", "range", "worst")  # those the appendix on τ speaks of
ALPHA_ASSUMED = 0.1  # the paper's assumption for max α_t, appendix "Different Values of τ"


# ------------------------------------------------------------------------------------------------------- settings

EPOCHS = {"cifar10": 100, "cifar100": 150, "fashion_mnist": 50, "mini_imagenet": 150, "imagenet": 88}  # "Compute"
HOURS = {"cifar10": 3, "cifar100": 4.5, "fashion_mnist": 2, "mini_imagenet": 4.5, "imagenet": 48}  # on one GPU
WEIGHT_DECAY = {"cifar10": 1e-3, "cifar100": 5e-4, "fashion_mnist": 1e-3, "mini_imagenet": 1e-3, "imagenet": 1e-5}
GGF = {  # appendix, table of hyperparameters: α, w_min, f
    "cifar10": {"alpha": 0.9, "w_min": 0.1, "f": 1},
    "cifar100": {"alpha": 0.98, "w_min": 0.1, "f": 2},
    "fashion_mnist": {"alpha": 0.98, "w_min": 0.1, "f": 2},
    "mini_imagenet": {"alpha": 0.95, "w_min": 0.01, "f": 2},
    "imagenet": {"alpha": 0.998, "w_min": 0.2, "f": 1},
}
CLAM = {"tau": 1.0, "u_min_times_n": 0.5, "start_epoch": 0}  # u_min = 1/(2n); appendix "Hyperparameters of Our Method"
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "normal": {},
    "focal": {"gamma": 2.0},
    "pw": {"gamma": 2.5, "theta": 0.8},
    "tce": {"gamma": 0.5},
    "ggf": GGF,  # by dataset
    "apstar": {"alpha": 0.5},  # the paper gives none: the released code's
    "apstar_mmpf": {"alpha": 0.5, "k_min": 20},  # Martinez et al.'s k_min
    "maxmin": {"tau": 1.0, "start_epoch": 0},
    "clam": CLAM,
    "clam_kl": CLAM,
    "clam_clip": CLAM,
    "clam_ratio": {"tau": 1.0, "ratio": 4.0, "start_epoch": 0},  # r is not in the paper: what the released clip keeps
    "clam_released": {"tau": 1.0, "start_epoch": 0},
}
RELEASED = {  # (method, dataset) where the released code has other values; dataset None: all
    ("pw", None): {"gamma": 2.0},
    ("ggf", "fashion_mnist"): {"alpha": 0.95, "f": 1},
    ("clam", "mini_imagenet"): {"start_epoch": 50},
    ("clam", "imagenet"): {"start_epoch": 30},
}
STAND_INS = {"fashion_mnist_mini": "fashion_mnist", "imagenet_real": "imagenet", "inaturalist2018": "imagenet"}


def hyperparameters(
    method: str,
    dataset: str | None = None,
    *,
    num_classes: int | None = None,
    protocol: Literal["paper", "released"] = "paper",
) -> dict[str, Any]:
    """Settings of a method on a dataset: the paper's, or those of the released code where it differs.

    gamma, theta, alpha, w_min, f, tau are named as in the paper; u_min = u_min_times_n / n. The weights of CLAM and its
    kin move from start_epoch on. A dataset without a column in the paper's table takes that of the dataset `like` it.
    """
    if method not in HYPERPARAMETERS:
        raise unknown("method", method, HYPERPARAMETERS)
    if protocol not in ("paper", "released"):
        raise unknown("protocol", protocol, ("paper", "released"))
    dataset = like(dataset, num_classes)
    settings = dict(GGF[dataset] if method == "ggf" else HYPERPARAMETERS[method])
    if protocol == "released":
        family = "clam" if "start_epoch" in settings else method
        settings |= RELEASED.get((family, None), {}) | RELEASED.get((family, dataset), {})
    return settings


def recipe(dataset: str) -> dict[str, Any]:
    """Fields of a run at the paper's scale: ResNet-50 at 224 px, and what only the released code states."""
    alike = like(dataset)
    return {
        "dataset": dataset,
        "model": "resnet50",
        "stem": "imagenet",
        "image_size": 224,
        "epochs": EPOCHS[alike],
        "batch_size": 128,
        "lr": 0.1,
        "weight_decay": WEIGHT_DECAY[alike],
        "label_smoothing": 0.1 if alike == "imagenet" else 0.0,
        "amp": True,
    }


def epochs(dataset: str | None = None, *, num_classes: int | None = None) -> int:
    """How many epochs the paper trains; for other data those of the dataset `like` it."""
    return EPOCHS[like(dataset, num_classes)]


def like(dataset: str | None, num_classes: int | None = None) -> str:
    """The dataset of the paper's tables whose settings another one takes.

    iNaturalist 2018, for which the paper gives none, takes ImageNet's. Any other name or path takes those of the
    dataset nearest in size: CIFAR-10 (also where num_classes is not given), CIFAR-100 from 32 classes on, ImageNet
    from 317 on.
    """
    if dataset in EPOCHS:
        return dataset
    if dataset in STAND_INS:
        return STAND_INS[dataset]
    sizes = {name: NUM_CLASSES[name] for name in ("cifar10", "cifar100", "imagenet")}
    return min(sizes, key=lambda name: abs(np.log(sizes[name] / (num_classes or 10))))


# -------------------------------------------------------------------------------------------------------- numbers


def results() -> pd.DataFrame:
    """Every number of the paper's tables: table, dataset, method, metric, value, spread (nan where none is printed)."""
    return _numbers().copy()


@cache
def _numbers() -> pd.DataFrame:
    path = paths.embedded() / "paper_results.csv"
    if not path.is_file():
        raise ClamkitError(f"the paper's numbers are not at {paths.shown(path)}: restore that file of the project.")
    return pd.read_csv(path)


def _grid(table: str, metric: str, column: str = "value") -> pd.DataFrame:
    """One metric of one table as datasets × methods, in printed order."""
    rows = _numbers()
    rows = rows[(rows["table"] == table) & (rows["metric"] == metric)]
    grid = rows.pivot(index="dataset", columns="method", values=column)
    return grid.loc[rows["dataset"].unique(), rows["method"].unique()]


def _rows(table: str, dataset: str) -> pd.DataFrame:
    """One dataset of one table as methods × metrics."""
    rows = _numbers()
    rows = rows[(rows["table"] == table) & (rows["dataset"] == dataset)]
    return rows.pivot(index="method", columns="metric", values="value")


def _scores(table: str, metric: str) -> pd.DataFrame:
    """`_grid` with the sign turned where lower is better, so that higher always is."""
    return _grid(table, metric) * (1 if metric in HIGHER_IS_BETTER else -1)


def _lead(table: str, metric: str, over: str | None = None) -> pd.Series:
    """By how much CLAM is better than `over`, or than the best other method, on each dataset."""
    scores = _scores(table, metric)
    rival = scores.drop(columns="clam").max(axis=1) if over is None else scores[over]
    return scores["clam"] - rival


def _leads(table: str, *metrics: str, over: str | None = None) -> pd.Series:
    return pd.concat({metric: _lead(table, metric, over) for metric in metrics})


# --------------------------------------------------------------------------------------------------------- claims


def claims() -> pd.DataFrame:
    """Each claim of the text that its printed numbers can check: claim, section, holds, evidence.

    A claim is a set of margins and holds if every one is above 0. What the paper shows only in figures (when the
    weights settle, their order against the accuracies) needs runs: `metrics.settling_epoch`, `metrics.order_agreement`.
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
    where = place if isinstance(place, str) else " ".join(place)
    return bool(held.all()), f"{held.sum()} of {len(margins)} hold; smallest margin {margins.min():+.3g} ({where})"


def _gains_over_tau_0() -> pd.Series:
    scores = {metric: _scores("tau", metric) for metric in TAU_METRICS}
    return pd.concat({m: s.drop(columns="tau=0").sub(s["tau=0"], axis=0).unstack() for m, s in scores.items()})


def _leads_of_taus(*taus: str) -> pd.Series:
    """By how much the best of `taus` is better than every other τ."""
    scores = {metric: _scores("tau", metric) for metric in TAU_METRICS}
    return pd.concat({m: s[list(taus)].max(axis=1) - s.drop(columns=list(taus)).max(axis=1) for m, s in scores.items()})


def _inaturalist_trade() -> pd.Series:
    """Normal − Focal and Normal − GGF."""
    rows = _rows("inaturalist", "inaturalist2018")[["std", "range", "average"]]
    return (rows.loc["normal"] - rows.loc[["focal", "ggf"]]).unstack()


def range_without_augmentation() -> pd.DataFrame:
    """The range without augmentation that tables 1 and 2 imply, datasets × methods.

    Table 1 prints the mean over 8 settings, table 2 the mean over the 7 augmented ones of their distance to the eighth,
    so the eighth has mean − ⅞ · difference.
    """
    augmented = (SETTINGS - 1) / SETTINGS
    return _grid("fairness_crop", "range") - augmented * _grid("range_difference", "range_difference")


# --------------------------------------------------------------------------------------------------------- errata


def __getattr__(name: str) -> pd.DataFrame:
    """`ERRATA` is computed when it is first asked for."""
    if name == "ERRATA":
        return _errata().copy()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _errata() -> pd.DataFrame:
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


def _inconsistencies() -> Iterator[tuple[str, str, bool, dict[str, Any]]]:
    """id, statement, whether the numbers confirm it, the numbers."""
    from clamkit.game import tau_paper  # brings scipy, which importing this module should not

    std, cov, average = _grid("fairness_crop", "std"), _grid("fairness_crop", "cov"), _grid("average_crop", "average")
    off_mean = float((cov / (std / average) - 1).abs().max(axis=None))
    sums = average.mul(pd.Series(NUM_CLASSES), axis=0).reindex_like(average)
    off_sum = float((cov / (std / sums) - 1).min(axis=None))
    yield (
        "mean_lacks_n",
        "The appendix defines μ without 1/n, but table 1's COV is std / mean, not std / sum",
        off_mean < 0.02 < off_sum,  # 2 %: COV is printed with two or three digits
        {"largest error of std / mean": off_mean, "smallest error of std / sum": off_sum},
    )

    inat = _rows("inaturalist", "inaturalist2018")
    n = NUM_CLASSES["inaturalist2018"]
    tails = (inat["best"] - inat["worst"]).round(DIGITS)
    cap = inat["range"] / 2 * np.sqrt(n / (n - 1))  # std ≤ (max − min) / 2, with n − 1
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

    jitter, crop = _rows("fairness_jitter", "cifar10").loc["clam"], _rows("fairness_crop", "cifar10").loc["clam"]
    least = smallest_std(jitter["range"], NUM_CLASSES["cifar10"])
    yield (
        "jitter_cifar10_clam",
        "CIFAR-10 with colour jitter: CLAM's std is too small for its range, and std and COV repeat table 1",
        jitter["std"] + ROUNDING < least and jitter["std"] == crop["std"] and jitter["cov"] == crop["cov"],
        {"colour jitter": _dict(jitter), "table 1": _dict(crop), "std at least": least},
    )

    difference = _grid("range_difference", "range_difference").loc["mini_imagenet"]
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

    tau = _rows("tau", "cifar100")
    same = tau.columns[tau.loc["tau=2.0"] == tau.loc["tau=10.0"]]
    yield (
        "tau_rows_repeat",
        "CIFAR-100: the rows of τ = 2 and τ = 10 are the same in all columns but one",
        len(same) == tau.shape[1] - 1,
        {"same": ", ".join(same), "columns": tau.shape[1]},
    )
    taus = {
        name: {f"α = {alpha:g}": tau_paper(NUM_CLASSES[name], EPOCHS[name], alpha) for alpha in (0, ALPHA_ASSUMED, 1)}
        for name in ("cifar100", "fashion_mnist")
    }
    yield (
        "theory_tau_assumes_alpha",
        "Theory's τ of 0.15 and 0.18 is computed right, from an α that is assumed and not measured",
        [round(tau[f"α = {ALPHA_ASSUMED:g}"], 2) for tau in taus.values()] == [0.15, 0.18],
        taus,
    )
    lead, spread = _lead("worst_crop", "worst"), _grid("worst_crop", "worst", "spread")["clam"]
    yield (
        "no_significance_test",
        "One seed, no test: CLAM's lead in the worst 10 % is below its printed spread (over settings) on every dataset",
        (lead < spread).all(),
        {"lead": _dict(lead), "spread": _dict(spread)},
    )


def _dict(values: pd.Series) -> dict[str, float]:
    return values.round(4).to_dict()
