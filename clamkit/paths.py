"""Where things lie. Every folder is decided here, and nowhere else.

`CLAMKIT_RUNS`, `CLAMKIT_FIGURES` and `CLAMKIT_DATA` (the download cache) override the defaults.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from clamkit.errors import ClamkitError

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent if (_PACKAGE.parent / "pyproject.toml").is_file() else None


def _folder(variable: str, default: Path) -> Path:
    return Path(os.environ.get(variable) or default).expanduser().resolve()


def in_checkout() -> bool:
    """Whether clamkit runs from a clone of the project, not from an installed wheel."""
    return _CHECKOUT is not None


def project() -> Path:
    """The checkout's root, or the current folder when clamkit is installed as a wheel."""
    return _CHECKOUT or Path.cwd()


def runs() -> Path:
    """One folder for each run."""
    return _folder("CLAMKIT_RUNS", project() / "runs")


def figures() -> Path:
    """Where figures and reports are written: in a checkout below build/, so that no committed picture changes."""
    return _folder("CLAMKIT_FIGURES", _CHECKOUT / "build" / "figures" if _CHECKOUT else Path.cwd() / "figures")


def cache() -> Path:
    """Downloads and decoded arrays; safe to delete at any time."""
    return _folder("CLAMKIT_DATA", Path(platformdirs.user_cache_dir("clamkit")))


def embedded() -> Path:
    """Data shipped with the kit: `data/` in a checkout, `clamkit/_data` in a wheel."""
    return _CHECKOUT / "data" if _CHECKOUT else _PACKAGE / "_data"


def notebooks() -> Path:
    """The notebooks: `notebooks/` in a checkout, `clamkit/_notebooks` in a wheel. Read there, never written."""
    folder = _CHECKOUT / "notebooks" if _CHECKOUT else _PACKAGE / "_notebooks"
    if not folder.is_dir():
        raise ClamkitError(f"the notebooks are not at {folder}: restore that folder, or install clamkit again.")
    return folder


def sweeps() -> Path:
    """The grids that come with the kit, one YAML file each."""
    return notebooks() / "sweeps"


def shown(path: Path | str) -> str:
    """A path as people read it: relative to the current folder where it lies below it."""
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
