"""Augmentation of whole batches on the device, with the distribution and the pixels of torchvision.

A crop with resize and flip is linear and separable: two small matrix products, out = R · x · C, where each row of R
(rows) and each column of C (columns) holds the two weights of a linear interpolation.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from clamkit.errors import ClamkitError

RATIO = (3 / 4, 4 / 3)  # aspect ratios of torchvision's RandomResizedCrop
TRIES = 10  # its number of draws before the centre fallback
GREY = [0.2989, 0.587, 0.114]  # its weights of red, green and blue


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, device=generator.device)


def bounds_by_weights(weights: Tensor, lower_bound: float) -> Tensor:
    """A crop bound for each class, b_c = b + (1 − b)·max(0, 1 − 1/w_c), for weights whose mean is 1.

    b for a class of at most the mean weight; the more a class weighs the less it is cropped: half of the way to whole
    images at w_c = 2. The bound tells the label in training, and test images are whole: see `RandomResizedCrop`.
    """
    return lower_bound + (1 - lower_bound) * (1 - 1 / weights.double()).clamp_min(0)


def crop_boxes(count: int, height: int, width: int, lower_bound: float | Tensor, generator: torch.Generator) -> Tensor:
    """`count` boxes [count, 4] of (top, left, height, width), distributed as torchvision's RandomResizedCrop.

    The lower bound is one for all, or float64 [count].
    """
    if isinstance(lower_bound, Tensor):
        low, span = lower_bound[:, None].float(), (1 - lower_bound[:, None]).float()
        cut = _cut(count, height, width, low, span, generator)
        return torch.where(lower_bound[:, None] == 1, torch.tensor([0, 0, height, width], device=cut.device), cut)
    if not 0 < lower_bound <= 1:
        raise ClamkitError(f"crop lower bound {lower_bound}: it must lie in (0, 1], a share of the area; 1 is no crop.")
    if lower_bound == 1:
        return torch.tensor([0, 0, height, width], device=generator.device).repeat(count, 1)
    return _cut(count, height, width, lower_bound, 1 - lower_bound, generator)


def _cut(
    count: int, height: int, width: int, lower: float | Tensor, span: float | Tensor, generator: torch.Generator
) -> Tensor:
    area = height * width * (lower + span * _uniform(generator, count, TRIES))
    low, high = map(math.log, RATIO)
    aspect = torch.exp(low + (high - low) * _uniform(generator, count, TRIES))
    w, h = torch.sqrt(area * aspect).round().long(), torch.sqrt(area / aspect).round().long()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.long().argmax(1, keepdim=True)
    w, h = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1)
    top = (_uniform(generator, count) * (height - h + 1)).long().clamp_max(height - h)
    left = (_uniform(generator, count) * (width - w + 1)).long().clamp_max(width - w)
    boxes = torch.stack([top, left, h, w], dim=1)
    return torch.where(fits.any(1, keepdim=True), boxes, torch.tensor(_centre(height, width), device=boxes.device))


def _centre(height: int, width: int) -> list[int]:
    """The largest box in the centre with an allowed ratio."""
    high, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return [(height - high) // 2, (width - wide) // 2, high, wide]


def crop_box(height: int, width: int, lower_bound: float, rng: random.Random) -> list[int]:
    """One box, distributed as those of `crop_boxes`, in a tenth of the time."""
    if lower_bound == 1:
        return [0, 0, height, width]
    for _ in range(TRIES):
        area = height * width * rng.uniform(lower_bound, 1)
        aspect = math.exp(rng.uniform(*map(math.log, RATIO)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return [rng.randint(0, height - h), rng.randint(0, width - w), h, w]
    return _centre(height, width)


def _positions(start: Tensor, length: Tensor, out: int) -> Tensor:
    """[B, out]: where in the source each of `out` pixels lies that resample `length` pixels from `start` on."""
    start, length = start[:, None].float(), length[:, None].float()
    centres = torch.arange(out, device=start.device) + 0.5
    return start + torch.minimum((centres * length / out - 0.5).clamp_min(0), length - 1)


def _weights(distance: Tensor) -> Tensor:
    """Linear interpolation: a source pixel counts 1 − its distance, if that is positive. Overwrites its argument."""
    return distance.abs_().neg_().add_(1).clamp_min_(0)


def resized_crop(x: Tensor, boxes: Tensor, size: tuple[int, int], flip: Tensor | None = None) -> Tensor:
    """Crop each image of x [B, C, H, W] to its box, resize to `size`, mirror where `flip` [B] is true.

    Bilinear without antialias: the same as torchvision's `resized_crop(..., antialias=False)`.
    """
    count, channels, height, width = x.shape
    top, left, h, w = boxes.unbind(1)
    i, j = _positions(top, h, size[0]), _positions(left, w, size[1])
    if flip is not None:
        j = torch.where(flip[:, None], j.flip(1), j)
    pixels = torch.arange(max(height, width), device=x.device, dtype=j.dtype)
    rows = _weights(i[:, :, None] - pixels[:height])  # [B, out, H]
    columns = _weights(j[:, None, :] - pixels[:width, None])  # [B, W, out]
    x = x.transpose(1, 2).float().reshape(count, height, channels * width)  # so that no product is broadcast
    x = (rows @ x).view(count, size[0] * channels, width) @ columns
    return x.view(count, size[0], channels, size[1]).transpose(1, 2)


def mirror(x: Tensor, flips: Tensor) -> Tensor:
    return torch.where(flips[:, None, None, None], x.flip(3), x)


def jitter(x: Tensor, factors: Tensor, order: Tensor, top: float = 255.0) -> Tensor:
    """Brightness, contrast and saturation of each image of x [B, C, H, W] (values 0..top) by its own factors [B, 3].

    order [B, 3] holds for each image in which order the three (0, 1, 2) come. Each is a blend f·x + (1 − f)·t, cut to
    0..top, where t is black, the mean grey of the image, or the grey image: the same as torchvision's adjust_*.
    """
    x = x.float()
    luma = torch.tensor(GREY if x.shape[1] == 3 else [1.0] + [0.0] * (x.shape[1] - 1), device=x.device)
    for kind in order.unbind(1):
        factor = factors.gather(1, kind[:, None])[:, :, None, None]
        kind = kind[:, None, None, None]
        grey = (x * luma[:, None, None]).sum(1, keepdim=True)
        target = torch.where(kind == 1, grey.mean((2, 3), keepdim=True), grey) * (kind > 0)
        x = (factor * x + (1 - factor) * target).clamp(0, top)
    return x


class RandomResizedCrop:
    """Random resized crop and horizontal flip of a batch; the share `whole_views` of the images is shown whole.

    With a bound for each class the area of a crop tells the label, and the network learns it: on test images, which are
    whole, it moves to the classes cropped least. The same share s of whole views in every class removes this where test
    images are (the odds of two classes then shift by at most 1/s); a cropped view tells the label as before.

    >>> augment = RandomResizedCrop(0.3)
    >>> augment(torch.zeros(8, 1, 28, 28), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 1, 28, 28])
    """

    def __init__(self, lower_bound: float, *, size: int | None = None, flip: bool = True, whole_views: float = 0.0):
        self.lower_bound, self.size, self.flip, self.whole_views = lower_bound, size, flip, whole_views
        crop_boxes(0, 1, 1, lower_bound, torch.Generator())  # refuse a bad bound here rather than in the first batch

    def box(self, height: int, width: int, rng: random.Random) -> list[int]:
        """One box, for images that are cut while they are read from disk."""
        if self.whole_views and rng.random() < self.whole_views:
            return [0, 0, height, width]
        return crop_box(height, width, self.lower_bound, rng)

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator, bounds: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The random part alone: flips [count] and boxes [count, 4]; with bounds [count], each box by its own."""
        boxes = crop_boxes(count, height, width, self.lower_bound if bounds is None else bounds, generator)
        if self.whole_views:  # else no draw: runs without it keep their bits
            whole = _uniform(generator, count, 1) < self.whole_views
            boxes = torch.where(whole, torch.tensor([0, 0, height, width], device=boxes.device), boxes)
        return _uniform(generator, count) < 0.5 * self.flip, boxes

    def apply(self, x: Tensor, flips: Tensor, boxes: Tensor) -> Tensor:
        """The deterministic part: float images in the value range of x."""
        size = (self.size or x.shape[2], self.size or x.shape[3])
        if self.lower_bound == 1 and size == tuple(x.shape[2:]):
            return mirror(x, flips).float()
        return resized_crop(x, boxes, size, flips)

    def rest(self, x: Tensor, flips: Tensor, boxes: Tensor) -> Tensor:
        """What is left to do with images that were cut to a box while they were read."""
        return mirror(x, flips).float()

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.apply(x, *self.draw(len(x), x.shape[2], x.shape[3], generator))


class ColourJitter:
    """Brightness, contrast and saturation by factors from [max(0, 1 − s), 1 + s] in random order, and flip.

    The strength s is one number for all three, as in the paper; s = 0 leaves the colours alone.
    """

    def __init__(self, strength: float, *, size: int | None = None, flip: bool = True):
        if not 0 <= strength <= 1:
            raise ClamkitError(f"jitter strength {strength} is not allowed: it must lie in [0, 1]; 0 means no jitter.")
        self.strength, self.size, self.flip = strength, size, flip

    def box(self, height: int, width: int, rng: random.Random) -> list[int]:
        return [0, 0, height, width]

    def draw(
        self, count: int, height: int, width: int, generator: torch.Generator, bounds: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Flips [count], factors [count, 3] and orders [count, 3]; nothing is cropped."""
        flips = _uniform(generator, count) < 0.5 * self.flip
        low, high = max(0.0, 1 - self.strength), 1 + self.strength
        factors = low + (high - low) * _uniform(generator, count, 3)
        return flips, factors, _uniform(generator, count, 3).argsort(1)

    def apply(self, x: Tensor, flips: Tensor, factors: Tensor, order: Tensor) -> Tensor:
        x = mirror(resize(x, self.size), flips)
        return jitter(x, factors, order) if self.strength > 0 else x.float()

    rest = apply

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.apply(x, *self.draw(len(x), x.shape[2], x.shape[3], generator))


Transform = RandomResizedCrop | ColourJitter
TRANSFORMS: dict[str, type[Transform]] = {"crop": RandomResizedCrop, "jitter": ColourJitter}


def resize(x: Tensor, size: int | None) -> Tensor:
    """Whole images at another resolution; the same x where it has that size already."""
    if size is None or tuple(x.shape[2:]) == (size, size):
        return x
    whole = torch.tensor([0, 0, *x.shape[2:]], device=x.device).repeat(len(x), 1)
    return resized_crop(x, whole, (size, size))


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x/255 − mean)/std for pixels 0..255, channel by channel."""
    mean_, std_ = (torch.tensor(values, device=x.device).view(1, -1, 1, 1) * 255 for values in (mean, std))
    return (x - mean_).div_(std_)
