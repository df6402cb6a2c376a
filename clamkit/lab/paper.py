"""The numbers the paper prints, as it prints them: percent, except COV. No torch.

Each cell is the mean over 8 augmentation settings of one seed. notebooks/helpers/paper_audit.py looks at what does not
fit together in them; the paper's settings are in `methods.specs` and `lab.recipes`.
"""

from __future__ import annotations

import pandas as pd

from clamkit import paths
from clamkit.errors import ClamkitError


def results() -> pd.DataFrame:
    """Every number of the paper's tables: table, dataset, method, metric, value, spread (nan where none is printed)."""
    path = paths.embedded() / "paper_results.csv"
    if not path.is_file():
        raise ClamkitError(f"the paper's numbers are not at {paths.shown(path)}: restore that file of the project.")
    return pd.read_csv(path)
