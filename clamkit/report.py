"""Tables people read: methods side by side, in percent, the better one marked."""

from __future__ import annotations

import pandas as pd

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
