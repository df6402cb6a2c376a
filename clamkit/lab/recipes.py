"""Recipes: the fields of a run at a stated scale, for each dataset. docs/recipes.md says what each is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clamkit.errors import check_known
from clamkit.methods.specs import paper_dataset_like

# appendix "Compute"; hours are on one GPU. The weight decay stands in the released code alone.
PAPER_EPOCHS = {"cifar10": 100, "cifar100": 150, "fashion_mnist": 50, "mini_imagenet": 150, "imagenet": 88}
PAPER_HOURS = {"cifar10": 3, "cifar100": 4.5, "fashion_mnist": 2, "mini_imagenet": 4.5, "imagenet": 48}
WEIGHT_DECAY = {"cifar10": 1e-3, "cifar100": 5e-4, "fashion_mnist": 1e-3, "mini_imagenet": 1e-3, "imagenet": 1e-5}

FAST = {
    "batch_size": 500,
    "lr": 0.73,
    "bias_lr": 64.0,
    "momentum": 0.85,
    "weight_decay": 1.33e-3,
    "lookahead": 0.95,
    "label_smoothing": 0.2,
    "schedule": "triangle",
    "mirror_test": True,
    "amp": "auto",
}
FAST_BY_DATASET = {
    "fashion_mnist": {"model": "fastnet_small", "epochs": 16},
    "cifar10": {"model": "fastnet", "epochs": 16},
    "cifar100": {"model": "fastnet_wide", "epochs": 16},
    "mini_imagenet": {"model": "fastnet_wide", "epochs": 16, "image_size": 84},
    "imagenet": {"model": "fastnet_wide", "epochs": 16, "image_size": 64},
}
LONG = {
    "batch_size": 250,
    "lr": 0.3,
    "bias_lr": 8.0,
    "weight_decay": 1e-4,
    "schedule": "triangle",
    "amp": "auto",
    "epochs": 80,
}


def recipe(name: str, dataset: str) -> dict[str, Any]:
    """Fields of a run of this recipe; a dataset that the paper has not is treated like the one most like it."""
    check_known("recipe", name, RECIPES)
    return {"dataset": dataset} | RECIPES[name](paper_dataset_like(dataset))


def _paper(alike: str) -> dict[str, Any]:
    """What the paper states, and what only the released code does."""
    return {
        "model": "resnet50",
        "stem": "imagenet",
        "image_size": 224,
        "epochs": PAPER_EPOCHS[alike],
        "batch_size": 128,
        "lr": 0.1,
        "weight_decay": WEIGHT_DECAY[alike],
        "label_smoothing": 0.1 if alike == "imagenet" else 0.0,
        "amp": True,
    }


RECIPES: dict[str, Callable[[str], dict[str, Any]]] = {
    "small": lambda alike: {},
    "fast": lambda alike: FAST | FAST_BY_DATASET[alike],
    "long": lambda alike: FAST_BY_DATASET[alike] | LONG,
    "paper": _paper,
}
