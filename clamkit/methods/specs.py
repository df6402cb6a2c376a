"""Every method by name. One entry drives training, command line, tables, colours and docs; no torch here.

To add a method: write its update as a subclass of `weighters.Weighter` (or its loss in `losses`), then an entry below.
A setting that no method had before also becomes a field of `RunConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

from clamkit.errors import check_known, unknown

PAPER_CLASSES = {  # the paper's datasets and how many classes they have
    "cifar10": 10, "fashion_mnist": 10, "cifar100": 100, "mini_imagenet": 100, "imagenet": 1000, "inaturalist2018": 8142
}  # fmt: skip
BIASES = {"average-std": "+biases", "worst-tail": "+tail_biases"}  # by what they are fitted for: after a method's name
STAND_INS = {"imagenet_real": "imagenet", "inaturalist2018": "imagenet"} | dict.fromkeys(
    ("fashion_mnist_mini", "fashion_mnist_tail"), "fashion_mnist"
)


@dataclass(frozen=True)
class Method:
    """What a method is called, how it looks in figures, and how to build it.

    weighter    a class of `clamkit.methods.weighters` or "peers.X", or any (num_classes, **settings) → Weighter
    loss        a function of `clamkit.methods.losses` that takes the settings instead of the weighter
    settings    what a user may change, each a field of RunConfig, with the paper's value; None: the weighter's own
    fixed       what a user may not change
    by_dataset  the paper's values where they depend on the dataset
    released    values of the released code where it differs: for all datasets under None, or by dataset
    needs_sizes whether the weighter takes `sizes`, the training images in each class
    every       how often the weights move: "epoch", "batch" or "never"
    acts_on     what the weights act on: "loss", "sampling", "logits", or "nothing" where there are none
    """

    label: str
    colour: str
    marker: str
    about: str
    weighter: str | Callable[..., Any] = "Uniform"
    loss: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    by_dataset: dict[str, dict[str, Any]] = field(default_factory=dict)
    released: dict[str | None, dict[str, Any]] = field(default_factory=dict)
    needs_sizes: bool = False
    every: str = "epoch"
    acts_on: str = "loss"

    def values(self, dataset: str | None, num_classes: int | None = None, protocol: str = "paper") -> dict[str, Any]:
        """The settings on a dataset that the paper, or with protocol="released" its code, gives."""
        check_known("protocol", protocol, ("paper", "released"))
        alike = paper_dataset_like(dataset, num_classes)
        found = self.settings | self.by_dataset.get(alike, {})
        if protocol == "released":
            found |= self.released.get(None, {}) | self.released.get(alike, {})
        return {key: value for key, value in found.items() if value is not None}


class _Methods(dict[str, Method]):
    """By name. "normal+biases" and "normal+tail_biases", of a finished run with class biases, are looked up like any
    other but not in the list: they cannot be trained."""

    def __missing__(self, name: str) -> Method:
        own, _, control = name.partition("+")
        if own not in self or f"+{control}" not in BIASES.values():
            raise unknown("method", name, self)
        method, what = self[own], control.replace("_", " ")
        paler = "".join(f"{(int(method.colour[i : i + 2], 16) + 255) // 2:02x}" for i in (1, 3, 5))
        colour, marker = (f"#{paler}", "$+$") if what == "biases" else (method.colour, "$t$")
        return replace(method, label=f"{method.label} + {what}", colour=colour, marker=marker)


def paper_dataset_like(dataset: str | None, num_classes: int | None = None) -> str:
    """The dataset of the paper's tables whose settings another one takes.

    iNaturalist 2018, for which the paper gives none, takes ImageNet's. Any other takes those of the nearest in size:
    CIFAR-10 (also where num_classes is not given), CIFAR-100 from 32 classes on, ImageNet from 317 on.
    """
    if dataset in STAND_INS:
        return STAND_INS[dataset]
    if dataset in PAPER_CLASSES:
        return dataset
    sizes = {name: PAPER_CLASSES[name] for name in ("cifar10", "cifar100", "imagenet")}
    return min(sizes, key=lambda name: abs(log(sizes[name] / (num_classes or 10))))


# u_min=None is 1/(2n), appendix "Hyperparameters of Our Method". The released code starts late on two datasets.
_STEP: dict[str, Any] = {"tau": 1.0, "start_epoch": 0}
_FLOOR: dict[str, Any] = _STEP | {"u_min": None}
_LATE: dict[str | None, dict[str, Any]] = {"mini_imagenet": {"start_epoch": 50}, "imagenet": {"start_epoch": 30}}

# Colours are Okabe and Ito's for the paper's methods, told apart by colour-blind readers; their kin get a shade.
# Markers must be filled ones, which seaborn does not mix with others: where they are used up, a letter is one.
METHODS: dict[str, Method] = _Methods({
    "normal": Method("Normal", "#4d4d4d", "o", "Cross entropy with equal weights: what everybody trains.",
        every="never", acts_on="nothing"),
    "focal": Method("Focal", "#e69f00", "^",
        "Focal loss (Lin et al. 2017): samples the model is sure of count less, by (1 − p)^γ. Classes have no weights.",
        loss="focal", settings={"gamma": 2.0}, every="never", acts_on="nothing"),
    "pw": Method("PW", "#b8860b", "v",
        "Performance-weighted loss: like focal, but every sample keeps at least the share θ of its loss.",
        loss="performance_weighted", settings={"gamma": 2.5, "theta": 0.8}, released={None: {"gamma": 2.0}},
        every="never", acts_on="nothing"),
    "tce": Method("TCE", "#009e73", "P",
        "Tilted cross entropy: after each epoch the weights drift by γ toward the softmax of the class losses.",
        weighter="TCE", settings={"gamma": 0.5, "start_epoch": None}),
    "ggf": Method("GGF", "#cc79a7", "X",
        "Generalised Gini weights: the class of rank r, worst first, gets max(α^(r − 1), w_min), every f-th epoch.",
        weighter="GGF",
        settings={"alpha": None, "w_min": None, "frequency": None, "rank_by": None, "start_epoch": None},
        by_dataset={  # the paper's table of hyperparameters
            "cifar10": {"alpha": 0.9, "w_min": 0.1, "frequency": 1},
            "cifar100": {"alpha": 0.98, "w_min": 0.1, "frequency": 2},
            "fashion_mnist": {"alpha": 0.98, "w_min": 0.1, "frequency": 2},
            "mini_imagenet": {"alpha": 0.95, "w_min": 0.01, "frequency": 2},
            "imagenet": {"alpha": 0.998, "w_min": 0.2, "frequency": 1},
        },
        released={None: {"rank_by": "loss"}, "fashion_mnist": {"alpha": 0.95, "frequency": 1}}),
    "apstar": Method("APStar", "#56b4e9", "<",
        "Projection on star sets as the CLAM authors adapted it: the worst tenth of the classes by loss gains weight, "
        "less each time the worst loss has not improved. The paper gives no α: this is the released code's.",
        weighter="APStar", settings={"alpha": 0.5, "start_epoch": None}),
    "apstar_mmpf": Method("APStar, original", "#332288", ">",
        "APStar as Martinez et al. (2020) published it: no clip, and the network of the best step is the result.",
        weighter="APStar", settings={"alpha": 0.5, "start_epoch": None}, fixed={"original": True, "k_min": 20}),
    "maxmin": Method("Max-min", "#8c2d04", "p",
        "Multiplicative weights on the full simplex: all weight may go to the worst class (paper, eq. 4).",
        weighter="MaxMin", settings=_STEP, released=_LATE),
    "clam": Method("CLAM", "#0072b2", "s",
        "The paper's method: w ← π(w·exp(−τv)/Z) after each epoch, v the training accuracies of the classes, π the "
        "Euclidean projection on w ≥ 1/(2n).",
        weighter="CLAM", settings=_FLOOR | {"projection": None}, released=_LATE | {None: {"projection": "released"}}),
    "clam_kl": Method("CLAM, KL", "#d55e00", "D",
        "CLAM with the KL projection, for which the convergence theorem holds.",
        weighter="CLAM", settings=_FLOOR, fixed={"projection": "kl"}, released=_LATE),
    "clam_clip": Method("CLAM, clip", "#5e3c99", "h",
        "CLAM with the map of the paper's proof, max(x, u_min)/Z, which may leave the set.",
        weighter="CLAM", settings=_FLOOR, fixed={"projection": "clip"}, released=_LATE),
    "clam_ratio": Method("CLAM, ratio", "#1b7837", "*",
        "CLAM on max w / min w ≤ r, the bound of the paper's practical section. It gives no r: 4 is what the released "
        "clip keeps.",
        weighter="CLAM", settings=_STEP | {"ratio": 4.0, "projection": None}, released=_LATE),
    "clam_released": Method("CLAM, released", "#c51b7d", "d",
        "CLAM as the released code has it: clip to [½, 2] at mean 1, then divide by the mean.",
        weighter="CLAM", settings=_STEP, fixed={"projection": "released"}, released=_LATE),
    "fixed": Method("Fixed weights", "#999933", "H",
        "Class weights that are given and stay: as a list, in a file, or those of a finished run, the mean over its "
        "epochs (the averaged strategy of Algorithm 1) or its last ones.",
        weighter="peers.Fixed", settings={"class_weights": None, "weights_of": None}, every="never"),
    "group_dro": Method("Group DRO", "#882255", "$G$",
        "Group DRO on the classes (Sagawa et al. 2020): with every batch q_c ← q_c·exp(η·loss_c)/Z, and the loss is "
        "Σ q_c·loss_c.",
        weighter="peers.GroupDRO", settings={"eta": 0.01, "start_epoch": None}, every="batch"),
    "cfol": Method("CFOL", "#44aa99", "$C$",
        "Class-focused online learning (Pethick et al. 2023): classes are drawn with p = γ/n + (1 − γ)·q, and with "
        "every batch ln q_c grows by η/p_c for each wrong sample. Mixing with uniform where CLAM projects.",
        weighter="peers.CFOL", settings={"gamma": 0.5, "eta": None, "start_epoch": None}, needs_sizes=True,
        fixed={"acts_on": "sampling"}, every="batch", acts_on="sampling"),
    "tla": Method("TLA", "#aa4499", "$T$",
        "Margins in place of weights (Choi & Seo): cross entropy on logits + τ·(ln prior − ln π), and after each epoch "
        "π moves by α toward the worst tenth of the classes.",
        weighter="peers.TLA", settings={"tau": 1.0, "alpha": 0.01, "start_epoch": None}, needs_sizes=True,
        acts_on="logits"),
    "logit_adjusted": Method("Logit adjusted", "#661100", "$L$",
        "Cross entropy on logits + τ·ln prior (Menon et al. 2021), for unbalanced data; on balanced data it is Normal.",
        weighter="peers.LogitAdjusted", settings={"tau": 1.0}, needs_sizes=True, every="never", acts_on="logits"),
    "class_balanced": Method("Class balanced", "#6699cc", "$B$",
        "Weights ∝ (1 − β)/(1 − β^size), one over the effective number of images (Cui et al. 2019), for unbalanced "
        "data; on balanced data it is Normal.",
        weighter="peers.ClassBalanced", settings={"beta": 0.9999}, needs_sizes=True, every="never"),
})  # fmt: skip
