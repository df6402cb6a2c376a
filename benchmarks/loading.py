"""Image files from disk, on one core: ours, and from the smaller copy, beside torchvision's ImageFolder."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from clamkit.apps.prepare import prepare
from clamkit.data.augment import RandomResizedCrop
from clamkit.data.readers import IMAGE_TYPES, Files
from clamkit.data.vision import torchvision
from measure import interleaved, one_thread, row

SIZE, COPY = 224, 256
LOWER_BOUND = 0.08  # torchvision's default
FILES = 250  # at most


def loading(quick: bool, photographs: Path | None) -> Iterator[dict]:
    """A crop of each of the photographs below a folder; nothing where there are none."""
    found = (
        (file for file in sorted(photographs.rglob("*")) if file.suffix.lower() in IMAGE_TYPES) if photographs else ()
    )
    with tempfile.TemporaryDirectory() as folder, one_thread():
        place = Path(folder, "data").resolve()
        (place / "photographs").mkdir(parents=True)
        files = [
            Path(shutil.copy(file, place / "photographs")) for file in itertools.islice(found, 20 if quick else FILES)
        ]
        if not files:
            return
        prepare(place, list(map(str, files)), COPY)
        copied = [place.with_name(f"{place.name}-{COPY}px") / file.relative_to(place) for file in files]
        v1 = torchvision.transforms
        cut = v1.Compose([v1.RandomResizedCrop(SIZE, (LOWER_BOUND, 1.0)), v1.PILToTensor()])
        theirs = torchvision.datasets.ImageFolder(place, cut)
        t = interleaved(
            2 if quick else 15,
            folder=lambda: [image for image, _ in theirs],
            ours=lambda: crops(Files(files, SIZE)),
            copy=lambda: crops(Files(copied, SIZE)),
        )
    yield row("ImageFolder and RandomResizedCrop, images/s of a core", len(files) / t["folder"])
    yield row("… images/s, ours / ImageFolder", t["folder"] / t["ours"], "≥", 1.4)
    yield row(f"… images/s, ours from a {COPY}-px copy / ImageFolder", t["folder"] / t["copy"], "≥", 3.5)


def crops(files: Files) -> None:
    """A random crop of each file, as a process that decodes does it."""
    box = partial(RandomResizedCrop(LOWER_BOUND).box, rng=random.Random(0))
    for i in range(len(files)):
        files.read(i, box)
