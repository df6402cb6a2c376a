"""Augmentation of whole batches on the device, with the distribution and the pixels of torchvision.

A crop with resize and flip is linear and separable: two small matrix products, out = R · x · Cᵀ, where each row of
R (rows) and C (columns) holds the two weights of a linear interpolation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clamkit.errors import ClamkitError

RATIO = (3 / 4, 4 / 3)  # aspect ratios of torchvision's RandomResizedCrop
TRIES = 10  # its number of draws before the centre fallback


def crop_boxes(count: int, height: int, width: int, lower_bound: float, generator: torch.Generator) -> Tensor:
    """`count` boxes [count, 4] of (top, left, height, width), distributed as torchvision's RandomResizedCrop."""
    if not 0 < lower_bound <= 1:
        raise ClamkitError(
            f"crop lower bound {lower_bound} is not a share of the image area: it must lie in (0, 1]; 1 means no crop."
        )
    whole = torch.tensor([0, 0, height, width], device=generator.device)
    if lower_bound == 1:
        return whole.repeat(count, 1)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, device=generator.device)

    area = height * width * (lower_bound + (1 - lower_bound) * draw(count, TRIES))
    low, high = map(math.log, RATIO)
    aspect = torch.exp(low + (high - low) * draw(count, TRIES))
    w, h = torch.sqrt(area * aspect).round().long(), torch.sqrt(area / aspect).round().long()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.long().argmax(1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    top = (draw(count) * (height - h + 1)).long().clamp_max(height - h)
    left = (draw(count) * (width - w + 1)).long().clamp_max(width - w)
    boxes = torch.stack([top, left, h, w], dim=1)
    return torch.where(fits.any(1, keepdim=True), boxes, _centre_box(height, width, whole))


def _centre_box(height: int, width: int, whole: Tensor) -> Tensor:
    """The largest centred box with an allowed aspect ratio."""
    h, w = height, width
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return torch.tensor([(height - h) // 2, (width - w) // 2, h, w], device=whole.device)


def _interpolation(start: Tensor, length: Tensor, size: int, out: int) -> Tensor:
    """[B, out, size] matrices that resample `length` pixels from `start` on to `out` pixels, linearly."""
    start, length = start[:, None].float(), length[:, None].float()
    centres = torch.arange(out, device=start.device) + 0.5
    position = start + torch.minimum((centres * length / out - 0.5).clamp_min(0), length - 1)
    pixels = torch.arange(size, device=start.device, dtype=position.dtype)
    return (1 - (position[:, :, None] - pixels).abs()).clamp_min(0)


def resized_crop(x: Tensor, boxes: Tensor, size: tuple[int, int], flip: Tensor | None = None) -> Tensor:
    """Crop each image of x [B, C, H, W] to its box, resize to `size`, mirror where `flip` [B] is true.

    Bilinear without antialias: the same as torchvision's `resized_crop(..., antialias=False)`.
    """
    height, width = x.shape[2:]
    top, left, h, w = boxes.unbind(1)
    rows = _interpolation(top, h, height, size[0])
    columns = _interpolation(left, w, width, size[1])
    if flip is not None:
        columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    return rows[:, None] @ x.float() @ columns[:, None].mT


class RandomResizedCrop:
    """Random resized crop and horizontal flip of a batch.

    >>> augment = RandomResizedCrop(0.3)
    >>> augment(torch.zeros(8, 1, 28, 28), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 1, 28, 28])
    """

    def __init__(self, lower_bound: float, *, size: int | None = None, flip: bool = True):
        self.lower_bound, self.size, self.flip = lower_bound, size, flip
        crop_boxes(0, 1, 1, lower_bound, torch.Generator())  # refuse a bad bound here rather than in the first batch

    def draw(self, count: int, height: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The random part alone: boxes [count, 4] and flips [count]."""
        boxes = crop_boxes(count, height, width, self.lower_bound, generator)
        flips = torch.rand(count, generator=generator, device=generator.device) < (0.5 if self.flip else 0.0)
        return boxes, flips

    def apply(self, x: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
        """The deterministic part: float images in the value range of x."""
        size = (self.size or x.shape[2], self.size or x.shape[3])
        if self.lower_bound == 1 and size == tuple(x.shape[2:]):
            return torch.where(flips[:, None, None, None], x.flip(3), x).float()
        return resized_crop(x, boxes, size, flips)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.apply(x, *self.draw(len(x), x.shape[2], x.shape[3], generator))


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x/255 − mean)/std for pixels 0..255, channel by channel."""
    mean_, std_ = (torch.tensor(values, device=x.device).view(1, -1, 1, 1) * 255 for values in (mean, std))
    return (x.float() - mean_) / std_
