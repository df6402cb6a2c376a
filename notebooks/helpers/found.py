"""What a notebook found, as Markdown that its last cell shows: sentences, and the regime of the runs behind them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from IPython.display import Markdown, display

from clamkit.engine.config import RunConfig
from clamkit.engine.store import Run
from clamkit.metrics.statistics import NO_DIFFERENCE, NOT_DECIDED, OPPOSITE, SUPPORTED
from helpers.paper_audit import DATASET_NAMES
from helpers.verdicts import listed

DATA = DATASET_NAMES | {
    "inaturalist2018": "iNaturalist 2018",
    "fashion_mnist_mini": "the embedded part of Fashion-MNIST",
    "fashion_mnist_tail": "the embedded part of Fashion-MNIST with a long tail",
    "cifar100/cifar100_part.npz": "a part of CIFAR-100",
    "cifar100_full.npz": "CIFAR-100",
    "miniimagenet": "a part of Mini-ImageNet",
}
STRENGTHS = {"crop": "crop bounds", "jitter": "strengths of the jitter"}
CLAIM = re.compile(rf"^.*?: (?:{'|'.join((SUPPORTED, OPPOSITE, NO_DIFFERENCE, NOT_DECIDED))})")  # with its verdict

OWN_QUESTIONS = "*Verdicts*: no *p* is corrected for more than this notebook asks; notebook 05 corrects for all."


def found(*sentences: str, runs: Sequence[Run] | None = None) -> None:
    """Show each sentence as an item of a list, its claim and verdict in bold, and the regime of the runs below.

    Sentences are those of `helpers.verdicts`. runs=None: they rest on no runs.
    """
    lines = [f"- {CLAIM.sub(lambda claim: f'**{claim[0]}**', sentence)}" for sentence in sentences]
    if runs is not None:
        lines += ["", f"*Regime*: {regime(runs)}."]
        if any(map(CLAIM.match, sentences)):
            lines += ["", OWN_QUESTIONS]
    display(Markdown("\n".join(lines)))


def regime(runs: Sequence[Run]) -> str:
    """Data, network, epochs, augmentation and seeds of some runs, and what Normal (or τ = 0) reaches there."""
    if not runs:
        return "no run has finished"
    configs = [run.config for run in runs]
    images = {config.dataset: f"{DATA.get(config.dataset, config.dataset)}{_part(config)}" for config in configs}
    networks = {f"{config.model}, {config.epochs} epochs": None for config in configs}
    strengths = {f"{config.augmentation} {config.strength:g}": None for config in configs}
    many = f"{len(strengths)} {STRENGTHS[configs[0].augmentation]}" if len(strengths) > 1 else next(iter(strengths))
    seeds = len({config.seed for config in configs})
    counts = f"{len(runs)} runs ({many}, {seeds} seed{'s' * (seeds > 1)})"
    return f"{listed([*images.values()])}; {listed([*networks])}; {counts}{_reached(runs)}"


def _part(config: RunConfig) -> str:
    return f" ({config.per_class:,} images of each class)" if config.per_class else ""


def _reached(runs: Sequence[Run]) -> str:
    """Accuracy on training and test images in the last epoch, the mean over the runs that weigh all classes alike."""
    for name, own in (
        ("Normal", [run for run in runs if run.config.method == "normal"]),
        ("τ = 0", [run for run in runs if run.config.tau == 0]),
    ):
        if own:
            train, test = (
                100 * np.mean([run.wide(column).iloc[-1].mean() for run in own])
                for column in ("train_accuracy", "test_accuracy")
            )
            seen = f"{train:.0f} % of its (augmented) training images and {test:.0f} % of the test images"
            return f". {name} is right in {seen}"
    return ""
