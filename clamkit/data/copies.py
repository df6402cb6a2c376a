"""Finding the smaller copy of a dataset of image files that `clamkit data prepare` writes.

It lies beside the data, `<folder>-256px`, and is a dataset itself: the same folders and file names. It is finished when
its file MARKER says so, which is written last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clamkit.data.readers import RESIZE, Content, Files
from clamkit.errors import ClamkitError

log = logging.getLogger("clamkit")

MARKER = "clamkit-copy.json"


def read_smallest(place: Path, read: Callable[[], Content]) -> Content:
    """What a reader gives, with the files of the smallest finished copy beside `place` that is large enough, if any.

    Large enough for images of side s is a shorter side of 256/224·s, what evaluation cuts its centre from.
    """
    if not (read_marker(place) or {"finished": True})["finished"]:
        raise ClamkitError(f"{place} is a copy that was not finished: `clamkit data prepare` goes on with it.")
    content = read()
    if not isinstance(content["x_train"], Files):
        return content
    below, side = len(str(place)) + 1, content["x_train"].size
    names = {part: [file[below:] for file in content[part].files] for part in ("x_train", "x_test")}
    for size, folder in _copies(place):
        state = read_marker(folder)
        if size < round(RESIZE * side) or state is None:
            continue
        if state["finished"] and state["names"] == digest([*names["x_train"], *names["x_test"]]):
            log.warning("%s: its %d-px copy in %s is read.", place.name, size, folder)
            copied = {part: [f"{folder}/{name}" for name in inside] for part, inside in names.items()}
            return content | {part: Files(files, side, f"{size}-px copy") for part, files in copied.items()}
        why = "has other files than the data now" if state["finished"] else "is not finished (`clamkit data prepare`)"
        log.warning("%s: the copy in %s %s and is not used.", place.name, folder, why)
    return content


def _copies(place: Path) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{re.escape(place.name)}-(\d+)px")
    try:
        found = [(pattern.fullmatch(path.name), path) for path in place.parent.iterdir()]
    except OSError:
        return []
    return sorted((int(match[1]), path) for match, path in found if match)


def read_marker(folder: Path) -> dict[str, Any] | None:
    """What is known of a copy; None for a folder that is none."""
    try:
        return {"finished": False, "names": None, **json.loads((folder / MARKER).read_text(encoding="utf-8"))}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):  # damaged
        return {"finished": False}


def digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()
