"""`clamkit status` for a terminal: runs one by one, or counted by method and strength."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError

if TYPE_CHECKING:  # listing runs needs no pandas
    import pandas as pd

MARKS = {"running": "+", "failed": "!", "stopped": "~", "damaged": "?"}


def list_runs(found: list[RunFolder], root: Path) -> list[Table]:
    """One row for each run, a table for each dataset: narrow enough for 80 columns."""
    tables: dict[str, Table] = {}
    columns = ("method", "strength", "run", "state", "average", "std", "worst", "seconds")
    for run in found:
        dataset, method, strength, name = run.folder.relative_to(root).parts[-4:]
        if dataset not in tables:
            tables[dataset] = Table(title=dataset, title_justify="left", box=SIMPLE_HEAD, padding=0)
            for i, column in enumerate(columns):
                tables[dataset].add_column(column, justify="left" if i < 4 else "right", no_wrap=True)
        numbers, state = ["", "", "", ""], run.state
        if state == "done":
            try:
                s = run.summary
                numbers = [f"{s['average']:.1%}", f"{s['std']:.1%}", f"{s['worst']:.1%}", f"{s['seconds']:.0f}"]
            except ClamkitError:
                state = "damaged"
        tables[dataset].add_row(method, strength, name[: name.find("-") + 5], state, *numbers)  # enough of the hash
    return list(tables.values())


def states_of(found: list[RunFolder]) -> pd.DataFrame:
    """What the names of the folders say of many runs, and their states."""
    import pandas as pd

    parts = [(*run.folder.parts[-4:-1], run.state) for run in found]
    rows = [(dataset, method, *kind.split("-", 1), state) for dataset, method, kind, state in parts]
    frame = pd.DataFrame(rows, columns=["dataset", "method", "augmentation", "strength", "state"])
    return frame.astype({"strength": float})


def count_runs(frame: pd.DataFrame, title: str) -> list[Table]:
    """Methods × strengths, a table for each augmentation: how many runs are done, and what state the others are in."""
    several = frame["dataset"].nunique() > 1
    rows = frame["dataset"] + " " + frame["method"] if several else frame["method"]
    marks = ", ".join(f"{mark} {state}" for state, mark in MARKS.items())
    tables = []
    for kind, part in frame.assign(row=rows).groupby("augmentation", sort=False):
        cells = part.groupby(["row", "strength"], sort=False)["state"].agg(_cell).unstack(fill_value="")
        table = Table(title=f"{title}: runs done / all, {marks}")
        table.add_column(str(kind), no_wrap=True)
        for strength in sorted(cells):
            table.add_column(f"{strength:g}", justify="right")
        for name in part["row"].unique():
            table.add_row(name, *cells.loc[name].sort_index())
        tables.append(table)
    return tables


def _cell(states: pd.Series) -> str:
    count = Counter(states)
    others = "".join(f" {mark}{count[state]}" for state, mark in MARKS.items() if count[state])
    return f"{count['done'] + count['committed']}/{count.total()}{others}"
