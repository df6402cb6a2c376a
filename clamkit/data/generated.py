"""Images made on the spot, for where a dataset is not at hand."""

from __future__ import annotations

from typing import Any

import numpy as np

NAME = r"generated-([1-9]\d{0,3})(-tail)?"  # generated-10, generated-30-tail


def generate(num_classes: int, tail: bool = False, size: int = 32, seed: int = 0) -> dict[str, Any]:
    """Coloured gratings that stand in for a dataset that is not at hand: they show what a method does, not its numbers.

    Classes come in pairs of the same angle whose stripes differ ever less in width, so that some are hard to tell
    apart. 40 training and 20 test images a class; with `tail` the training images fall from 60 to 4.
    """
    rng = np.random.default_rng(seed)
    pair, second = np.divmod(np.arange(num_classes), 2)
    pairs = (num_classes + 1) // 2
    angle = np.pi * pair / pairs
    stripes = 3 + second * (2.5 - 2.2 * pair / pairs)
    colour = 0.5 + 0.3 * np.cos(2 * np.pi * (pair[:, None] / pairs + np.arange(3) / 3))
    sizes = np.geomspace(60, 4, num_classes).round().astype(int) if tail else np.full(num_classes, 40)
    arrays: dict[str, np.ndarray] = {}
    for part, counts in (("train", sizes), ("test", np.full(num_classes, 20))):
        y = np.repeat(np.arange(num_classes), counts)
        y_grid, x_grid = np.mgrid[:size, :size] / size
        tilt = angle[y] + rng.normal(0, 0.15, len(y))
        along = np.cos(tilt)[:, None, None] * x_grid + np.sin(tilt)[:, None, None] * y_grid
        phase = rng.random(len(y))[:, None, None]
        wave = 0.5 + 0.5 * np.sin(2 * np.pi * (stripes[y][:, None, None] * along + phase))
        image = wave[..., None] * colour[y][:, None, None] + rng.normal(0, 0.12, (len(y), size, size, 3))
        arrays |= {f"x_{part}": (255 * image.clip(0, 1)).astype(np.uint8), f"y_{part}": y}
    return arrays | {"class_names": [f"grating {i}" for i in range(num_classes)]}
