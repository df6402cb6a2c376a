"""`clamkit status` for a terminal: runs one by one, or counted by method and strength."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError

if TYPE_CHECKING:  # listing runs needs no pandas
    import pandas as pd

MARKS = {"running": "+", "failed": "!", "stopped": "~", "damaged": "?"}


def list_runs(found: list[RunFolder], root: Path) -> list[Table]:
    """One row for each run, a table for each dataset: narrow enough for 80 columns."""
    tables: dict[str, Table] = {}
    for run in found:
        dataset, method, strength, name = run.folder.relative_to(root).parts[-4:]
        if dataset not in tables:
            tables[dataset] = Table(title=dataset, title_justify="left")
            for column in ("method", "strength", "run", "state", "average", "std", "worst", "seconds"):
                aside = "left" if column in ("method", "strength", "run", "state") else "right"
                tables[dataset].add_column(column, justify=aside, no_wrap=column == "run")  # type: ignore[arg-type]
        numbers, state = ["", "", "", ""], run.state
        if state == "done":
            try:
                s = run.summary
                numbers = [f"{s['average']:.1%}", f"{s['std']:.1%}", f"{s['worst']:.1%}", f"{s['seconds']:.0f}"]
            except ClamkitError:
                state = "damaged"
        tables[dataset].add_row(method, strength, name[: name.find("-") + 5], state, *numbers)  # enough of the hash
    return list(tables.values())


def states_of(found: list[RunFolder], root: Path) -> pd.DataFrame:
    """What the names of the folders say of many runs, and their states."""
    import pandas as pd

    parts = [(*run.folder.relative_to(root).parts[:3], run.state) for run in found]
    rows = [(dataset, method, *kind.split("-", 1), state) for dataset, method, kind, state in parts]
    frame = pd.DataFrame(rows, columns=["dataset", "method", "augmentation", "strength", "state"])
    return frame.astype({"strength": float})


def count_runs(frame: pd.DataFrame, title: str) -> list[Table]:
    """Methods × strengths, a table for each augmentation: how many runs are done, and what state the others are in."""
    frame = frame.assign(row=frame["method"])
    if frame["dataset"].nunique() > 1:
        frame["row"] = frame["dataset"] + " " + frame["method"]
    tables = []
    for kind, part in frame.groupby("augmentation", sort=False):
        strengths = sorted(part["strength"].unique())
        table = Table(title=f"{title}: runs done / all, {', '.join(f'{m} {state}' for state, m in MARKS.items())}")
        table.add_column(str(kind), no_wrap=True)
        for strength in strengths:
            table.add_column(f"{strength:g}", justify="right")
        for name in part["row"].unique():
            cells = []
            for strength in strengths:
                states = part.loc[(part["row"] == name) & (part["strength"] == strength), "state"]
                others = "".join(f" {mark}{n}" for state, mark in MARKS.items() if (n := (states == state).sum()))
                cells.append(f"{states.isin(['done', 'committed']).sum()}/{len(states)}{others}" if len(states) else "")
            table.add_row(name, *cells)
        tables.append(table)
    return tables
