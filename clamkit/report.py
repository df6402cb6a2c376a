"""Tables people read: methods side by side, in percent, the better one marked."""

from __future__ import annotations

import pandas as pd

from clamkit import paper
from clamkit.methods import METHODS

# metric -> (heading, +1 where higher is better and −1 where lower is)
METRICS = {
    "average": ("average %", +1),
    "std": ("std %", -1),
    "cov": ("COV", -1),
    "range": ("range %", -1),
    "decile_range": ("decile range %", -1),
    "worst": ("worst 10 %", +1),
}
BETTER = "*"


def comparison(frame: pd.DataFrame, baseline: str = "normal") -> pd.DataFrame:
    """Means over seeds by strength of augmentation and method, as text; `*` marks what beats the baseline there.

    frame: as `clamkit.runs.as_frame` gives it, of one kind of augmentation.
    """
    means = frame.groupby(["strength", "method"], sort=False)[list(METRICS)].mean()
    kind = frame["augmentation"].iloc[0]
    rows = []
    for (strength, method), row in means.sort_index(level=0, sort_remaining=False).iterrows():
        texts = {kind: f"{strength:g}", "method": METHODS[method].label}
        for metric, (heading, sign) in METRICS.items():
            text = f"{row[metric]:.3f}" if metric == "cov" else f"{100 * row[metric]:.1f}"
            reference = means[metric].get((strength, baseline))
            better = method != baseline and reference is not None and sign * (row[metric] - reference) > 0
            texts[heading] = text + (BETTER if better else " ")
        rows.append(texts)
    return pd.DataFrame(rows)


def spread_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean ± std over the rows of each method, as text in percent; COV as it is."""
    columns = {}
    for metric, (heading, _) in METRICS.items():
        scale, digits = (1, 3) if metric == "cov" else (100, 1)
        grouped = frame.groupby("method", sort=False)[metric]
        mean, std = scale * grouped.mean(), scale * grouped.std()
        columns[heading] = [f"{m:.{digits}f} ± {s:.{digits}f}" for m, s in zip(mean, std, strict=True)]
    return pd.DataFrame(columns, index=[METHODS[method].label for method in frame["method"].unique()])


def paper_table(dataset: str) -> pd.DataFrame:
    """What the paper prints for a dataset with crops, in the same shape; its range is our decile range."""
    names = {"range": "decile_range"}
    rows = paper.results()
    rows = rows[(rows["dataset"] == dataset) & rows["table"].isin(["fairness_crop", "average_crop", "worst_crop"])]
    table = rows.assign(metric=rows["metric"].replace(names)).pivot(index="method", columns="metric", values="value")
    order = [method for method in METHODS if method in table.index]
    found = {heading: table[metric] for metric, (heading, _) in METRICS.items() if metric in table}
    return pd.DataFrame(found).loc[order].rename(index={name: METHODS[name].label for name in order})
