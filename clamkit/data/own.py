"""Images of one's own: a folder of classes or a CSV manifest. Who says what is for training, what for testing, and how.

Folders of others (ImageNet, Mini-ImageNet) are read by it too.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from PIL import Image, ImageOps

from clamkit.data.dataset import earlier_alike
from clamkit.data.readers import IMAGE_TYPES, NO_IMAGE, Content, Files, cached, open_image, refuse_bad
from clamkit.errors import ClamkitError

STREAM_ABOVE = 8e9  # bytes of decoded images beyond which they are read file by file
TEST_SHARE, TEST_SEED = 0.2, 0  # of data that nobody has split
SPLITS = {"train": ("train", "training"), "test": ("test", "testing"), "val": ("val", "valid", "validation")}
LAYOUTS = (
    "a folder with train/<class>/… and test/<class>/… (or val/<class>/…), a folder of <class>/…, or a CSV file with "
    "the columns path, label and, optionally, split"
)


@dataclass
class Listing:
    """Image files, class name and split (train, test, val, or "": nobody said) of each, and what must be said."""

    name: str
    files: list[str]  # as they are opened
    shown: list[str]  # as their owner calls them: below the folder, or as in the manifest
    labels: list[str]
    splits: list[str]
    classes: list[str]
    notes: list[str]


def read_folder(path: Path, image_size: int | None, skip_bad: bool = False, stream: bool = False) -> Content:
    """train/<class>/… and test/<class>/… or val/<class>/…; where there are no such, the images are split.

    stream: read file by file, as sets above STREAM_ABOVE bytes are in any case.
    """
    return _content(list_folder(path), image_size, skip_bad, stream)


def read_manifest(path: Path, image_size: int | None, skip_bad: bool = False) -> Content:
    """A CSV file with the columns path (relative to the file's folder), label and, optionally, split."""
    return _content(list_manifest(path, skip_bad), image_size, skip_bad)


def _content(found: Listing, image_size: int | None, skip_bad: bool, stream: bool = False) -> Content:
    """The images of a listing, decoded once and then memory-mapped from the cache."""
    labels = np.array([*map({name: i for i, name in enumerate(found.classes)}.get, found.labels)], dtype=np.int64)
    notes, parts, name = list(found.notes), np.array(found.splits), found.name
    if not {"test", "val"} & set(found.splits):
        drawn = draw_test(found.shown, labels, found.classes)
        notes.append(
            f"{name} has no test images of its own: {drawn.sum()} of {len(drawn)}, {TEST_SHARE:.0%} of each class, are "
            f"kept for testing, drawn by their names with seed {TEST_SEED}, the same ones every time."
        )
        parts = np.where(drawn, "test", "train")
    if {"test", "val"} <= set(parts):
        notes.append(f"{name} has test images, so its {(parts == 'val').sum()} images of the split val are not used.")
    used = "test" if "test" in parts else "val"
    rows = {part: np.flatnonzero(parts == split) for part, split in (("train", "train"), ("test", used))}
    extra = np.setdiff1d(labels[rows["test"]], labels[rows["train"]])
    if extra.size:
        which = ", ".join(found.classes[i] for i in extra[:5])
        raise ClamkitError(f"{name}: the test images have classes that the training images have not: {which}.")
    more: Content = {"class_names": found.classes, "notes": notes}
    files = {part: [found.files[i] for i in of_part] for part, of_part in rows.items()}
    y = {f"y_{part}": labels[of_part] for part, of_part in rows.items()}
    everything = [*files["train"], *files["test"]]
    if image_size and (stream or len(everything) * 3 * image_size**2 > STREAM_ABOVE):
        return {f"x_{part}": Files(of_part, image_size) for part, of_part in files.items()} | y | more

    def decode() -> Content:
        arrays: Content = {}
        bad: list[str] = []
        for part, of_part in files.items():
            arrays[f"x_{part}"], good = _decode(of_part, image_size, skip_bad)
            arrays[f"y_{part}"] = y[f"y_{part}"][good]
            bad += [file for file, fine in zip(of_part, good, strict=True) if not fine]
        return arrays | {"bad": np.array(bad, dtype=str)}

    split = hashlib.sha256(y["y_train"].tobytes() + y["y_test"].tobytes()).hexdigest()
    content = cached(name, map(Path, everything), decode, image_size, skip_bad, len(y["y_train"]), split)
    if said := refuse_bad(content.pop("bad").tolist(), len(everything), skip_bad):
        notes.append(said)
    return content | more


def draw_test(names: Sequence[str], labels: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Which images are for testing: of each class TEST_SHARE, at least one, those with the smallest SHA-256.

    It is that of seed and name: the choice depends on nothing else, and one more image moves at most one other.
    """
    sizes = np.bincount(labels, minlength=len(classes))
    if (single := np.flatnonzero(sizes == 1)).size:
        raise ClamkitError(
            f"{single.size} of {len(classes)} classes have one image only (first: {classes[single[0]]!r}), and nothing "
            "says which images are for testing: a class needs two to be split. Add images, or remove it."
        )
    drawn = [hashlib.sha256(os.fsencode(f"{TEST_SEED} {normalize('NFC', name)}")).digest() for name in names]
    order = np.array(sorted(range(len(names)), key=drawn.__getitem__))
    test = np.empty(len(names), dtype=bool)
    wanted = np.maximum(1, np.round(TEST_SHARE * sizes))
    test[order] = earlier_alike(torch.from_numpy(labels[order])).numpy() < wanted[labels[order]]
    return test


def _decode(files: Sequence[str], image_size: int | None, skip_bad: bool) -> tuple[np.ndarray, np.ndarray]:
    """RGB images [N, H, W, 3] and which files they are; with image_size: the centre square, resized."""

    sizes: set[tuple[int, int]] = set()

    def one(file: str) -> np.ndarray | None:
        try:
            with open_image(str(file)) as opened:
                sizes.add(opened.size[::-1])
                if not image_size and len(sizes) > 1:
                    return None  # refused below, before all are held in memory
                image = opened.convert("RGB")
                if image_size:
                    image = ImageOps.fit(image, (image_size, image_size), Image.Resampling.BILINEAR)
                return np.asarray(image)
        except NO_IMAGE:
            return None

    with ThreadPoolExecutor() as pool:
        tried = list(pool.map(one, files))
    if not image_size and len(sizes) > 1:
        raise ClamkitError(
            f"the images differ in size ({len(sizes)} sizes, from {min(sizes)} to {max(sizes)}): "
            "give a size to bring them to, for instance image_size=64."
        )
    good = np.array([image is not None for image in tried])
    refuse_bad([file for file, fine in zip(files, good, strict=True) if not fine], len(files), skip_bad)
    return np.stack([image for image in tried if image is not None]), good


# --------------------------------------------------------------------------------------------------------- folders


def list_folder(path: Path) -> Listing:
    inside = _folders(path)
    splits = [folder for folder in inside if _split_of(folder.name) and _folders(folder)]
    parts = {_split_of(folder.name): folder for folder in splits}
    if double := next((f for f in splits if parts[_split_of(f.name)] != f), None):
        split = _split_of(double.name)
        raise ClamkitError(f"{path} has {double.name}/ and {parts[split].name}/, both the split {split}: keep one.")
    if parts and "train" not in parts:
        raise ClamkitError(f"{path} has {', '.join(f.name for f in parts.values())}/ and no train/: give {LAYOUTS}.")
    roots = parts or {"": path}
    classes = _folders(roots.get("train", path))
    if not classes:
        raise ClamkitError(f"{path} has no folder for each class: give {LAYOUTS}.")
    nested = [f.name for f in classes if not parts and any(_split_of(g.name) == "train" for g in _folders(f))]
    if nested:
        raise ClamkitError(f"{path} holds datasets, not classes ({nested[0]}/ has a train/ in it): give one of them.")
    if not parts and (empty := [folder.name for folder in classes if not _images(folder, deep=False)]):
        raise ClamkitError(f"{path} has no train/, and no image lies in {empty[0]}/ itself: give {LAYOUTS}.")
    found = Listing(path.name, [], [], [], [], [folder.name for folder in classes], [])
    for split, root in roots.items():
        extra = [folder.name for folder in _folders(root) if folder.name not in found.classes]
        if extra:
            raise ClamkitError(f"{root} has classes that train/ has not: {', '.join(extra[:5])}.")
        files = [(file, name) for name in found.classes for file in _images(root / name)]
        if not files:
            raise ClamkitError(f"{path}: no image in {root.name}/ (known types: {', '.join(sorted(IMAGE_TYPES))}).")
        found.files += [str(file) for file, _ in files]
        found.shown += [str(file)[len(str(root)) + 1 :].replace(os.sep, "/") for file, _ in files]
        found.labels += [name for _, name in files]
        found.splits += [split] * len(files)
    return found


def _folders(path: Path) -> list[Path]:
    """Its folders by name, without those that systems and tools leave behind."""
    return sorted(inner for inner in path.iterdir() if not inner.name.startswith((".", "__")) and inner.is_dir())


def _images(folder: Path, deep: bool = True) -> list[Path]:
    """The image files below a folder (or right in it), by name; none that is hidden or in a hidden folder."""
    found = (file for file in folder.glob("**/*" if deep else "*") if file.suffix.lower() in IMAGE_TYPES)
    return sorted(file for file in found if f"{os.sep}." not in str(file)[len(str(folder)) :])


def _split_of(name: str) -> str:
    return next((split for split, names in SPLITS.items() if name.strip().lower() in names), "")


# -------------------------------------------------------------------------------------------------------- manifest


def list_manifest(path: Path, skip_missing: bool = False) -> Listing:
    columns, table = _table(path)
    found = Listing(path.stem, [], [], [], [], [], [])
    gone: list[str] = []
    lines: dict[str, int] = {}  # of each file
    for line, fields in table:
        if len(fields) != len(columns):
            raise ClamkitError(
                f"line {line} of {path.name} has {len(fields)} fields, its header {len(columns)}: put quotes around a "
                "path or label with a separator in it."
            )
        row = {name: text.strip() for name, text in zip(columns, fields, strict=True)}
        if empty := next((name for name in columns if name in ("path", "label", "split") and not row[name]), ""):
            raise ClamkitError(f"line {line} of {path.name} has no {empty}: fill it in or leave the row out.")
        split = _split_of(row.get("split", ""))
        if "split" in row and not split:
            raise ClamkitError(
                f"line {line} of {path.name} has the split {row['split']!r}: it must be train, test or val."
            )
        file = os.path.normpath(path.parent / row["path"])
        if (first := lines.setdefault(file, line)) != line:
            raise ClamkitError(
                f"lines {first} and {line} of {path.name} name the same image, {row['path']}: it has one label and "
                "one split, so give it once."
            )
        if not os.path.isfile(file):
            gone.append(row["path"])
            continue
        found.files.append(file)
        found.shown.append(row["path"])
        found.labels.append(normalize("NFC", row["label"]))
        found.splits.append(split)
    if gone:
        named = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
        said = f"{len(gone)} of the {len(table)} files that {path.name} names are not there: {named}."
        if not skip_missing or not found.files:
            raise ClamkitError(
                f"{said} Paths are relative to the folder of the CSV file, {path.parent}. Mend them, or leave such "
                "rows out with skip_bad_images=True."
            )
        found.notes.append(f"{said} They are left out.")
    if "split" in columns and "train" not in found.splits:
        raise ClamkitError(f"{path.name} has no row of the split train: there is nothing to train on.")
    found.classes += sorted(set(found.labels), key=lambda name: (0, int(name), name) if _number(name) else (1, name))
    return found


def _number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The columns of a CSV file, separated by comma, semicolon or tab, and its rows with their lines."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            separator = max(",;\t", key=header.count)
            columns = [name.strip().lower() for name in next(csv.reader([header], delimiter=separator), [])]
            reader = csv.reader(file, delimiter=separator, strict=True)
            table = [(reader.line_num + 1, fields) for fields in reader if fields]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ClamkitError(f"{path} cannot be read as a CSV file in UTF-8 ({error}).") from error
    if columns.count("path") != 1 or columns.count("label") != 1 or columns.count("split") > 1:
        raise ClamkitError(
            f"{path.name} needs the columns path and label and, optionally, split (train, test or val), each once; it "
            f"has {', '.join(filter(None, columns)) or 'none'}. (Predictions of a model are for `clamkit diagnose`.)"
        )
    if not table:
        raise ClamkitError(f"{path.name} has a header and no rows: it needs one for each image.")
    return columns, table
