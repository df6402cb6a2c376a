"""Class-dependent effects of data augmentation, and the CLAM method that reduces them.

    from clamkit import CLAM, class_accuracy, fairness

    weighter = CLAM(num_classes, projection="kl")
    for x, y in loader:                                         # an epoch of your own loop
        weighter(model(x), y).backward()                        # cross entropy times the weight of the class
        optimizer.step(), optimizer.zero_grad()
    weighter.step()                                             # classes that did badly gain weight
    fairness(class_accuracy(labels, predictions, num_classes))  # average, std, range, worst tenth of the classes

Names are loaded when they are first used: `from clamkit import fairness` imports no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:  # what type checkers and editors see
    from clamkit.data.datasets import load_data
    from clamkit.engine.config import RunConfig
    from clamkit.engine.loop import train
    from clamkit.engine.store import Run, RunStore
    from clamkit.errors import ClamkitError
    from clamkit.methods.peers import CFOL, TLA, ClassBalanced, Fixed, GroupDRO, LogitAdjusted
    from clamkit.methods.posthoc import Biases, fit_biases, fit_drops
    from clamkit.methods.specs import METHODS
    from clamkit.methods.weighters import CLAM, GGF, TCE, APStar, MaxMin, Uniform, Weighter
    from clamkit.metrics import class_accuracy, compare, fairness
    from clamkit.theory.sets import Box, LowerBounded, Permutahedron, RatioBounded

_HOMES = {
    "clamkit.methods.weighters": ("CLAM", "Uniform", "TCE", "GGF", "APStar", "MaxMin", "Weighter"),
    "clamkit.methods.peers": ("CFOL", "GroupDRO", "TLA", "LogitAdjusted", "ClassBalanced", "Fixed"),
    "clamkit.methods.specs": ("METHODS",),
    "clamkit.methods.posthoc": ("fit_biases", "fit_drops", "Biases"),
    "clamkit.engine.config": ("RunConfig",),
    "clamkit.engine.loop": ("train",),
    "clamkit.engine.store": ("Run", "RunStore"),
    "clamkit.data.datasets": ("load_data",),
    "clamkit.metrics": ("class_accuracy", "fairness", "compare"),
    "clamkit.theory.sets": ("LowerBounded", "RatioBounded", "Permutahedron", "Box"),
    "clamkit.errors": ("ClamkitError",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_FOLDERS = ("metrics", "theory", "methods", "data", "engine", "lab", "plots", "apps", "integrations")

__all__ = [*_HOME_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
        return value
    if name in _FOLDERS:
        return import_module(f"clamkit.{name}")
    message = f"clamkit has no {name!r}. It has {', '.join(_HOME_OF)}; and the folders {', '.join(_FOLDERS)}."
    # `from clamkit import x` replaces an AttributeError by a sentence of its own, so it gets the error it would raise,
    # unless x is a module, which it then imports
    if sys._getframe(1).f_code.co_name == "_handle_fromlist" and find_spec(f"clamkit.{name}") is None:
        raise ImportError(message, name=__name__)
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF, *_FOLDERS])
