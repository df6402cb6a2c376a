"""The numbers the paper prints, as it prints them: percent, except COV. No torch.

Each cell is the mean over 8 augmentation settings of one seed. What does not fit together in them is computed by
notebooks/helpers/paper_audit.py; the paper's settings are in `methods.specs` and `engine.recipes`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from clamkit import paths
from clamkit.errors import ClamkitError, unknown

# The paper runs "8 crop lower bounds" and "8 color jitter parameters", one of them without augmentation, and lists
# neither: these are our choice.
CROP_LOWER_BOUNDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
JITTER_STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
ALPHA_ASSUMED = 0.1  # for max α_t, appendix "Different Values of τ"


def results() -> pd.DataFrame:
    """Every number of the paper's tables: table, dataset, method, metric, value, spread (nan where none is printed)."""
    return _read(paths.embedded() / "paper_results.csv").copy()


@cache
def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise ClamkitError(f"the paper's numbers are not at {paths.shown(path)}: restore that file of the project.")
    return pd.read_csv(path)


def by_method(table: str, metric: str, column: str = "value") -> pd.DataFrame:
    """One metric of one table as datasets × methods, in printed order; column: "value" or "spread"."""
    rows = _rows(table)
    rows = rows[rows["metric"] == metric]
    grid = rows.pivot(index="dataset", columns="method", values=column)
    return grid.loc[rows["dataset"].unique(), rows["method"].unique()]


def by_metric(table: str, dataset: str) -> pd.DataFrame:
    """One dataset of one table as methods × metrics."""
    rows = _rows(table)
    return rows[rows["dataset"] == dataset].pivot(index="method", columns="metric", values="value")


def _rows(table: str) -> pd.DataFrame:
    rows = results()
    if table not in set(rows["table"]):
        raise unknown("table of the paper", table, rows["table"].unique())
    return rows[rows["table"] == table]
