"""What this machine has and what it lacks: device, packages, datasets, folders, notebooks, extras."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

from clamkit import __version__, paths
from clamkit.errors import ClamkitError

EMBEDDED = "fashion_mnist_mini"  # the dataset that comes with the kit; any other may be absent
EXTRAS = {  # what each extra of pyproject.toml is for
    "lab": "demo, sweep, report and the notebooks",
    "cluster": "sweeps on several machines",
    "integrations": "callbacks for Hugging Face, Lightning and timm",
    "app": "the explorers as web pages",
    "test": "pytest",
    "trainers": "the tests of scikit-learn, skorch and XGBoost",
    "browser": "the browser tests",
}
FOR_DEVELOPERS = ("test", "trainers", "browser")  # looked for in a checkout only: a wheel has no tests

Check = tuple[str, str, str | None]  # what is looked at, what was found, and what is wrong with it or missing


def checks() -> list[Check]:
    """Everything that was looked at, in order."""
    machine = f"{__version__}, Python {platform.python_version()} on {platform.platform()}"
    places = {"runs": paths.runs(), "figures": paths.figures(), "cache": paths.cache()}
    packages, *extras = _packages()
    folders = [_folder(label, folder) for label, folder in places.items()]
    return [("clamkit", machine, None), _device(), packages, *_datasets(), *folders, _notebooks(), *extras]


def doctor() -> tuple[list[str], bool]:
    """(a line for each check and each problem, whether all that is not optional works)."""
    found = checks()
    lines = [f"{kind:<10} {text}" for kind, text, _ in found]
    broken = [f"{'problem':<10} {problem}" for kind, _, problem in found if problem and kind != "extra"]
    optional = [f"{'missing':<10} {problem}" for kind, _, problem in found if problem and kind == "extra"]
    return [*lines, *(broken + optional or ["nothing is missing"])], not broken


def _device() -> Check:
    try:
        import torch

        from clamkit.engine.device import bfloat16_speed, find_device
    except (ImportError, OSError) as error:
        return "device", "unknown", f"torch cannot be imported ({error}): install it again."
    device = find_device()
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else f"threads: {torch.get_num_threads()}"
    speed = bfloat16_speed()
    half = f"bfloat16 has {speed:.1f} times float32's speed" if speed else "bfloat16 does not work"
    return "device", f"{device} ({what}), {os.cpu_count()} cores, on which {half}", None


def _requirements() -> dict[str, list[str]]:
    """Names of the packages that the installed clamkit asks for, by extra; those it always needs under ""."""
    found: dict[str, list[str]] = {}
    for line in requires("clamkit") or []:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra\s*==\s*['\"](.+?)['\"]", line)
        if name:
            found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def _absent(names: list[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in names if not any(distributions(name=name))]


def _packages() -> list[Check]:
    """What clamkit always needs, then a check for each extra."""
    try:
        extras = _requirements()
    except PackageNotFoundError:
        text = "clamkit itself is not installed, only on the path"
        return [("packages", text, "clamkit is not installed: `make setup` in a checkout, or `pip install .`.")]
    needed = extras.pop("", [])
    absent = _absent(needed)
    text = ", ".join(f"{name} {version(name)}" for name in needed if name not in absent)
    problem = f"not installed: {', '.join(absent)}. `pip install {' '.join(absent)}` brings them." if absent else None
    found: list[Check] = [("packages", text, problem)]
    for extra, names in extras.items():
        if paths.in_checkout() or extra not in FOR_DEVELOPERS:
            absent = _absent(names)
            text = f"{extra} ({EXTRAS.get(extra, '')}): {'not installed' if absent else 'installed'}"
            it = "it" if len(absent) == 1 else "them"
            advice = f"{', '.join(absent)}: `pip install 'clamkit[{extra}]'` brings {it}" if absent else None
            found.append(("extra", text, advice))
    return found


def _datasets() -> list[Check]:
    try:
        from clamkit.data.datasets import DATASETS, locate
    except (ImportError, OSError) as error:
        return [("data", "unknown", f"the datasets cannot be looked for ({error}).")]
    found: list[Check] = [("data", f"{name}: {locate(name)}", None) for name in DATASETS]
    if DATASETS[EMBEDDED].find(None) is None:
        text = f"{EMBEDDED}, which comes with clamkit, was not found: restore it from the repository, or install again."
        found.append(("data", "the defaults will not work", text))
    return found


def _folder(label: str, folder: Path) -> Check:
    """Whether a folder, or one that would be made, can be written: a small file is, and is gone again."""
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
        free = f"{shutil.disk_usage(there).free / 1e9:.0f} GB free"
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"clamkit" * 1000)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        advice = f"Give another folder with CLAMKIT_{'DATA' if label == 'cache' else label.upper()}=FOLDER."
        why = error.strerror or str(error)
        return label, paths.shown(folder), f"{label} cannot be written: {paths.shown(folder)}: {why}. {advice}"
    return label, f"{paths.shown(folder)} ({free})", None


def _notebooks() -> Check:
    try:
        notebooks, grids = len(list(paths.notebooks().glob("*.ipynb"))), len(list(paths.sweeps().glob("*.yaml")))
    except ClamkitError as error:
        return "notebooks", "absent", str(error)
    problem = None if notebooks and grids else f"{paths.notebooks()} lacks notebooks or grids: install clamkit again."
    return "notebooks", f"{notebooks} notebooks and {grids} grids in {paths.shown(paths.notebooks())}", problem
