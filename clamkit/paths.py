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


def project() -> Path:
    """The checkout's root, or the current folder when clamkit is installed as a wheel."""
    return _CHECKOUT or Path.cwd()


def runs() -> Path:
    return _folder("CLAMKIT_RUNS", project() / "runs")


def figures() -> Path:
    return _folder("CLAMKIT_FIGURES", project() / "figures")


def cache() -> Path:
    """Downloads and decoded arrays; safe to delete at any time."""
    return _folder("CLAMKIT_DATA", Path(platformdirs.user_cache_dir("clamkit")))


def embedded() -> Path:
    """Data shipped with the kit: `data/` in a checkout, `clamkit/_data` in a wheel."""
    return _CHECKOUT / "data" if _CHECKOUT else _PACKAGE / "_data"


def notebooks() -> Path:
    folder = project() / "notebooks"
    if not folder.is_dir():
        raise ClamkitError(
            f"there is no notebooks folder at {folder}. The notebooks come with a checkout of the project, "
            "not with the wheel: run from a clone that was set up with `make setup`."
        )
    return folder


def shown(path: Path | str) -> str:
    """A path as people read it: relative to the current folder where it lies below it."""
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
