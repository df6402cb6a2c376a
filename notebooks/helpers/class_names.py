"""What the classes of ImageNet are called: its folders are named by WordNet, its labels are numbers."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path


@cache
def imagenet_names() -> dict[str, str]:
    """WordNet's number of each of the 1,000 classes, in the order of their labels, and its first name in words."""
    with Path(__file__).with_name("imagenet_names.csv").open(encoding="utf-8") as file:
        return {row["id"]: row["name"] for row in csv.DictReader(file)}


def readable(name: str) -> str:
    """n01532829 as house finch, aquarium_fish as aquarium fish; other names as they are."""
    return imagenet_names().get(name, name.replace("_", " "))
