"""Runs on disk: one folder each, every file written under a temporary name and renamed, `DONE` last.

`DONE` holds the SHA-256 of the other files, so that damage to a finished run is seen.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from filelock import FileLock, Timeout

from clamkit import paths
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.metrics import METRICS, class_accuracy

log = logging.getLogger("clamkit")

COLUMNS = ("weight", "train_accuracy", "train_loss", "test_accuracy")  # of the history, for each epoch and class
RESULTS = ("config.json", "history.parquet", "predictions.parquet", "summary.json", "checkpoint.pt")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well it takes its place, flushed to disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Run:
    """A run folder. Reading is lazy; writing happens only while `locked()` holds."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({paths.shown(self.folder)}, {'done' if self.done else 'not finished'})"

    # -------------------------------------------------------------------------------------------- reading

    @property
    def done(self) -> bool:
        return (self.folder / "DONE").is_file()

    @property
    def state(self) -> str:
        """done, running (a process holds its lock), failed, stopped (goes on when started again) or missing."""
        if self.done:
            return "done"
        if not self.folder.is_dir():
            return "missing"
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                pass
        except Timeout:
            return "running"
        if (self.folder / "failed.txt").is_file():
            return "failed"
        return "stopped" if (self.folder / "config.json").is_file() else "missing"

    @cached_property
    def config(self) -> RunConfig:
        try:
            return self._read("config.json", lambda path: RunConfig(**json.loads(path.read_text(encoding="utf-8"))))
        except ClamkitError as error:
            raise ClamkitError(f"{error} If another version of the kit wrote this folder, move it away.") from error

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final metrics, class names, data fingerprint, versions, wall time."""
        return self._read("summary.json", lambda path: json.loads(path.read_text(encoding="utf-8")))

    @cached_property
    def history(self) -> pd.DataFrame:
        """One row for each epoch and class: epoch, class, weight, train_accuracy, train_loss, test_accuracy."""
        return self._read("history.parquet", pd.read_parquet)

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """label and prediction of each test image, in the order of the test set."""
        return self._read("predictions.parquet", pd.read_parquet)

    @property
    def class_names(self) -> list[str]:
        return self.summary["class_names"]

    def wide(self, column: str) -> pd.DataFrame:
        """One column of the history as epochs × class names."""
        frame = self.history.pivot(index="epoch", columns="class", values=column)
        return frame.set_axis(self.class_names, axis=1)

    @property
    def test_accuracy(self) -> pd.Series:
        """Test accuracy of each class under the final network, by name."""
        accuracy = class_accuracy(self.predictions["label"], self.predictions["prediction"], len(self.class_names))
        return pd.Series(accuracy, index=self.class_names, name=self.config.method)

    def _read(self, name: str, reader):
        path = self.folder / name
        try:
            return reader(path)
        except FileNotFoundError:
            raise ClamkitError(f"{paths.shown(path)} is not there: the run is not finished. Start it again.") from None
        except Exception as error:
            raise ClamkitError(
                f"{paths.shown(path)} is damaged ({error}). Train the same config again: the checkpoint rebuilds it."
            ) from error

    def damaged(self) -> list[str]:
        """Files that no longer are what `DONE` says they were."""
        try:
            sums = json.loads((self.folder / "DONE").read_text(encoding="utf-8"))
        except ValueError:
            return ["DONE"]
        return [n for n, s in sums.items() if not (self.folder / n).is_file() or _sha256(self.folder / n) != s]

    # -------------------------------------------------------------------------------------------- writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process trains a run; the lock ends with its process, however that ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", timeout=0):
                yield
        except Timeout:
            raise ClamkitError(
                f"another process is training {paths.shown(self.folder)}: wait for it, or stop it."
            ) from None
        except OSError as error:
            raise ClamkitError(f"cannot write to {paths.shown(self.folder)}: {error}.") from error

    def claim(self, config: RunConfig) -> None:
        """Make this folder the folder of `config`, or refuse if it is another's. Damaged results are set aside."""
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink()
        path = self.folder / "config.json"
        if path.is_file():
            try:
                found = RunConfig(**json.loads(path.read_text(encoding="utf-8")))
            except json.JSONDecodeError:
                self.set_aside("config.json", "not readable")
            else:
                if found.identity() != config.identity():
                    different = {k for k, v in found.model_dump().items() if v != getattr(config, k)}
                    raise ClamkitError(
                        f"{paths.shown(self.folder)} holds a run of another config (different: "
                        f"{', '.join(sorted(different))}): move that folder away, or choose another runs folder."
                    )
        if self.done:
            for name in self.damaged():
                self.set_aside(name, "not what was written")
                (self.folder / "DONE").unlink(missing_ok=True)
        if not path.is_file():
            write_json(path, config.model_dump())

    def set_aside(self, name: str, why: str) -> None:
        path = self.folder / name
        if path.is_file():
            kept = path.with_name(f"{name}.damaged-{len(list(self.folder.glob(f'{name}.damaged-*'))) + 1}")
            path.rename(kept)
            log.warning(
                "%s is damaged (%s): set aside as %s; going on from what is sound.", paths.shown(path), why, kept.name
            )

    def save_checkpoint(self, state: dict) -> None:
        """Write checkpoint.pt; the one before stays as checkpoint.previous.pt until the run is done."""
        path = self.folder / "checkpoint.pt"
        with atomic(path) as temporary:
            torch.save(state, temporary)
            if path.is_file():
                os.replace(path, self.folder / "checkpoint.previous.pt")

    def load_checkpoint(self) -> dict | None:
        """The newest sound checkpoint, tensors and plain values only."""
        for name in ("checkpoint.pt", "checkpoint.previous.pt"):
            path = self.folder / name
            if not path.is_file():
                continue
            try:
                with zipfile.ZipFile(path) as archive:
                    if broken := archive.testzip():
                        raise zipfile.BadZipFile(f"checksum of {broken}")
                return torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:  # zip, pickle and torch all have their own
                self.set_aside(name, str(error).split("\n")[0][:100])
        return None

    def save_history(self, columns: dict[str, torch.Tensor]) -> None:
        epochs, classes = columns["weight"].shape
        frame = pd.DataFrame(
            {
                "epoch": np.repeat(np.arange(1, epochs + 1, dtype=np.int32), classes),
                "class": np.tile(np.arange(classes, dtype=np.int32), epochs),
            }
            | {name: columns[name].flatten().numpy() for name in COLUMNS}
        )
        with atomic(self.folder / "history.parquet") as temporary:
            frame.to_parquet(temporary, index=False)

    def finish(self, summary: dict[str, Any], predictions: pd.DataFrame) -> None:
        with atomic(self.folder / "predictions.parquet") as temporary:
            predictions.to_parquet(temporary, index=False)
        write_json(self.folder / "summary.json", summary)
        (self.folder / "checkpoint.previous.pt").unlink(missing_ok=True)
        write_json(self.folder / "DONE", {name: _sha256(self.folder / name) for name in RESULTS})
        for name in ("history", "summary", "predictions"):
            self.__dict__.pop(name, None)


class RunStore:
    """All runs below a folder."""

    def __init__(self, root: str | os.PathLike | None = None):
        self.root = Path(root).expanduser().resolve() if root else paths.runs()

    def run(self, config: RunConfig) -> Run:
        return Run(self.root / config.folder())

    def runs(self, *, finished: bool = True) -> list[Run]:
        """Runs found on disk, in the order of their folders."""
        marker = "DONE" if finished else "config.json"
        return [Run(path.parent) for path in sorted(self.root.glob(f"*/*/*/*/{marker}"))]

    def frame(self) -> pd.DataFrame:
        """One row for each finished run: the config's fields, `strength` of its augmentation, the final metrics."""
        return as_frame(self.runs())


def as_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run: the config's fields, `strength` of its augmentation, the final metrics, the folder."""
    rows, columns = [], [*RunConfig.model_fields, *METRICS, "strength", "folder"]
    for run in runs:
        metrics = {k: v for k, v in run.summary.items() if not isinstance(v, dict | list)}
        extra = {"strength": run.config.strength, "folder": str(run.folder)}
        rows.append(run.config.model_dump() | metrics | extra)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns).astype(dict.fromkeys(METRICS, float))


def all_epochs(runs: Iterable[Run]) -> pd.DataFrame:
    """The histories of several runs in one frame: method, strength and seed before the columns of the history."""
    parts = []
    for run in runs:
        part = run.history.copy()
        for place, name in enumerate(("method", "strength", "seed")):
            part.insert(place, name, getattr(run.config, name))
        parts.append(part)
    columns = ["method", "strength", "seed", "epoch", "class", *COLUMNS]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def final_classes(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run and class: method, strength, seed, class, class_name, weight and final accuracies."""
    parts = []
    for run in runs:
        last = run.history[run.history["epoch"] == run.history["epoch"].max()]
        named = last.assign(class_name=[run.class_names[i] for i in last["class"]])
        named["test_accuracy"] = run.test_accuracy.to_numpy()
        parts.append(named.assign(method=run.config.method, strength=run.config.strength, seed=run.config.seed))
    columns = ["method", "strength", "seed", "epoch", "class", "class_name", *COLUMNS]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def even(runs: Iterable[Run]) -> list[Run]:
    """The runs of those settings (augmentation, strength, seed) that every method has: all on the same ground."""
    runs = list(runs)
    methods = {run.config.method for run in runs}
    had: dict[tuple, set[str]] = {}
    for run in runs:
        had.setdefault((run.config.augmentation, run.config.strength, run.config.seed), set()).add(run.config.method)
    return [r for r in runs if had[r.config.augmentation, r.config.strength, r.config.seed] == methods]
