"""Writing a smaller JPEG copy of a dataset of image files, which `clamkit.data.copies` finds.

A stopped one goes on where it was. The data itself is never written to.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from PIL import Image
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from clamkit.data.copies import MARKER, digest, read_marker
from clamkit.data.readers import NO_IMAGE
from clamkit.errors import ClamkitError
from clamkit.files import write_json

QUALITY = 90  # of the JPEG files
SAMPLE = 50  # files that are converted to estimate the space a copy takes
BATCH = 16  # files a process gets at a time
SPARE = 1.1  # how much more must be free than estimated
SIZES = range(32, 4097)  # shorter sides a copy may have


def prepare(
    place: Path,
    files: Sequence[str],
    size: int = 256,
    *,
    to: Path | None = None,
    jobs: int | None = None,
    progress: bool = False,
) -> str:
    """Write the copy of the files below `place`, shorter side `size`, or go on with it; a sentence on what is there.

    Smaller files are copied as they are, and so are those that do not decode: they are listed in the marker, and
    training treats them as in the original.

    to    the folder to write, for where nothing can be written beside the data; train on it with data_dir=
    jobs  processes; default: one a core
    """
    if size not in SIZES:
        raise ClamkitError(f"size={size} is not allowed: from {SIZES[0]} to {SIZES[-1]} pixels, the shorter side.")
    target = (to or place.with_name(f"{place.name}-{size}px")).expanduser().resolve()
    if target.is_relative_to(place) or place.is_relative_to(target):
        raise ClamkitError(f"the copy cannot be {target}: it must lie outside {place}, which is not written to.")
    try:
        target.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock", timeout=0):
            return _write(place, [str(Path(file).relative_to(place)) for file in files], size, target, jobs, progress)
    except Timeout:
        raise ClamkitError(f"{target} is being written by another process: wait for it.") from None
    except OSError as error:
        what = "free some space" if error.errno == errno.ENOSPC else "give another folder with --to"
        raise ClamkitError(
            f"{target} cannot be written ({error.strerror}): {what}, and the same command goes on."
        ) from error


def _write(place: Path, names: list[str], size: int, target: Path, jobs: int | None, progress: bool) -> str:
    sizes = [os.path.getsize(place / name) if os.path.isfile(place / name) else -1 for name in names]
    source = digest([f"{name} {taken}" for name, taken in zip(names, sizes, strict=True)])
    wanted = {"size": size, "files": len(names), "names": digest(names), "source": source}
    state = read_marker(target) or {}
    if state and any(state.get(key) != value for key, value in wanted.items()):
        raise ClamkitError(
            f"{target} is a copy of other files than are in {place} now, or of another size: delete it or move it away."
        )
    if not state and any(target.iterdir()):
        raise ClamkitError(f"{target} holds files that are no copy of ours: give another folder with --to.")
    if not state.get("finished"):
        copy = _Copy(place, target, size)
        bad = state.get("unreadable", [])  # found before it was stopped, and perhaps copied as they are
        listed = set(bad)
        todo = [name for name in names if name not in listed and not copy.has(name)]
        _check_disk(copy, todo)
        write_json(target / MARKER, wanted | {"finished": False, "unreadable": bad})
        batches = [todo[start : start + BATCH] for start in range(0, len(todo), BATCH)]
        loader = DataLoader(copy, batch_sampler=batches, num_workers=jobs or os.cpu_count() or 1, collate_fn=list)
        with tqdm(total=len(names), initial=len(names) - len(todo), unit="image", disable=not progress) as bar:
            for outcomes in loader:
                if failed := next((number for *_, number in outcomes if number), 0):
                    raise OSError(failed, os.strerror(failed))
                bad += [name for name, decodes, _ in outcomes if not decodes]
                bar.update(len(outcomes))
        state = wanted | {"finished": True, "unreadable": bad}
        write_json(target / MARKER, state | {"finished": False})
        for file in [*map(place.joinpath, bad), *place.glob("*.json")]:  # and annotations, which say what is where
            if file.is_file() and file.name != MARKER:
                copy.put(file.relative_to(place), file.read_bytes())
        os.sync()
        write_json(target / MARKER, state)
    bad = state["unreadable"]
    named = f"; {len(bad)} do not decode, listed in {MARKER}: {', '.join(bad[:3])}" if bad else ""
    return f"{target} holds {len(names)} images, shorter side at most {size} px{named}"


class _Copy(torch.utils.data.Dataset):
    """Files of a copy, written by the processes of a DataLoader, which end when the main process does."""

    def __init__(self, place: Path, target: Path, size: int):
        self.place, self.target, self.size = place, target, size

    def __getitems__(self, names: list[str]) -> list[tuple[str, bool, int]]:
        """(name, whether it decodes, error number of writing or 0); one that does not decode is not written."""
        outcomes = []
        for name in names:
            content, number = self.smaller(name), 0
            try:
                if content is not None:
                    self.put(name, content)
            except OSError as error:
                number = error.errno or errno.EIO
            outcomes.append((name, content is not None, number))
        return outcomes

    def smaller(self, name: str) -> bytes | None:
        """The content of a file in the copy; None if it does not decode. A small file stays as it is."""
        try:
            content = (self.place / name).read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                share = self.size / min(image.size)
                if share >= 1:
                    image.load()
                    return content
                small = image if image.mode in ("L", "RGB") else image.convert("RGB")  # a palette cannot be averaged
                small.thumbnail([round(side * share) for side in image.size], Image.Resampling.BILINEAR)
                out = io.BytesIO()
                small.save(out, "JPEG", quality=QUALITY)
                return out.getvalue()
        except NO_IMAGE:
            return None

    def put(self, name: str | Path, content: bytes) -> None:
        """Under another name first: what has its name is whole."""
        file = self.target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_bytes(content)
        part.replace(file)

    def has(self, name: str) -> bool:
        try:
            return os.stat(self.target / name).st_size > 0  # a power cut may leave empty files
        except OSError:
            return False


def _check_disk(copy: _Copy, names: Sequence[str]) -> None:
    """Refuse a copy that does not fit, by the mean of some files."""
    some = names[:: max(1, len(names) // SAMPLE)]
    block = 4096  # files take whole blocks
    taken = [-(-len(content) // block) * block for name in some if (content := copy.smaller(name))]
    needed = SPARE * len(names) * sum(taken) / max(1, len(taken))
    free = shutil.disk_usage(copy.target).free
    if needed > free:
        raise ClamkitError(
            f"the copy needs about {needed / 1e9:.3g} GB more, and only {free / 1e9:.3g} GB are free at {copy.target}: "
            "free some space, choose a smaller --size, or give another folder with --to."
        )
