"""Every method by name: a per-sample loss and a weighter. One table drives training, tests and notebooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clamkit.errors import unknown
from clamkit.weighters import CLAM, Uniform, Weighter


@dataclass(frozen=True)
class Method:
    """`build(num_classes, **settings)` makes the weighter; `takes` names the settings a user may give."""

    label: str
    build: Callable[..., Weighter]
    takes: tuple[str, ...] = ()


def _clam(projection: str) -> Callable[..., Weighter]:
    return lambda num_classes, **settings: CLAM(num_classes, projection=projection, **settings)


METHODS: dict[str, Method] = {
    "normal": Method("Normal", Uniform),
    "clam": Method("CLAM", _clam("euclidean"), ("tau", "u_min")),
    "clam_kl": Method("CLAM, KL", _clam("kl"), ("tau", "u_min")),
    "clam_clip": Method("CLAM, clip", _clam("clip"), ("tau", "u_min")),
    "clam_released": Method("CLAM, released", _clam("released")),
}


def build_method(name: str, dataset: str | None, num_classes: int, **settings) -> Weighter:
    """The weighter of a method; settings that are None take the paper's value."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key not in METHODS[name].takes:
            raise unknown(f"setting of method {name!r}", key, METHODS[name].takes)
    return METHODS[name].build(num_classes, **given)
