"""Results that travel with the project, so that the runs themselves need not.

`data/results/<grid>.csv` has a row for each run (config, final metrics, wall time, versions), `<grid>.parquet` the
weight and accuracies of each of their epochs and classes, and `class_names.json` what the classes are called. Of runs
with held-out images the class accuracies on these and those with biases are there too, as the logits do not travel.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from clamkit import paths
from clamkit.engine.config import WITHOUT_EFFECT, RunConfig
from clamkit.engine.store import COLUMNS, Run, RunFolder, RunStore, as_frame
from clamkit.errors import ClamkitError
from clamkit.files import atomic, flush, write_json
from clamkit.lab.controls import held_out_accuracy, with_biases
from clamkit.lab.grids import Grid
from clamkit.metrics import METRICS

FINAL = "final_accuracy"  # of a class under the final network; stands in the rows of the last epoch
FEW, ROW_GROUP = 1000, 100_000  # runs that are picked out of a file; rows that are read for one of them
# the same with class biases fitted on the held-out images for one thing or the other, where the run has its logits
BIASED = {"average-std": "biased_accuracy", "worst-tail": "tail_biased_accuracy"}
HELD_OUT = "held_out_accuracy"  # of a class on the held-out images, without biases
FINALS = (FINAL, *BIASED.values(), HELD_OUT)


def folder() -> Path:
    return paths.embedded() / "results"


def save(grid: str, runs: Iterable[Run]) -> pd.DataFrame:
    """Add finished runs to the committed results of a grid (a run that is there already is replaced); all its rows."""
    runs = list(runs)
    if runs:
        rows = as_frame(runs).drop(columns=list(WITHOUT_EFFECT))
        versions = pd.DataFrame([run.summary["versions"] for run in runs]).add_suffix("_version")
        rows = pd.concat([rows, versions], axis=1)
        rows.insert(0, "run", [run.name for run in runs])
        histories = pd.concat([_history(run) for run in runs], ignore_index=True)
        folder().mkdir(parents=True, exist_ok=True)
        flush(folder().parent)
        with FileLock(folder() / ".lock"):
            _commit(grid, rows, histories, {run.config.dataset: run.class_names for run in runs})
    return rows_of(grid)


def _commit(grid: str, rows: pd.DataFrame, histories: pd.DataFrame, names: dict[str, list[str]]) -> None:
    """Write so that, wherever it is cut off, the rows in the CSV file are those whose own histories are there."""
    old = rows_of(grid)
    kept = old[~old["run"].isin(rows["run"])]
    histories = _replace(histories_of(grid).astype({"run": "str"}), histories).sort_values(["run", "epoch", "class"])
    all_rows = _replace(old, rows).sort_values("run")
    write_json(folder() / "class_names.json", class_names() | names)
    if len(kept) < len(old):
        _write(f"{grid}.csv", lambda path: kept.to_csv(path, index=False))
    options = {"index": False, "compression": "zstd", "row_group_size": ROW_GROUP}
    _write(f"{grid}.parquet", partial(histories.to_parquet, **options))
    _write(f"{grid}.csv", lambda path: all_rows.to_csv(path, index=False))


def _write(name: str, writer: Callable[[Path], None]) -> None:
    for leftover in folder().glob(f".{name}.*.tmp"):  # of a process that died
        leftover.unlink()
    with atomic(folder() / name) as temporary:
        writer(temporary)
    flush(folder())


def _history(run: Run) -> pd.DataFrame:
    """The history in single precision (what is plotted needs no more), and the final accuracies with its last epoch."""
    history = run.history.assign(run=run.name)
    last = history["epoch"] == history["epoch"].max()
    history.loc[last, FINAL] = run.test_accuracy.to_numpy()
    history[[*BIASED.values(), HELD_OUT]] = np.nan
    if run.config.holdout and run.config.keep_logits:
        for objective, column in BIASED.items():
            history.loc[last, column] = with_biases(run, objective).test_accuracy.to_numpy()
        history.loc[last, HELD_OUT] = held_out_accuracy(run)
    types = {"epoch": "int16", "class": "int16"} | dict.fromkeys((*COLUMNS, *FINALS), "float32")
    return history[["run", *types]].astype(types)


class CommittedRun(Run):
    """A run of which only the committed results are at hand; reads like any other, but for its predictions."""

    def __init__(self, row: Callable[[], dict[str, Any]], history: Callable[[], pd.DataFrame]):
        self._row, self._read_history = row, history

    def __repr__(self) -> str:
        return f"CommittedRun({self.name})"

    @property
    def name(self) -> str:
        return self._row()["run"]

    @cached_property
    def config(self) -> RunConfig:
        return config_of(self._row())

    @cached_property
    def _history(self) -> pd.DataFrame:
        return self._read_history()

    @cached_property
    def summary(self) -> dict[str, Any]:
        count = int(self._history["class"].max()) + 1
        names = class_names().get(self.config.dataset) or [f"class {i}" for i in range(count)]
        row = self._row()
        return {name: row[name] for name in (*METRICS, "seconds")} | {"class_names": names}

    @cached_property
    def history(self) -> pd.DataFrame:
        return self._history.drop(columns=["run", *FINALS], errors="ignore").reset_index(drop=True)

    @property
    def test_accuracy(self) -> pd.Series:
        """Of each class under the final network, by name.

        Results without that column are from before it; none of their methods returned to an earlier network, so the
        last epoch's is the same.
        """
        final = self._of_last_epoch(FINAL)
        final = self._of_last_epoch("test_accuracy") if final is None else final
        return pd.Series(final, index=self.class_names, name=self.config.method)

    @property
    def biased_accuracy(self) -> dict[str, np.ndarray]:
        """Of each class with biases, by what these are fitted for; empty where the run had no held-out images."""
        columns = BIASED.items()
        return {kind: found for kind, column in columns if (found := self._of_last_epoch(column)) is not None}

    @property
    def held_out_accuracy(self) -> np.ndarray | None:
        """Of each class on the held-out images; None where the run had none."""
        return self._of_last_epoch(HELD_OUT)

    def _of_last_epoch(self, column: str) -> np.ndarray | None:
        last = self._history[self._history["epoch"] == self._history["epoch"].max()].sort_values("class")
        return last[column].to_numpy() if column in last and last[column].notna().any() else None


def config_of(row: dict[str, Any]) -> RunConfig:
    """The config of a row of the committed results, or of `RunStore.frame`."""
    return RunConfig(**{k: v for k, v in row.items() if k in RunConfig.model_fields and not pd.isna(v)})


def committed_runs(grid: str, names: Collection[str] | None = None) -> Iterator[CommittedRun]:
    """The committed runs of a grid, all or those named, in the order of their names."""
    rows = rows_of(grid)
    rows = rows if names is None else rows[rows["run"].isin(names)]
    if rows.empty:
        return
    histories = histories_of(grid, rows["run"] if len(rows) < FEW else None)
    places = histories.groupby("run", sort=False, observed=True).indices
    columns = {column: rows[column].tolist() for column in rows}
    for i, name in enumerate(columns["run"]):
        if name in places:
            # a dict when it is asked for: 100,000 of sixty fields take long to make and much memory
            row = partial(lambda i: {column: values[i] for column, values in columns.items()}, i)
            yield CommittedRun(row, partial(histories.take, places[name]))


def runs_of(grid: str, configs: Iterable[RunConfig], store: RunStore | None = None) -> list[Run]:
    """Runs by their configs, in that order: finished here, or else committed, for this grid first or for any other."""
    store, wanted = store or RunStore(), [config.folder().as_posix() for config in configs]
    here = {name: RunFolder(store.root / name) for name in wanted}
    found: dict[str, Run] = {name: run for name, run in here.items() if run.done}
    for name in sorted(grids(), key=lambda name: name != grid):
        if missing := here.keys() - found.keys():
            found |= {run.name: run for run in committed_runs(name, missing)}
    return [found[name] for name in wanted if name in found]


def find(config: RunConfig, runs: str | os.PathLike | None = None) -> Run | None:
    """A run finished here, or else committed for any grid; None where it is neither."""
    return next(iter(runs_of("", [config], RunStore(runs))), None)


def load_runs(grid: str, runs: str | os.PathLike | None = None) -> list[Run]:
    """What there is of a grid, finished here or committed; says on one line what is missing and how to get it."""
    configs = Grid.load(grid).configs()
    found = runs_of(grid, configs, RunStore(runs))
    missing = len(configs) - len(found)
    hint = f"; `clamkit sweep {grid}` makes the other {missing}" if missing else ""
    print(f"{grid}: {len(found)} of {len(configs)} runs at hand{hint}")
    return found


def _replace(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if old.empty:
        return new
    return pd.concat([old[~old["run"].isin(new["run"].unique())], new], ignore_index=True)


def rows_of(grid: str) -> pd.DataFrame:
    """The committed rows of a grid; empty where there are none."""
    return _read(f"{grid}.csv", pd.read_csv, pd.DataFrame(columns=["run", "seconds"]))


def histories_of(grid: str, runs: Iterable[str] | None = None) -> pd.DataFrame:
    """The committed histories of a grid, of all runs (their names as categories) or of those named."""
    options = {"read_dictionary": ["run"]} if runs is None else {"filters": [("run", "in", list(runs))]}
    return _read(f"{grid}.parquet", partial(pd.read_parquet, **options), pd.DataFrame(columns=["run"]))


def class_names() -> dict[str, list[str]]:
    """The names of the classes of each dataset that has committed runs."""
    return _read("class_names.json", lambda path: json.loads(path.read_text(encoding="utf-8")), {})


def committed_seconds() -> dict[str, float]:
    """All runs whose results are committed, of any grid: name and seconds taken."""
    rows = [rows_of(grid) for grid in grids()]
    return {name: seconds for part in rows for name, seconds in zip(part["run"], part["seconds"], strict=True)}


def grids() -> list[str]:
    """The grids that have committed results."""
    return sorted(path.stem for path in folder().glob("*.parquet"))


def _read(name: str, reader: Callable[[Path], Any], otherwise: Any) -> Any:
    path = folder() / name
    try:
        return reader(path) if path.is_file() else otherwise
    except Exception as error:
        raise ClamkitError(f"{paths.shown(path)} is damaged ({error}): restore it from the repository.") from error
