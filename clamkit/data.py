"""Datasets as uint8 tensors in memory: `load(name)`, or the path of an .npz file or an image folder.

Every dataset is checked on the way in: shapes, label range, each class present in training, and for the known
ones the SHA-256 of the decoded arrays.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clamkit import paths
from clamkit.errors import ClamkitError, unknown

PARTS = ("x_train", "y_train", "x_test", "y_test")
IMAGE_TYPES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)  # of the 60,000 training images


@dataclass(frozen=True)
class Dataset:
    """Images [N, C, H, W] uint8, labels [N] int64, and what is needed to show and normalise them."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str = field(repr=False)

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

    def __repr__(self) -> str:
        n, c, h, w = self.x_train.shape
        return f"{self.name}: {n} training and {len(self.x_test)} test images, {c}×{h}×{w}, {self.num_classes} classes"


@dataclass(frozen=True)
class Known:
    """A dataset with a name: how to read it, and what must come out."""

    read: Callable[[Path | None], dict]
    find: Callable[[Path | None], Path | None]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str


def load(
    name: str | os.PathLike, *, data_dir: str | os.PathLike | None = None, image_size: int | None = None
) -> Dataset:
    """A dataset by name ("fashion_mnist_mini", …), or from an .npz file or image folder by path.

    data_dir    where to look first for the files of a known dataset
    image_size  image folders only: the side to resize to; needed when the images differ in size
    """
    if str(name) in KNOWN:
        return _load_known(str(name), Path(data_dir).expanduser().resolve() if data_dir else None)
    path = Path(name).expanduser().resolve()
    if path.is_file() and path.suffix == ".npz":
        return _dataset(path.stem, **_read_npz(path))
    if path.is_dir():
        return _dataset(path.name, **_read_folder(path, image_size))
    error = unknown("dataset", str(name), KNOWN)
    raise ClamkitError(
        f"{error} Or give the path of an .npz file or of a folder with train/ and test/ (or val/) in it."
    )


@lru_cache(maxsize=4)
def _load_known(name: str, data_dir: Path | None) -> Dataset:
    known = KNOWN[name]
    dataset = _dataset(name, **known.read(data_dir), class_names=known.class_names, mean=known.mean, std=known.std)
    if dataset.sha256 != known.sha256:
        raise ClamkitError(
            f"the files of {name} decode to other content than expected (SHA-256 {dataset.sha256[:16]}…, expected "
            f"{known.sha256[:16]}…): they are damaged or another version. Delete them and get them anew."
        )
    return dataset


def at_hand(name: str, data_dir: Path | None = None) -> str:
    """Where the files of a known dataset lie, or that they are not there; nothing is downloaded."""
    place = KNOWN[name].find(data_dir)
    return f"in {place}" if place else "not here yet"


def _dataset(name: str, *, class_names=None, mean=None, std=None, **arrays) -> Dataset:
    """Check the four arrays and wrap them up."""
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
    if mean is None:
        sample = x_train[:: max(1, len(x_train) // 10_000)] / np.float32(255)
        mean = tuple(float(m) for m in sample.mean(axis=(0, 2, 3)))
        std = tuple(float(max(s, 1e-3)) for s in sample.std(axis=(0, 2, 3)))
    digest = hashlib.sha256()
    for array in (x_train, y_train, x_test, y_test):
        digest.update(np.ascontiguousarray(array))
    tensors = [torch.from_numpy(array) for array in (x_train, y_train, x_test, y_test)]
    return Dataset(name, *tensors, class_names=names, mean=mean, std=std, sha256=digest.hexdigest())


def _images(x: np.ndarray, part: str) -> np.ndarray:
    """uint8 [N, C, H, W] from [N, H, W], [N, H, W, C] or [N, C, H, W]."""
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
    return np.ascontiguousarray(x)


def _labels(y: np.ndarray, part: str) -> np.ndarray:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ClamkitError(
            f"{part} has type {y.dtype} and shape {y.shape}: labels must be whole numbers, one for each image."
        )
    return np.ascontiguousarray(y, dtype=np.int64)


# ------------------------------------------------------------------------------------------------ the readers


def _read_npz(path: Path) -> dict:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except Exception as error:  # zip, numpy and pickle refusals are all the user's one fact: unreadable
        raise ClamkitError(f"{path} cannot be read as an .npz file of plain arrays: {error}") from error
    missing = [part for part in PARTS if part not in arrays]
    if missing:
        raise ClamkitError(
            f"{path} lacks {', '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}. "
            "Save it with numpy.savez(path, x_train=…, y_train=…, x_test=…, y_test=…, class_names=…)."
        )
    return {key: arrays[key] for key in (*PARTS, "class_names") if key in arrays}


def _read_folder(path: Path, image_size: int | None) -> dict:
    """train/<class>/… and test/<class>/… or val/<class>/…; decoded once, then memory-mapped from the cache."""
    test = next((path / part for part in ("test", "val") if (path / part).is_dir()), None)
    if not (path / "train").is_dir() or test is None:
        raise ClamkitError(f"{path} must hold train/<class>/… and test/<class>/… (or val/<class>/…); it does not.")
    names = sorted(folder.name for folder in (path / "train").iterdir() if folder.is_dir())
    extra = sorted({folder.name for folder in test.iterdir() if folder.is_dir()} - set(names))
    if extra:
        raise ClamkitError(f"{test} has classes that train/ has not: {', '.join(extra[:5])}.")
    files = {
        part: [
            (file, label)
            for label, name in enumerate(names)
            for file in sorted((folder / name).rglob("*"))
            if file.suffix.lower() in IMAGE_TYPES
        ]
        for part, folder in (("train", path / "train"), ("test", test))
    }
    for part, found in files.items():
        if not found:
            raise ClamkitError(f"{path}: no image in {part}/ (known types: {', '.join(sorted(IMAGE_TYPES))}).")
    listing = [
        (str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns)
        for found in files.values()
        for file, _ in found
    ]
    key = hashlib.sha256(json.dumps([str(path), image_size, listing]).encode()).hexdigest()[:16]

    def decode() -> dict:
        return {f"x_{part}": _decode([file for file, _ in found], image_size) for part, found in files.items()} | {
            f"y_{part}": np.array([label for _, label in found]) for part, found in files.items()
        }

    return _cached(f"{path.name}-{key}", decode) | {"class_names": names}


def _decode(files: list[Path], image_size: int | None) -> np.ndarray:
    """RGB images [N, H, W, 3]; with image_size: shorter side resized to it, then the centre cut out."""
    from PIL import Image, ImageOps

    def one(file: Path) -> np.ndarray:
        try:
            with Image.open(file) as image:
                image = image.convert("RGB")
                if image_size:
                    image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)
                return np.asarray(image)
        except OSError as error:
            raise ClamkitError(f"{file} does not decode as an image ({error}): repair or remove it.") from error

    with ThreadPoolExecutor() as pool:
        images = list(pool.map(one, files))
    shapes = {image.shape[:2] for image in images}
    if len(shapes) > 1:
        raise ClamkitError(
            f"the images differ in size ({len(shapes)} sizes, from {min(shapes)} to {max(shapes)}): "
            "give image_size, for instance image_size=64."
        )
    return np.stack(images)


def _cached(key: str, make: Callable[[], dict]) -> dict:
    """Arrays memory-mapped from the cache, made first where they are not there; the folder appears whole or not."""
    folder = paths.cache() / "decoded" / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
        for name, array in make().items():
            np.save(temporary / f"{name}.npy", array)
        try:
            temporary.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(temporary)
    return {part: np.load(folder / f"{part}.npy", mmap_mode="c") for part in PARTS}


def _read_embedded(data_dir: Path | None) -> dict:
    return {key: value for key, value in _read_npz(paths.embedded() / "fashion_mnist_mini.npz").items() if key in PARTS}


FASHION_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def _fashion_places(data_dir: Path | None) -> list[Path]:
    given = [data_dir, data_dir / "FashionMNIST" / "raw"] if data_dir else []
    return [*given, paths.cache() / "downloads" / "FashionMNIST" / "raw", DEBIAN_FASHION_MNIST]


def _fashion_files(place: Path) -> dict[str, Path]:
    candidates = {part: (place / name, place / f"{name}.gz") for part, name in FASHION_FILES.items()}
    return {part: file for part, pair in candidates.items() for file in pair if file.is_file()}


def _find_fashion_mnist(data_dir: Path | None) -> Path | None:
    return next((place for place in _fashion_places(data_dir) if len(_fashion_files(place)) == len(PARTS)), None)


def _read_fashion_mnist(data_dir: Path | None) -> dict:
    place = _find_fashion_mnist(data_dir)
    if place is None:
        from clamkit._vision import torchvision

        try:
            torchvision.datasets.FashionMNIST(paths.cache() / "downloads", download=True)
        except Exception as error:  # whatever the network does, the user's fact is the same: not to be had
            tried = "; ".join(map(str, _fashion_places(data_dir)))
            raise ClamkitError(
                f"Fashion-MNIST is not at hand. Looked for its four *-ubyte(.gz) files in: {tried}; then torchvision's "
                f"download, which failed ({type(error).__name__}: {str(error)[:120]}). Put the files into one of these "
                "folders, give data_dir=, install the Debian package dataset-fashion-mnist, or use the embedded part: "
                "dataset='fashion_mnist_mini'."
            ) from error
        place = _find_fashion_mnist(data_dir)
    return {part: _read_idx(file) for part, file in _fashion_files(place).items()}


def _read_idx(file: Path) -> np.ndarray:
    """The IDX format: two zero bytes, type 8 (uint8), number of dimensions, their sizes as big-endian int32, data."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        dimensions = raw[3]
        shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise ClamkitError(f"{file} is not a sound IDX file ({error}): delete it and get it anew.") from error


KNOWN: dict[str, Known] = {
    "fashion_mnist_mini": Known(
        read=_read_embedded,
        find=lambda data_dir: paths.embedded(),
        class_names=FASHION_CLASSES,
        mean=FASHION_MEAN,
        std=FASHION_STD,
        sha256="ee715a30921fafb289493758fb41fcd32d5f04a75e9a850ae9f1fd218d559fb2",
    ),
    "fashion_mnist": Known(
        read=_read_fashion_mnist,
        find=_find_fashion_mnist,
        class_names=FASHION_CLASSES,
        mean=FASHION_MEAN,
        std=FASHION_STD,
        sha256="ece172613115fb18b120bec8f6c02271af90b8b8f0a5af5c51cbd5ceed68e619",
    ),
}
