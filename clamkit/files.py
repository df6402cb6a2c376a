"""Files that are whole or not there: written under a temporary name, flushed, renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clamkit.errors import ClamkitError

if TYPE_CHECKING:
    import numpy as np

DEFLATE = 1032  # bytes that one packed byte of a zip file can become at most


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well it takes its place, its content flushed to disk.

    After a power cut `path` is the new file or the old one; `flush` its folder to be sure of the new one.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def flush(folder: Path) -> None:
    """Have the names in a folder outlast a power cut: files made, renamed and removed there.

    Windows and some network disks cannot; there it does nothing. A disk that fails or is full raises.
    """
    try:
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise


def write_json(path: Path, content: Any) -> None:
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file; nothing is unpickled, and one that claims more than it can hold takes no memory."""
    import numpy as np  # commands that read none start without it

    if path.is_file() and not zipfile.is_zipfile(path):  # numpy would call it pickled
        what = f"{path} is no .npz file, whatever its name says: numpy.savez writes one."
        raise ClamkitError(f"{what} Was it damaged on the way, or is it a text file (then call it .csv)?")
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if sum(member.compress_size for member in members) > path.stat().st_size:
                raise ValueError("its parts overlap")
            for member in members:
                with archive.open(member) as file:
                    shape, _, dtype = headers[np.lib.format.read_magic(file)](file)
                if not dtype.hasobject and prod(shape) * dtype.itemsize > min(
                    member.file_size, DEFLATE * member.compress_size
                ):
                    raise ValueError(f"{member.filename} says it has shape {shape}, and is too short for that")
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except Exception as error:  # zip, numpy and pickle refusals are all the user's one fact: unreadable
        told = "save texts with .astype(str), not as objects" if "Object arrays" in str(error) else error
        raise ClamkitError(f"{path} cannot be read as an .npz file of plain arrays: {told}") from error


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
