"""Results that travel with the project, so that the runs themselves need not.

`data/results/<grid>.csv` has a row for each run (config, final metrics, wall time, versions), and
`data/results/<grid>.parquet` the weight and accuracies of each of their epochs and classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from clamkit import paths
from clamkit.errors import ClamkitError
from clamkit.runs import COLUMNS, Run, as_frame, atomic


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


def committed() -> set[str]:
    """Names of all runs whose results are committed, of any grid."""
    tables = [_read(path, pd.read_csv) for path in sorted(folder().glob("*.csv"))]
    return {name for table in tables if "run" in table for name in table["run"]}


def _read(path: Path, reader) -> pd.DataFrame:
    try:
        return reader(path)
    except Exception as error:
        raise ClamkitError(f"{paths.shown(path)} is damaged ({error}): restore it from the repository.") from error
