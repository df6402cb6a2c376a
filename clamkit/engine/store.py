"""Runs on disk: one folder each, every file written under a temporary name and renamed, `DONE` last.

`DONE` holds the SHA-256 of the other files; whatever is read of a finished run is checked against it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from clamkit import paths
from clamkit.engine import index
from clamkit.engine.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.files import atomic, flush, sha256, write_json

if TYPE_CHECKING:  # imported where they are used: looking which runs there are needs neither
    import numpy as np
    import pandas as pd
    import torch

log = logging.getLogger("clamkit")

COLUMNS = ("weight", "train_accuracy", "train_loss", "test_accuracy")  # of the history, for each epoch and class
TYPES = dict.fromkeys(("epoch", "class"), "int32") | dict.fromkeys(COLUMNS, "float64")
LOCK_TIMEOUT_S = 1.0  # longer than another process needs to look whether the lock is held
RESULTS = ("config.json", "history.parquet", "predictions.parquet", "summary.json", "checkpoint.pt")
LOGITS = "logits.npz"  # beside the RESULTS of runs that keep them


class Logits(NamedTuple):
    """What the final network says of each test and held-out image: float16 [N, classes], labels int64 [N]."""

    test: np.ndarray
    test_labels: np.ndarray
    holdout: np.ndarray
    holdout_labels: np.ndarray


class Run(ABC):
    """One run, wherever it is kept: a folder on disk (`RunFolder`), or a row of the committed results.

    >>> run = train(RunConfig(method="clam", epochs=1, per_class=20), runs="my_runs", progress=False)
    >>> isinstance(run, Run), run.wide("weight").shape  # epochs × classes
    (True, (1, 10))
    """

    @property
    @abstractmethod
    def config(self) -> RunConfig: ...

    @property
    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Final metrics, class names, wall time; a folder also has the data's fingerprint and the versions."""

    @property
    @abstractmethod
    def history(self) -> pd.DataFrame:
        """One row for each epoch and class: epoch, class, weight, train_accuracy, train_loss, test_accuracy."""

    @property
    def predictions(self) -> pd.DataFrame:
        """label and prediction of each test image, in the order of the test set."""
        raise ClamkitError(
            "committed results carry no predictions: train the run here (`make demo`, `clamkit train`) to see them."
        )

    @property
    def logits(self) -> Logits:
        """Logits and labels of the test and held-out images, in their order."""
        raise ClamkitError(f"committed results carry no logits: train {self.name} here to have them.")

    @property
    @abstractmethod
    def test_accuracy(self) -> pd.Series:
        """Test accuracy of each class under the final network, by name."""

    @property
    def name(self) -> str:
        """dataset/method/augmentation-strength/seed-hash: what a run is called wherever it is kept."""
        return self.config.folder().as_posix()

    @property
    def class_names(self) -> list[str]:
        return self.summary["class_names"]

    def wide(self, column: str) -> pd.DataFrame:
        """One column of the history as epochs × class names."""
        frame = self.history.pivot(index="epoch", columns="class", values=column)
        return frame.set_axis(self.class_names, axis=1)


class RunFolder(Run):
    """A run on disk. Reading is lazy; writing happens only while `locked()` holds."""

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({paths.shown(self.folder)}, {'done' if self.done else 'not finished'})"

    @property
    def done(self) -> bool:
        return os.path.isfile(f"{self.folder}/DONE")  # asked of every run; a Path of its own would take longer

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
        except OSError:  # a folder that cannot be written: nobody trains there
            pass
        if (self.folder / "failed.txt").is_file():
            return "failed"
        return "stopped" if (self.folder / "config.json").is_file() else "missing"

    @cached_property
    def config(self) -> RunConfig:
        try:
            return self._read("config.json", self._named)
        except ClamkitError as error:
            raise ClamkitError(f"{error} If another version of the kit wrote this folder, move it away.") from error

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self._read("summary.json", json.loads)

    @cached_property
    def history(self) -> pd.DataFrame:
        return self._read("history.parquet", read_history)

    @cached_property
    def predictions(self) -> pd.DataFrame:
        import pandas as pd

        return self._read("predictions.parquet", lambda content: pd.read_parquet(io.BytesIO(content)))

    @cached_property
    def logits(self) -> Logits:
        import numpy as np

        if self.done and LOGITS not in (self._sums() or [LOGITS]):
            raise ClamkitError(
                f"{paths.shown(self.folder)} has no logits: made with keep_logits=False, or before the kit kept them. "
                "Delete its DONE and train the same config again: the checkpoint gives them without training."
            )
        return self._read(LOGITS, lambda content: Logits(**np.load(io.BytesIO(content))))

    @property
    def test_accuracy(self) -> pd.Series:
        import pandas as pd

        from clamkit.metrics import class_accuracy

        accuracy = class_accuracy(self.predictions["label"], self.predictions["prediction"], len(self.class_names))
        return pd.Series(accuracy, index=self.class_names, name=self.config.method)

    def _read(self, name: str, reader: Callable[[bytes], Any]) -> Any:
        path = self.folder / name
        try:
            content = path.read_bytes()
            if self.done and self._sums().get(name) != sha256(content):
                raise ValueError("not what was written")
            if not self.done and name in ("summary.json", "predictions.parquet", LOGITS):
                raise FileNotFoundError  # cut off between these and DONE: nothing vouches for them
            return reader(content)
        except FileNotFoundError:
            raise ClamkitError(f"{paths.shown(path)} is not there: the run is not finished. Start it again.") from None
        except Exception as error:
            raise ClamkitError(
                f"{paths.shown(path)} is damaged ({error}). Train the same config again: the checkpoint rebuilds it."
            ) from error

    def _named(self, content: bytes) -> RunConfig:
        """A config as read; while there is no DONE, the hash in the folder's name vouches for what has an effect."""
        config = RunConfig(**json.loads(content))
        if not self.done and config.folder().name != self.folder.name:
            raise ValueError("not the config that the folder is named after")
        return config

    def _sums(self) -> dict[str, str]:
        """What `DONE` says of the other files; empty if it is damaged itself."""
        try:
            sums = json.loads((self.folder / "DONE").read_bytes())
        except ValueError:
            return {}
        return sums if isinstance(sums, dict) and set(sums) - {LOGITS} == set(RESULTS) else {}

    def damaged(self, *, checkpoint: bool = True) -> list[str]:
        """Files that no longer are what `DONE` says they were; the checkpoint, which may be large, on demand."""
        sums = self._sums()
        if not sums:
            return ["DONE"]
        files = {name: self.folder / name for name in sums if checkpoint or name != "checkpoint.pt"}
        return [n for n, file in files.items() if not file.is_file() or sha256(file.read_bytes()) != sums[n]]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process trains a run; the lock ends with its process, however that ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for folder in list(self.folder.parents)[:5]:  # up to the one that the runs folder lies in
                flush(folder)
            with FileLock(self.folder / ".lock", timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout:
            raise ClamkitError(
                f"{paths.shown(self.folder)} is locked by another process, which trains it: wait for it, or stop it."
            ) from None
        except OSError as error:
            place = Path(str(error.filename or self.folder))
            if not (place.is_relative_to(self.folder) or self.folder.is_relative_to(place)):
                raise  # a file that is trained on, perhaps
            raise ClamkitError(f"cannot write to {paths.shown(self.folder)}: {error}.") from error

    def claim(self, config: RunConfig) -> None:
        """Make this folder the folder of `config`, or refuse if it is another's. Damaged results are set aside."""
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink()
        if self.done:
            for name in self.damaged():
                self.set_aside(name, "not what was written")
                (self.folder / "DONE").unlink(missing_ok=True)
            flush(self.folder)
        path, found = self.folder / "config.json", None
        if path.is_file():
            try:
                found = RunConfig(**json.loads(path.read_bytes()))
            except (ValueError, TypeError) as error:
                if self.done:  # sound, but not of this version
                    raise ClamkitError(f"{paths.shown(path)}: {error} Move that folder away.") from error
                self.set_aside("config.json", str(error))
        if found and found.identity() != config.identity():
            different = {k for k, v in found.model_dump().items() if v != getattr(config, k)}
            raise ClamkitError(
                f"{paths.shown(self.folder)} holds a run of another config (different: "
                f"{', '.join(sorted(different))}): move that folder away, or choose another runs folder."
            )
        if found != config and not self.done:
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
        import torch

        path = self.folder / "checkpoint.pt"
        with atomic(path) as temporary:
            try:
                torch.save(state, temporary)
            except RuntimeError as error:  # what torch makes of a full disk
                raise OSError(f"{path.name} could not be written, is the disk full? ({error})") from error
            if path.is_file():
                os.replace(path, self.folder / "checkpoint.previous.pt")
        flush(self.folder)

    def read_or_set_aside(self, name: str, reader: Callable[[Path], Any]) -> Any:
        """What is in a file of an unfinished run; None if it is not there, or damaged and now set aside."""
        path = self.folder / name
        try:
            return reader(path) if path.is_file() else None
        except Exception as error:  # zip, pickle, parquet and torch all have their own
            self.set_aside(name, str(error).split("\n")[0][:100])

    def load_checkpoint(self) -> dict | None:
        """The newest sound checkpoint, tensors and plain values only."""
        names = ("checkpoint.pt", "checkpoint.previous.pt")
        return next(filter(None, (self.read_or_set_aside(name, self.read_checkpoint) for name in names)), None)

    @staticmethod
    def read_checkpoint(path: Path) -> dict:
        """Raises on any damage: every record of the archive has its checksum."""
        import torch

        with zipfile.ZipFile(path) as archive:
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"checksum of {broken}")
        return torch.load(path, map_location="cpu", weights_only=True)

    def save_history(self, columns: dict[str, torch.Tensor]) -> None:
        import numpy as np
        import pandas as pd

        epoch, label = np.indices(columns["weight"].shape, dtype=np.int32)
        numbers = {"epoch": epoch.ravel() + 1, "class": label.ravel()}
        frame = pd.DataFrame(numbers | {name: columns[name].flatten().numpy() for name in COLUMNS})
        with atomic(self.folder / "history.parquet") as temporary:
            frame.to_parquet(temporary, index=False, write_page_checksum=True)

    def finish(self, summary: dict[str, Any], predictions: pd.DataFrame, logits: Logits | None = None) -> None:
        import numpy as np

        (self.folder / LOGITS).unlink(missing_ok=True)  # of a process that died between these and DONE
        if logits:
            np.savez(packed := io.BytesIO(), **logits._asdict())
            with atomic(self.folder / LOGITS) as temporary:
                temporary.write_bytes(packed.getvalue())
        with atomic(self.folder / "predictions.parquet") as temporary:
            predictions.to_parquet(temporary, index=False)
        write_json(self.folder / "summary.json", summary)
        (self.folder / "checkpoint.previous.pt").unlink(missing_ok=True)
        files = [self.folder / name for name in (*RESULTS, *([LOGITS] if logits else []))]
        flush(self.folder)  # DONE is never there before what it vouches for
        write_json(self.folder / "DONE", {file.name: sha256(file.read_bytes()) for file in files})
        flush(self.folder)
        for name in ("history", "summary", "predictions", "logits"):
            self.__dict__.pop(name, None)


class RunStore:
    """All runs below a folder, by default `paths.runs()`.

    >>> len(RunStore("no_runs_yet").frame())
    0
    """

    def __init__(self, root: str | os.PathLike | None = None):
        self.root = Path(root).expanduser().resolve() if root else paths.runs()

    def run(self, config: RunConfig) -> RunFolder:
        return RunFolder(self.root / config.folder())

    def runs(self, *, finished: bool = True) -> list[RunFolder]:
        """Runs found on disk, in the order of their folders."""
        return list(map(RunFolder, index.folders(self.root, "DONE" if finished else "config.json")))

    def frame(self, left_out: list[str] | None = None) -> pd.DataFrame:
        """One row for each finished run: the config's fields, `strength` of its augmentation, the final metrics.

        Rows once read and checked are kept in `.index.json`; one whose files changed is read anew. A damaged run
        raises, or is left out and what is wrong with it put into `left_out`.
        """
        import pandas as pd

        usual = _fields(RunConfig())
        return pd.DataFrame(index.rows(self.root, usual, lambda folder: _row(RunFolder(folder)), left_out))


def read_history(content: bytes) -> pd.DataFrame:
    """A history as `save_history` wrote it; a flipped bit in its pages or its header raises."""
    import pandas as pd

    frame = pd.read_parquet(io.BytesIO(content), page_checksum_verification=True)
    if frame.dtypes.astype(str).to_dict() != TYPES:
        raise ValueError(f"its columns are {', '.join(map(str, frame))}")
    return frame


def _fields(config: RunConfig) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, tuple) else v for k, v in config.model_dump().items()}


def _row(run: Run) -> dict[str, Any]:
    metrics = {k: v for k, v in run.summary.items() if not isinstance(v, dict | list)}
    return _fields(run.config) | metrics | {"strength": run.config.strength}


def as_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run: the config's fields, `strength` of its augmentation, the final metrics."""
    import pandas as pd

    from clamkit.metrics import METRICS

    rows = [_row(run) for run in runs]
    columns = [*RunConfig.model_fields, *METRICS, "strength"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns).astype(dict.fromkeys(METRICS, float))
