"""ImageNet and iNaturalist 2018: their layout on disk in small, and what the real ones ask for."""

from __future__ import annotations

import json
import shutil
import tempfile
import textwrap
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from clamkit import paths
from clamkit.data.dataset import earlier_alike
from clamkit.data.datasets import DATASETS, load_data
from clamkit.engine.config import RunConfig
from clamkit.errors import check_known
from clamkit.lab.costs import costs
from clamkit.lab.recipes import recipe

TRAINING, TEST = 200, 100  # images of a class written, where it has so many
QUALITY = 95
_KEPT: list[tempfile.TemporaryDirectory] = []  # until the process ends


class Source(NamedTuple):
    """Where a dataset comes from, what it becomes on disk, and how much that is."""

    files: str
    layout: str
    archives: float  # in GB of 10⁹ bytes; unpacked it is about as much again


SOURCES = {
    "imagenet": Source(
        "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from image-net.org, for which one registers",
        "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG; the validation images come in one folder and must be sorted into "
        "classes",
        148 + 7,
    ),
    "inaturalist2018": Source(
        "train_val2018.tar.gz, train2018.json.tar.gz and val2018.json.tar.gz from github.com/visipedia/inat_comp, "
        "and categories.json there for the names",
        "train_val2018/<group>/<number>/*.jpg, with train2018.json and val2018.json beside train_val2018/",
        120,
    ),
}


def write_layout(name: str) -> dict[str, Any]:
    """The embedded photographs as files in the layout of a large dataset; fields of a short run on them.

    For iNaturalist with a long tail. The folder is deleted when the process ends.
    """
    check_known("layout", name, SOURCES)
    tail = name == "inaturalist2018"
    data = load_data("fashion_mnist_tail" if tail else "fashion_mnist_mini")
    _KEPT.append(tempfile.TemporaryDirectory(prefix="clamkit-"))
    root, labels = Path(_KEPT[-1].name), [class_name.replace("/", " or ") for class_name in data.class_names]
    for part, x, y in (("train", data.x_train, data.y_train), ("val", data.x_test, data.y_test)):
        most = TEST if part == "val" else len(y) if tail else TRAINING
        rows: dict[str, list[dict]] = {"images": [], "annotations": []}
        for i in (earlier_alike(y) < most).nonzero().flatten().tolist():
            label = int(y[i])
            file = f"train_val2018/Clothes/{label}/{part}{i}.jpg" if tail else f"{part}/{labels[label]}/{part}_{i}.JPEG"
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[i, 0].numpy()).save(root / file, quality=QUALITY)
            rows["images"].append({"id": i, "file_name": file})
            rows["annotations"].append({"image_id": i, "category_id": label})
        if tail:
            categories = [{"id": label, "name": text} for label, text in enumerate(labels)]
            (root / f"{part}2018.json").write_text(json.dumps(rows | {"categories": categories}), encoding="utf-8")
    return {"dataset": name, "data_dir": str(root), "image_size": 28, "epochs": 4, "batch_size": 64}


def preparation(name: str, data_dir: str | None = None) -> str:
    """For people: what to download where, what a folder lacks, disk, and hours by the fast and the paper's recipe."""
    check_known("large dataset", name, SOURCES)
    source, known = SOURCES[name], DATASETS[name]
    place = Path(data_dir).expanduser() if data_dir else None
    lacks = ", ".join(known.missing(place)) if place else ""
    state = f"lacks {lacks}" if lacks else "has all it needs" if place else "none was given: set data_dir"
    above = (place or paths.cache()).resolve() / "x"
    free = shutil.disk_usage(next(folder for folder in above.parents if folder.exists())).free / 1e9
    rows = {
        "download": source.files,
        "unpack to": source.layout,
        "folder": state,
        "disk": f"{source.archives:,.0f} GB of archives and about as much unpacked; {free:,.0f} GB are free there",
    }
    for scale in ("fast", "paper"):
        rows[f"{scale} recipe"] = costs([RunConfig(**recipe(scale, name))])
    indented = partial(textwrap.fill, width=110, subsequent_indent=" " * 14)
    return "\n".join(indented(value, initial_indent=f"{key:<14}") for key, value in rows.items())
