"""Figures of a dataset's images, as they are and augmented."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit.errors import check_known
from clamkit.plots.style import short_name, styled

if TYPE_CHECKING:  # torch is imported where it is used: the other figures need none
    import torch

    from clamkit.data.dataset import Dataset

log = logging.getLogger("clamkit")

ROWS = 25  # below each other; more stand beside them


@styled
def sample_images(dataset: Dataset, *, per_class: int = 8, most: int = 10, skip_bad: bool = False) -> Figure:
    """The first training images of the first classes, a row for each class."""
    rows = range(min(most, dataset.num_classes))
    images = [_first_images(dataset, row, per_class, skip_bad) for row in rows]
    return _image_grid(images, [dataset.class_names[i] for i in rows])


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

    check_known("augmentation", augmentation, TRANSFORMS)
    chosen, generator = _first_images(dataset, label, 8), torch.Generator()
    none, sign = (1.0, "≥ ") if augmentation == "crop" else (0.0, "±")
    rows, names = [], []
    for strength in strengths:
        augmented = TRANSFORMS[augmentation](strength)(chosen, generator.manual_seed(seed))
        rows.append(augmented.round().clamp(0, 255).byte())
        names.append(f"no {augmentation}" if strength == none else f"{augmentation} {sign}{strength:g}")
    return _image_grid(rows, names)


def _first_images(dataset: Dataset, label: int, most: int, skip_bad: bool = False) -> torch.Tensor:
    """uint8 [up to most, C, H, W], from memory or from files."""
    import torch

    from clamkit.data.readers import NO_IMAGE, refuse_bad

    chosen = torch.nonzero(dataset.y_train == label).flatten()
    if isinstance(dataset.x_train, torch.Tensor):
        return dataset.x_train[chosen[:most]]
    found, bad = [], []
    for i in map(int, chosen):
        if len(found) < most:
            try:
                found.append(dataset.x_train.read(i))
            except NO_IMAGE:
                bad.append(str(dataset.x_train.files[i]))
    if said := refuse_bad(bad, len(chosen), skip_bad):
        log.warning("%s: %s", dataset.class_names[label], said)
    return torch.stack(found)


def _image_grid(images: Sequence[torch.Tensor], names: Sequence[str]) -> Figure:
    """Rows of images uint8 [columns, C, H, W] as one picture with a name beside each row; two and more if many."""
    blocks = [slice(start, start + ROWS) for start in range(0, len(images), ROWS)]
    columns = max(map(len, images))
    size = (len(blocks) * (0.62 * columns + 1.2), 0.62 * min(ROWS, len(images)))
    figure, axes = plt.subplots(1, len(blocks), figsize=size, squeeze=False)
    for axis, block in zip(axes[0], blocks, strict=True):
        _draw_rows(axis, images[block], names[block], columns)
    return figure


def _draw_rows(axis: Axes, images: Sequence[torch.Tensor], names: Sequence[str], columns: int) -> None:
    channels, height, width = images[0].shape[1:]
    rows, gap = len(images), max(1, width // 16)  # white, so that each image can be seen to end
    sheet = np.full((rows, height + gap, columns, width + gap, channels), 255, dtype=np.uint8)
    for i, row in enumerate(images):  # a class may have fewer images than there are columns
        sheet[i, :height, : len(row), :width] = row.permute(2, 0, 3, 1).numpy()
    sheet = sheet.reshape(rows * (height + gap), columns * (width + gap), channels)
    axis.imshow(sheet.squeeze(-1) if channels == 1 else sheet, interpolation="nearest", vmin=0, vmax=255)
    axis.set(yticks=(height + gap) * (np.arange(rows) + 0.5) - gap / 2, xticks=[], anchor="N")
    axis.set_yticklabels(map(short_name, names))
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
