"""Every method by name: a per-sample loss and a weighter. One table drives training, tests and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from clamkit import paper
from clamkit.errors import unknown
from clamkit.losses import cross_entropy, focal, performance_weighted
from clamkit.weighters import CLAM, GGF, TCE, APStar, MaxMin, Uniform, Weighter


@dataclass(frozen=True)
class Method:
    """`build(num_classes, **settings)` makes the weighter; `takes` names the settings a user may change."""

    label: str
    build: Callable[..., Weighter]
    takes: tuple[str, ...] = ()


def _with_loss(loss: Callable, *keys: str) -> Callable[..., Weighter]:
    """Equal weights on a loss whose settings are `keys`."""

    def build(num_classes: int, **settings) -> Weighter:
        own = {key: settings.pop(key) for key in keys}
        return Uniform(num_classes, **settings | {"loss": partial(loss, **own)})

    return build


FLOOR = ("tau", "u_min", "start_epoch")

METHODS: dict[str, Method] = {
    "normal": Method("Normal", Uniform),
    "focal": Method("Focal", _with_loss(focal, "gamma"), ("gamma",)),
    "pw": Method("PW", _with_loss(performance_weighted, "gamma", "theta"), ("gamma", "theta")),
    "tce": Method("TCE", TCE, ("gamma", "start_epoch")),
    "ggf": Method("GGF", GGF, ("alpha", "w_min", "frequency", "rank_by", "start_epoch")),
    "apstar": Method("APStar", APStar, ("alpha", "start_epoch")),
    "apstar_mmpf": Method("APStar, original", partial(APStar, original=True), ("alpha", "start_epoch")),
    "maxmin": Method("Max-min", MaxMin, ("tau", "start_epoch")),
    "clam": Method("CLAM", CLAM, (*FLOOR, "projection")),
    "clam_kl": Method("CLAM, KL", partial(CLAM, projection="kl"), FLOOR),
    "clam_clip": Method("CLAM, clip", partial(CLAM, projection="clip"), FLOOR),
    "clam_ratio": Method("CLAM, ratio", CLAM, ("tau", "ratio", "projection", "start_epoch")),
    "clam_released": Method("CLAM, released", partial(CLAM, projection="released"), ("tau", "start_epoch")),
}

# where protocol="released" means another update than the paper's text
RELEASED = {"clam": {"projection": "released"}, "ggf": {"rank_by": "loss"}}


def build_method(
    name: str,
    dataset: str | None,
    num_classes: int,
    *,
    protocol: str = "paper",
    label_smoothing: float = 0.0,
    **settings: Any,
) -> Weighter:
    """The weighter of a method with the paper's settings for that dataset; settings given (not None) win.

    >>> build_method("ggf", "cifar10", 10).alpha
    0.9
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    method = METHODS[name]
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key not in method.takes:
            raise unknown(f"setting of method {name!r}", key, method.takes)
    usual = paper.hyperparameters(name, dataset, num_classes=num_classes, protocol=protocol)
    if "u_min_times_n" in usual:
        usual["u_min"] = usual.pop("u_min_times_n") / num_classes
    if "f" in usual:
        usual["frequency"] = usual.pop("f")
    if protocol == "released":
        usual |= RELEASED.get(name, {})
    return method.build(
        num_classes, **usual | given | {"loss": partial(cross_entropy, label_smoothing=label_smoothing)}
    )
