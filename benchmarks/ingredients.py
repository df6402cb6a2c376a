"""What each ingredient of the fast recipe brings: Normal on held-out images, with one of them left out at a time.

    OMP_NUM_THREADS=1 python benchmarks/ingredients.py [--dataset cifar10] [--epochs 4] [--seeds 1] [--runs FOLDER]

Each training is an ordinary run, which stops and resumes; it prints what it has after each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pandas as pd
from torch import nn

from clamkit.engine import models
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import Run
from clamkit.lab.controls import held_out_accuracy
from clamkit.lab.recipes import recipe

HOLDOUT = 500  # images of each class; a tenth of CIFAR-10


class Learnt(models.FastNet):
    """A fastnet whose first layer begins at random, as torch has it, and learns."""

    def __init__(self, *shape: object):
        super().__init__(*shape)
        self.patches.requires_grad_(True)

    def whiten(self, images: object) -> None:
        """Left as it is."""


def random_conv(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, padding=1, bias=False)


LEFT_OUT: dict[str, tuple[dict, dict]] = {  # fields of the run, and what is put in the place of a part of the network
    "the recipe": ({}, {}),
    "no lookahead": ({"lookahead": 0.0}, {}),
    "biases learn no faster": ({"bias_lr": 1.0}, {}),
    "a first layer that learns": ({}, {"FastNet": Learnt}),
    "convolutions begin at random": ({}, {"_identity_conv": random_conv}),
}


def trained(what: str, dataset: str, epochs: int | None, seed: int, runs: Path) -> Run:
    """A run without one ingredient; what is not in its config has a folder of its own."""
    fields, parts = LEFT_OUT[what]
    config = recipe("fast", dataset) | {"method": "normal", "crop_lower_bound": 0.6, "holdout": HOLDOUT, "seed": seed}
    config |= fields | ({"epochs": epochs} if epochs else {})
    with patch.dict(vars(models), parts):
        return train(RunConfig(**config), runs=runs / what.replace(" ", "_"))


def main(words: Sequence[str] | None = None) -> pd.Series:
    parser = argparse.ArgumentParser(description="What each ingredient of the fast recipe brings, on held-out images")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--epochs", type=int, help="default: the recipe's")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("build/ingredients"))
    given = parser.parse_args(words)
    found: dict[str, list[float]] = {what: [] for what in LEFT_OUT}
    for seed in range(given.seeds):
        for what, values in found.items():
            run = trained(what, given.dataset, given.epochs, seed, given.runs)
            values.append(100 * float(held_out_accuracy(run).mean()))
            print(f"{what}: " + ", ".join(f"{value:.2f} %" for value in values), flush=True)
    return pd.Series(found)


if __name__ == "__main__":
    main()
