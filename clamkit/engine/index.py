"""What a table of many runs is read from: their folders, and the rows that were read of them before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from clamkit.errors import ClamkitError
from clamkit.files import atomic, sha256

FILE, CHECKED = ".index.json", ".checked.json"  # in the runs folder; may be deleted at any time
SOURCES = ("DONE", "config.json", "summary.json")  # what a row comes from
DEPTH = 4  # <dataset>/<method>/<augmentation>-<value>/seed<k>-<hash>


def folders(root: Path, marker: str) -> list[str]:
    """The run folders that hold a file `marker`, in order."""
    found = [str(root)]
    for _ in range(DEPTH):
        found = [below for folder in found for below in _folders_in(folder)]
    return [folder for folder in found if os.path.isfile(f"{folder}/{marker}")]


def _folders_in(folder: str) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:  # of another user, or gone by now
        return sorted(entry.path for entry in entries if entry.is_dir())
    return []


def rows(
    root: Path, usual: dict[str, Any], read: Callable[[str], dict[str, Any]], left_out: list[str] | None = None
) -> list[dict[str, Any]]:
    """`usual | read(folder)` of each finished run, and its folder; a damaged one raises, or is named in `left_out`.

    Rows once read are kept, without what is as `usual`, beside the sizes, times and numbers of the files that they
    came from: one that changed is read anew.
    """
    kept, found = _load(root / FILE, usual), {}
    for folder in folders(root, "DONE"):
        name, seen = folder[len(str(root)) + 1 :], _stamps(folder, SOURCES)
        if name in kept and kept[name][0] == seen:
            found[name] = kept[name]
            continue
        try:
            found[name] = [seen, {k: v for k, v in read(folder).items() if k not in usual or usual[k] != v}]
        except ClamkitError as error:
            if left_out is None:
                raise
            left_out.append(str(error))
    if found != kept:
        _save(root / FILE, usual, found)
    return [usual | row | {"folder": str(root / name)} for name, (_, row) in found.items()]


def checked(root: Path, names: Iterable[str], files: Iterable[str], check: Callable[[str], Any]) -> dict[str, Any]:
    """`check(folder)` of each run by name; what was found before is kept while its files are as they were then.

    Sizes, times and numbers of the files tell: this is for looking, what is read is compared with its checksum.
    """
    kept, found = _load(root / CHECKED, {}), {}
    for name in names:
        seen = sha256(_stamps(f"{root}/{name}", files).encode())[:32]
        found[name] = kept[name] if name in kept and kept[name][0] == seen else [seen, check(f"{root}/{name}")]
    if kept | found != kept:
        _save(root / CHECKED, {}, kept | found)
    return {name: row for name, (_, row) in found.items()}


def _stamps(folder: str, files: Iterable[str]) -> str:
    """Changes when a file does."""
    stamps = dict.fromkeys(files, "-")
    for file in stamps:
        with suppress(OSError):
            found = os.stat(f"{folder}/{file}")
            stamps[file] = f"{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}.{found.st_ino}"
    return " ".join(stamps.values())


def _save(file: Path, usual: dict[str, Any], found: dict[str, list]) -> None:
    body = json.dumps([usual, found])
    with suppress(OSError), atomic(file) as temporary:  # a folder may be read-only
        temporary.write_text(f"{sha256(body.encode())}\n{body}", encoding="utf-8")


def _load(file: Path, usual: dict[str, Any]) -> dict[str, list]:
    """Stamps and row by name; empty if there is no index, or it is damaged or of another version of the kit."""
    try:
        digest, body = file.read_text(encoding="utf-8").split("\n", 1)
        fields, found = json.loads(body) if digest == sha256(body.encode()) else (None, {})
    except (OSError, ValueError):
        return {}
    return found if fields == usual else {}
