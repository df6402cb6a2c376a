"""From a dataset to the batches a model sees: one way for images in memory, one for image files.

Either way the order, the crops and the flips are a function of the generator alone. Where `world` processes train
together, number `rank` gets the samples rank, rank + world, rank + 2·world, … of every batch.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from clamkit.data import augment
from clamkit.data.augment import Transform
from clamkit.data.dataset import earlier_alike
from clamkit.data.readers import NO_IMAGE, Files, refuse_bad

log = logging.getLogger("clamkit")

Pairs = Iterator[tuple[Tensor, Tensor]]  # images, labels
EVALUATION_BATCH = 500
WORKERS = min(8, os.cpu_count() or 1)  # processes that decode image files


@dataclass
class Batches:
    """Training and evaluation batches on a device, normalised."""

    transform: Transform
    mean: tuple[float, ...]  # three values on grey images repeat the channel, as the released code does
    std: tuple[float, ...]
    device: torch.device | str
    _: KW_ONLY
    size: int | None = None
    skip_bad: bool = False  # leave image files out that do not decode; they are named and counted
    rank: int = 0
    world: int = 1
    _loaders: dict[Files, Any] = field(default_factory=dict, init=False, repr=False)

    def share(self, samples: Tensor) -> Tensor:
        """This process's part of samples that all processes have."""
        return samples[self.rank :: self.world]

    def training(
        self,
        x: Tensor | Files,
        y: Tensor,
        batch_size: int,
        generator: torch.Generator,
        weights: Tensor | None = None,
        bounds: Tensor | None = None,
    ) -> Pairs:
        """The whole set once in random order, augmented, in batches of nearly equal size: (images, labels).

        With a weight for each class: as many samples, drawn by `weighted_order`. With a bound for each class, images in
        memory are cropped by that of theirs. Labels are best on the CPU: nothing is read back from a GPU then.
        """
        if weights is None:
            samples = torch.randperm(len(x), generator=generator)
        else:
            samples = weighted_order(y.cpu(), weights, generator)
        order = samples % len(x)
        height, width = x.shape[2:]
        own_bounds = None if bounds is None else bounds[y.cpu()[order]]
        drawn = self.transform.draw(len(x), height, width, generator, own_bounds)
        parts = math.ceil(len(x) / batch_size)
        if isinstance(x, Files):
            split = [self.share(rows) for rows in torch.arange(len(x)).tensor_split(parts)]
            seed = int(torch.randint(2**62, (1,), generator=generator))
            for images, rows in self._decoded(x, split, samples, seed):
                images = self.transform.rest(images, *(part[rows].to(self.device) for part in drawn))
                yield self._finish(images), y[order[rows].to(y.device)].to(self.device)
        else:
            y, *rest = (part.to(x.device) for part in (y, order, *drawn))  # no copy to wait for later
            cut = (part.tensor_split(parts) for part in rest)
            for batch in zip(*cut, strict=True):
                chosen, *parameters = map(self.share, batch)
                images = self.transform.apply(x.index_select(0, chosen), *parameters)
                yield self._finish(images), y[chosen]

    def plain(self, x: Tensor | Files, y: Tensor, every: int = 1) -> Pairs:
        """The whole set, or every n-th image of it, once in its own order, without augmentation: (images, labels)."""
        if isinstance(x, Files):
            split = self.share(torch.arange(0, len(x), every)).split(EVALUATION_BATCH)
            for images, rows in self._decoded(x, split, torch.arange(len(x))):
                yield self._finish(images), y[rows].to(self.device)
        else:
            x, y = self.share(x[::every]), self.share(y[::every])
            for images, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
                yield self._finish(augment.resize(images.to(self.device), self.size)), labels.to(self.device)

    def _finish(self, images: Tensor) -> Tensor:
        return augment.normalise(images, self.mean, self.std)  # the first convolution sees to the layout

    def _decoded(
        self, files: Files, split: Sequence[Tensor], samples: Tensor, seed: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Decoded batches (images on the device, their positions), ahead of time by processes that stay for the run."""
        bad: dict[str, None] = {}  # each file once, however often it was drawn
        on_cuda = torch.device(self.device).type == "cuda"
        if files not in self._loaders:
            self._loaders[files] = DataLoader(
                _Reader(files, self.transform),
                batch_sampler=[],
                num_workers=WORKERS,
                collate_fn=_collate,
                pin_memory=on_cuda,
                persistent_workers=WORKERS > 0,
                generator=torch.Generator(),  # its own: what layers draw must not depend on when workers started
            )
        loader = self._loaders[files]
        loader.batch_sampler[:] = [(rows.numpy(), samples[rows].numpy(), seed) for rows in split]
        for images, rows, unreadable in loader:
            bad |= dict.fromkeys(unreadable)
            if bad and not self.skip_bad:
                refuse_bad(list(bad), len(files), skip=False)
            if images is not None:
                yield images.to(self.device, non_blocking=on_cuda), rows
        if said := refuse_bad(list(bad), len(files), skip=True):
            log.warning("%s", said)


def weighted_order(y: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
    """N samples of the N images with labels y, where an image of class c comes w_c·N/Σ_i w_{y_i} times on average.

    The samples of a class, w_c·n_c·N/Σ rounded at random (the sum stays N), are whole passes over its images and a rest
    without replacement. Returns [N] in random order: the image's number, plus N for its second copy, 2N for the third …
    Equal weights give `randperm` itself, and no draw from `generator` but that one: the rest is from one of its own.
    """
    order = torch.randperm(len(y), generator=generator)
    own = torch.Generator()
    own.set_state(generator.get_state())
    own.manual_seed(int(torch.randint(2**62, (1,), generator=own)))
    sizes = y.bincount(minlength=len(weights))
    ends = (weights.double() * sizes).cumsum(0)
    ends = ends * (len(y) / ends[-1])
    ends[-1] = len(y)  # whatever was rounded on the way
    ends = (ends + torch.rand(1, generator=own)).floor().long()
    counts = ends.diff(prepend=ends.new_zeros(1))  # samples of each class
    passes, rest = counts // sizes.clamp_min(1), counts % sizes.clamp_min(1)
    lots, place = torch.randperm(len(y), generator=own), torch.empty_like(y)
    place[lots] = earlier_alike(y[lots])  # of an image among those of its class, at random
    times = (passes[y] + (place < rest[y]))[order]
    copy = torch.arange(len(y)) - (times.cumsum(0) - times).repeat_interleave(times)
    position = torch.arange(len(y)).repeat_interleave(times)  # of the first copy: as in `order`; others anywhere
    position = torch.where(copy == 0, position, len(y) * torch.rand(len(y), generator=own, dtype=torch.float64))
    return (order.repeat_interleave(times) + copy * len(y))[position.argsort()]


class _Reader(torch.utils.data.Dataset):
    """Batches of image files; with a seed, cut to random boxes of the transform."""

    def __init__(self, files: Files, transform: Transform):
        self.files, self.transform = files, transform

    def __getitems__(self, batch: tuple[np.ndarray, np.ndarray, int | None]) -> list[tuple[Tensor | None, int, str]]:
        """(image, position, name if bad) for (positions, samples, seed), where sample N + i is file i once more."""
        positions, samples, seed = batch
        return [self._read(*pair, seed) for pair in zip(positions.tolist(), samples.tolist(), strict=True)]

    def _read(self, position: int, sample: int, seed: int | None) -> tuple[Tensor | None, int, str]:
        index, box = sample % len(self.files), None
        if seed is not None:
            box = partial(self.transform.box, rng=random.Random(seed ^ sample))
        try:
            return self.files.read(index, box), position, ""
        except NO_IMAGE:
            return None, position, str(self.files.files[index])


def _collate(items: list[tuple[Tensor | None, int, str]]) -> tuple[Tensor | None, Tensor, list[str]]:
    good = [(image.permute(1, 2, 0), position) for image, position, _ in items if image is not None]
    images = torch.stack([image for image, _ in good]).permute(0, 3, 1, 2) if good else None  # as they lie in memory
    return images, torch.tensor([position for _, position in good]), [name for *_, name in items if name]
