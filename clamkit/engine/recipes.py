"""Recipes: the fields of a run at a stated scale. The paper's is ResNet-50 at 224 px on a GPU."""

from __future__ import annotations

from typing import Any

from clamkit.methods.specs import paper_dataset_like

# appendix "Compute"; hours are on one GPU. The weight decay stands in the released code alone.
PAPER_EPOCHS = {"cifar10": 100, "cifar100": 150, "fashion_mnist": 50, "mini_imagenet": 150, "imagenet": 88}
PAPER_HOURS = {"cifar10": 3, "cifar100": 4.5, "fashion_mnist": 2, "mini_imagenet": 4.5, "imagenet": 48}
WEIGHT_DECAY = {"cifar10": 1e-3, "cifar100": 5e-4, "fashion_mnist": 1e-3, "mini_imagenet": 1e-3, "imagenet": 1e-5}


def paper_recipe(dataset: str) -> dict[str, Any]:
    """Fields of a run at the paper's scale: what it states, and what only the released code does."""
    alike = paper_dataset_like(dataset)
    return {
        "dataset": dataset,
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
