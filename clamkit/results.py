"""Results that travel with the project, so that the runs themselves need not.

`data/results/<grid>.csv` has a row for each run (config, final metrics, wall time, versions), and
`data/results/<grid>.parquet` the weight and accuracies of each of their epochs and classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from clamkit import data, paths
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.metrics import METRICS
from clamkit.runs import COLUMNS, Run, RunStore, as_frame, atomic


def folder() -> Path:
    return paths.embedded() / "results"


def key(run: Run) -> str:
    """dataset/method/augmentation-strength/seed-hash: the name of a run wherever its folder lies."""
    return run.config.folder().as_posix()


def save(grid: str, runs: Iterable[Run]) -> pd.DataFrame:
    """Add finished runs to the committed results of a grid (a run that is there already is replaced); all its rows."""
    runs = list(runs)
    if runs:
        rows = as_frame(runs).drop(columns=["folder", "data_dir"])
        versions = pd.DataFrame([run.summary["versions"] for run in runs]).add_suffix("_version")
        rows = pd.concat([rows, versions], axis=1)
        rows.insert(0, "run", [key(run) for run in runs])
        histories = pd.concat([run.history.assign(run=key(run)) for run in runs], ignore_index=True)
        old_rows, old_histories = rows_of(grid), histories_of(grid)
        rows = _replace(old_rows, rows).sort_values("run")
        histories = _replace(old_histories, _small(histories)).sort_values(["run", "epoch", "class"])
        folder().mkdir(parents=True, exist_ok=True)
        with atomic(folder() / f"{grid}.csv") as temporary:
            rows.to_csv(temporary, index=False)
        with atomic(folder() / f"{grid}.parquet") as temporary:
            histories.to_parquet(temporary, index=False, compression="zstd")
    return rows_of(grid)


class Recorded(Run):
    """A run of which only the committed results are at hand; reads like any other."""

    def __init__(self, row: dict, history: pd.DataFrame):
        super().__init__(row["run"])
        given = {name: value for name, value in row.items() if name in RunConfig.model_fields and not pd.isna(value)}
        self.config = RunConfig(**given)
        known = data.KNOWN.get(self.config.dataset)
        count = int(history["class"].max()) + 1
        names = (known and known.class_names) or [f"class {i}" for i in range(count)]
        self.summary = {name: row[name] for name in (*METRICS, "seconds")} | {"class_names": list(names)}
        self.history = history.drop(columns="run").reset_index(drop=True)

    @property
    def done(self) -> bool:
        return True

    @property
    def test_accuracy(self) -> pd.Series:
        """Of each class after the last epoch, by name."""
        return self.wide("test_accuracy").iloc[-1].rename(self.config.method)


def runs_of(grid: str, configs: Iterable[RunConfig], store: RunStore | None = None) -> list[Run]:
    """The runs of a grid that are at hand, in its order: finished here, or else committed, for whichever grid."""
    store, configs = store or RunStore(), list(configs)
    found = {key(run): run for run in map(store.run, configs) if run.done}
    wanted = [config.folder().as_posix() for config in configs]
    for name in [grid, *sorted(_grids() - {grid})]:
        rows = rows_of(name)
        rows = rows[rows["run"].isin(set(wanted) - set(found))]
        if len(rows):
            histories = dict(list(histories_of(name).groupby("run", sort=False)))
            recorded = (row for row in rows.to_dict("records") if row["run"] in histories)
            found |= {row["run"]: Recorded(row, histories[row["run"]]) for row in recorded}
    return [found[name] for name in wanted if name in found]


def _replace(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if old.empty:
        return new
    return pd.concat([old[~old["run"].isin(new["run"].unique())], new], ignore_index=True)


def _small(histories: pd.DataFrame) -> pd.DataFrame:
    """Half the bytes: what is plotted needs no more than single precision."""
    types = {"epoch": "int16", "class": "int16"} | dict.fromkeys(COLUMNS, "float32")
    return histories[["run", *types]].astype(types)


def rows_of(grid: str) -> pd.DataFrame:
    """The committed rows of a grid; empty where there are none."""
    path = folder() / f"{grid}.csv"
    return _read(path, pd.read_csv) if path.is_file() else pd.DataFrame(columns=["run"])


def histories_of(grid: str) -> pd.DataFrame:
    path = folder() / f"{grid}.parquet"
    return _read(path, pd.read_parquet) if path.is_file() else pd.DataFrame(columns=["run"])


def committed() -> dict[str, float]:
    """All runs whose results are committed, of any grid: name and seconds taken."""
    rows = [rows_of(grid) for grid in sorted(_grids())]
    return {name: seconds for part in rows for name, seconds in zip(part["run"], part["seconds"], strict=True)}


def _grids() -> set[str]:
    return {path.stem for path in folder().glob("*.parquet")}


def _read(path: Path, reader) -> pd.DataFrame:
    try:
        return reader(path)
    except Exception as error:
        raise ClamkitError(f"{paths.shown(path)} is damaged ({error}): restore it from the repository.") from error
