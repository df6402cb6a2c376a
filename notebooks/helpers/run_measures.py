"""Numbers that one notebook alone takes from runs, datasets and the paper.

20  paper_table (what the paper prints, beside our own)
22  settling_epoch (when the order of the class weights is found)
28  shot_groups (iNaturalist: classes with many and with few images)
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from clamkit.errors import ClamkitError
from clamkit.lab import paper, tables
from clamkit.methods.specs import METHODS
from clamkit.metrics.history import TIE_TOLERANCE, epochs_by_classes, levels

SHOTS = (20, 100)  # a class has few training images below the first, many above the second


def settling_epoch(history: pd.DataFrame, tolerance: float = TIE_TOLERANCE) -> int:
    """First epoch from which the order of the class weights no longer changes, to the end of the run.

    The order of an epoch is its ranking with ties: sorted by weight, neighbours that are at most `tolerance` apart are
    tied. Epoch e has settled if every epoch from e on has the ranking of the last; becoming tied, or ceasing to be, is
    a change. The last epoch means that the order was still changing; the first, that it never did (uniform weights).
    With many classes some pair of near-equal ones swaps until the end: keep the rows of a few classes, as the paper's
    figures do, or raise `tolerance` (weights have mean 1).
    """
    if not tolerance >= 0:
        raise ClamkitError(f"tolerance={tolerance} must be a difference of weights, 0 or more.")
    wide = epochs_by_classes(history, "weight")
    orders = np.array([levels(weights, tolerance) for weights in wide.to_numpy(dtype=np.float64)])
    differs = np.flatnonzero((orders != orders[-1]).any(axis=1))
    return int(wide.index[differs[-1] + 1 if differs.size else 0])


def shot_groups(sizes: ArrayLike, bounds: tuple[int, int] = SHOTS) -> pd.Categorical:
    """Which classes have many, a medium number of, or few training images; the usual split of long-tailed data.

    sizes: training images of each class. Default bounds: many > 100, medium 20 to 100, few < 20.
    """
    sizes, (few, many) = np.asarray(sizes), bounds
    if sizes.ndim != 1 or not sizes.size or not (sizes >= 0).all():
        raise ClamkitError("sizes must be the number of training images of each class, 0 or more, in a vector.")
    if not 0 < few <= many:
        raise ClamkitError(f"bounds={bounds}: the bound of few must be above 0 and not above that of many.")
    names = np.select([sizes > many, sizes >= few], ["many", "medium"], "few")
    return pd.Categorical(names, ["many", "medium", "few"], ordered=True)


def paper_table(dataset: str) -> pd.DataFrame:
    """What the paper prints for a dataset with crops, in the same shape; its range is our decile range."""
    names = {"range": "decile_range"}
    rows = paper.results()
    rows = rows[(rows["dataset"] == dataset) & rows["table"].isin(["fairness_crop", "average_crop", "worst_crop"])]
    table = rows.assign(metric=rows["metric"].replace(names)).pivot(index="method", columns="metric", values="value")
    order = [method for method in METHODS if method in table.index]
    found = {heading: table[metric] for metric, (heading, _) in tables.METRICS.items() if metric in table}
    return pd.DataFrame(found).loc[order].rename(index={name: METHODS[name].label for name in order})
