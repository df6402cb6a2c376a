"""Figures of a dataset's images, as they are and augmented."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from clamkit.errors import unknown
from clamkit.plots.style import styled

if TYPE_CHECKING:  # torch is imported where it is used: the other figures need none
    import torch

    from clamkit.data.dataset import Dataset


@styled
def sample_images(dataset: Dataset, *, per_class: int = 8, most: int = 10) -> Figure:
    """The first training images of the first classes, a row for each class."""
    rows = range(min(most, dataset.num_classes))
    return _image_grid([_first_images(dataset, row, per_class) for row in rows], [dataset.class_names[i] for i in rows])


@styled
def augmented_images(
    dataset: Dataset,
    strengths: Sequence[float] = (1.0, 0.6, 0.3),
    *,
    augmentation: str = "crop",
    label: int = 6,
    seed: int = 0,
) -> Figure:
    """The same images of one class under ever stronger augmentation, a row for each strength."""
    import torch

    from clamkit.data.augment import TRANSFORMS

    if augmentation not in TRANSFORMS:
        raise unknown("augmentation", augmentation, TRANSFORMS)
    chosen, generator = _first_images(dataset, label, 8), torch.Generator()
    none, sign = (1.0, "≥ ") if augmentation == "crop" else (0.0, "±")
    rows, names = [], []
    for strength in strengths:
        augmented = TRANSFORMS[augmentation](strength)(chosen, generator.manual_seed(seed))
        rows.append(augmented.round().clamp(0, 255).byte())
        names.append(f"no {augmentation}" if strength == none else f"{augmentation} {sign}{strength:g}")
    return _image_grid(rows, names)


def _first_images(dataset: Dataset, label: int, most: int) -> torch.Tensor:
    """uint8 [up to most, C, H, W], from memory or from files."""
    import torch

    chosen = torch.nonzero(dataset.y_train == label).flatten()[:most]
    if isinstance(dataset.x_train, torch.Tensor):
        return dataset.x_train[chosen]
    return torch.stack([dataset.x_train.read(int(i)) for i in chosen])


def _image_grid(images: Sequence[torch.Tensor], names: Sequence[str]) -> Figure:
    """Rows of images uint8 [columns, C, H, W] as one picture with a name beside each row."""
    rows, columns = len(images), max(map(len, images))
    channels, height, width = images[0].shape[1:]
    gap = max(1, width // 16)  # white, so that each image can be seen to end
    sheet = np.full((rows, height + gap, columns, width + gap, channels), 255, dtype=np.uint8)
    for i, row in enumerate(images):  # a class may have fewer images than there are columns
        sheet[i, :height, : len(row), :width] = row.permute(2, 0, 3, 1).numpy()
    sheet = sheet.reshape(rows * (height + gap), columns * (width + gap), channels)
    figure, axis = plt.subplots(figsize=(0.62 * columns + 1.2, 0.62 * rows))
    axis.imshow(sheet.squeeze(-1) if channels == 1 else sheet, interpolation="nearest", aspect="equal")
    axis.set(yticks=(height + gap) * (np.arange(rows) + 0.5) - gap / 2, xticks=[])
    axis.set_yticklabels(names)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    return figure
