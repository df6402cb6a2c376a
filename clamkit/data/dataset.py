"""What a dataset is, once it is in memory: checked arrays (or image files), labels, names, and what normalises them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clamkit.checks import check_labels, positive_int
from clamkit.data.readers import Files
from clamkit.errors import ClamkitError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel
IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HOLDOUT_SEED = 0  # of the choice of held-out images: a fact of the data, the same for all runs


@dataclass(frozen=True)
class Dataset:
    """Images [N, C, H, W] uint8 (or `Files`), labels [N] int64, and what is needed to show and normalise them.

    sha256 is of the decoded arrays and labels. For `Files` it is of names and sizes of the files that are read, their
    side and the way they are decoded: a smaller copy of the files has another one than the files.
    """

    name: str
    x_train: Tensor | Files
    y_train: Tensor
    x_test: Tensor | Files
    y_test: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str = field(repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)  # said whenever it is loaded: how it was split, what is out
    x_holdout: Tensor | Files = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    y_holdout: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def channels(self) -> int:
        return self.x_train.shape[1]

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training images in each class."""
        return np.bincount(self.y_train.numpy(), minlength=self.num_classes)

    def part(self, per_class: int) -> Dataset:
        """The first `per_class` training images of each class (fewer where a class has fewer); all test images."""
        first = earlier_alike(self.y_train) < positive_int(per_class, "per_class")
        digest = hashlib.sha256(f"{self.sha256} {per_class}".encode()).hexdigest()
        return replace(self, x_train=self.x_train[first], y_train=self.y_train[first], sha256=digest)

    def hold_out(self, count: int) -> Dataset:
        """`count` training images of each class taken out of training, as x_holdout and y_holdout.

        They are the first in a random order that is always the same: more of them contain the fewer.
        """
        label = int(self.sizes.argmin())
        if positive_int(count, "holdout") >= self.sizes[label]:
            raise ClamkitError(
                f"holdout={count} leaves nothing to train on in class {self.class_names[label]!r} of {self.name}, "
                f"which has {self.sizes[label]} training images: give a number below that."
            )
        order = torch.randperm(len(self.y_train), generator=torch.Generator().manual_seed(HOLDOUT_SEED))
        held = torch.empty(len(order), dtype=torch.bool)
        held[order] = earlier_alike(self.y_train[order]) < count
        (x, y), (x_held, y_held) = ((self.x_train[rows], self.y_train[rows]) for rows in (~held, held))
        digest = hashlib.sha256(f"{self.sha256} holdout {count}".encode()).hexdigest()
        return replace(self, x_train=x, y_train=y, x_holdout=x_held, y_holdout=y_held, sha256=digest)

    def __repr__(self) -> str:
        n, c, h, w = self.x_train.shape
        held = f", {len(self.y_holdout)} held-out" if len(self.y_holdout) else ""
        counts = f"{n} training{held} and {len(self.x_test)} test images"
        copy = f", from a {self.x_train.copy}" if isinstance(self.x_train, Files) and self.x_train.copy else ""
        return f"{self.name}: {counts}, {c}×{h}×{w}, {self.num_classes} classes{copy}"


def earlier_alike(labels: Tensor) -> Tensor:
    """For each sample, how many before it have the same label: 0 for the first of a class, then 1, 2, …"""
    by_class, sizes = labels.argsort(stable=True), labels.bincount()
    place = torch.empty_like(labels)
    place[by_class] = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[by_class]]
    return place


def dataset_from_arrays(
    name: str,
    *,
    class_names: Sequence[str] | None = None,
    statistics: Statistics | None = None,
    notes: Sequence[str] = (),
    **arrays: Any,
) -> Dataset:
    """Check x_train, y_train, x_test and y_test and wrap them up."""
    x_train, x_test = (_images(arrays[part], part) for part in ("x_train", "x_test"))
    y_train, y_test = (_labels(arrays[part], part) for part in ("y_train", "y_test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        shapes = x_train.shape[1:], x_test.shape[1:]
        raise ClamkitError(f"{name}: training images are {shapes[0]}, test images {shapes[1]} (C, H, W).")
    for x, y, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if len(x) != len(y):
            raise ClamkitError(f"{name}: {len(x)} {part} images, but {len(y)} labels.")
    if class_names is not None and np.ndim(class_names) != 1:
        raise ClamkitError(f"{name}: class_names has shape {np.shape(class_names)}: give one name for each class.")
    n = len(class_names) if class_names is not None else max(int(y_train.max()) + 1, 1)
    for y, part in ((y_train, "train"), (y_test, "test")):
        check_labels(y, n, f"{name}: {part} labels")
    if n < 2:
        raise ClamkitError(f"{name} has {n} class: there must be at least two.")
    present = set(y_train.tolist())  # labels may be far apart: nothing is made or counted up to the largest
    if len(present) < n:
        first = next(label for label in range(n) if label not in present)
        called = f"class {first}" if class_names is None else str(class_names[first])
        raise ClamkitError(
            f"{name}: {n - len(present)} of {n} classes have no training image (first: {called!r}, label {first}). "
            "Every class needs at least one: remove the class or add images."
        )
    names = tuple(f"class {i}" for i in range(n)) if class_names is None else tuple(map(str, class_names))
    unseen = np.flatnonzero(np.bincount(y_test, minlength=n) == 0)
    if unseen.size:
        which = ", ".join(names[i] for i in unseen[:5])
        notes = [
            *notes,
            f"{name}: {unseen.size} of {n} classes have no test image ({which}): nothing is known of these.",
        ]
    mean, std = statistics or (IMAGENET if isinstance(x_train, Files) else _moments(x_train))
    digest = hashlib.sha256()
    for array in (x_train, y_train, x_test, y_test):
        for piece in [array.fingerprint()] if isinstance(array, Files) else (part.data for part in _parts(array)):
            digest.update(piece)
    train, test = (x if isinstance(x, Files) else torch.from_numpy(x) for x in (x_train, x_test))
    labels, test_labels = torch.from_numpy(y_train), torch.from_numpy(y_test)
    return Dataset(name, train, labels, test, test_labels, names, mean, std, digest.hexdigest(), tuple(notes))


def _images(x: np.ndarray | Files, part: str) -> np.ndarray | Files:
    """uint8 [N, C, H, W] from [N, H, W], [N, H, W, C] or [N, C, H, W]: a view, so that memory maps stay maps."""
    if isinstance(x, Files):
        return x
    if x.dtype != np.uint8:
        raise ClamkitError(f"{part} has type {x.dtype}: images must be uint8, 0 to 255 (multiply fractions by 255).")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3, 4) or 0 in x.shape:
        raise ClamkitError(
            f"{part} has shape {x.shape}: give [images, height, width], [images, height, width, channels] or "
            "[images, channels, height, width] with 1, 3 or 4 channels."
        )
    return x


def _parts(array: np.ndarray, length: int = 1000) -> Iterator[np.ndarray]:
    """The array as contiguous copies of a part at a time: no second copy of all of it."""
    for start in range(0, len(array), length):
        yield np.ascontiguousarray(array[start : start + length])


def _moments(x: np.ndarray) -> Statistics:
    """Mean and standard deviation of each channel, of pixels as fractions; of about 10,000 images."""
    some = x[:: max(1, len(x) // 10_000)]
    counted = [[np.bincount(c.ravel(), minlength=256) for c in part.swapaxes(0, 1)] for part in _parts(some)]
    counts = np.sum(counted, axis=0)
    share, value = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ value
    std = np.sqrt(np.maximum(share @ value**2 - mean**2, 1e-6))
    return tuple(mean.tolist()), tuple(std.tolist())


def _labels(y: np.ndarray, part: str) -> np.ndarray:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        given = f"{part} has type {y.dtype} and shape {y.shape}"
        raise ClamkitError(f"{given}: labels must be whole numbers, one for each image.")
    return np.ascontiguousarray(y, dtype=np.int64)
