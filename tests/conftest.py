"""Tests never touch the project's runs, figures or the user's cache."""

import os
from pathlib import Path

import numpy as np
import pytest

import clamkit._vision  # noqa: F401  before anything that imports torchvision itself, such as Lightning

os.environ["CLAMKIT_PROGRESS"] = "0"
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    for variable, name in (("CLAMKIT_RUNS", "runs"), ("CLAMKIT_FIGURES", "figures"), ("CLAMKIT_DATA", "cache")):
        monkeypatch.setenv(variable, str(tmp_path / name))


@pytest.fixture
def small_npz(tmp_path) -> Path:
    """A learnable 3-class dataset of 60 + 30 colour images: class k is bright in stripe k."""
    rng = np.random.default_rng(0)

    def part(count):
        y = np.arange(count) % 3
        x = rng.integers(0, 120, (count, 12, 12, 3), dtype=np.uint8)
        for image, label in zip(x, y, strict=True):
            image[4 * label : 4 * label + 4] += 120
        return x, y

    (x_train, y_train), (x_test, y_test) = part(60), part(30)
    path = tmp_path / "stripes.npz"
    names = np.array(["top", "middle", "bottom"])
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, class_names=names)
    return path
