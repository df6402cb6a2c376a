"""Tables of runs: methods side by side, all epochs, final classes."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from clamkit.engine.store import COLUMNS, Run
from clamkit.methods.specs import METHODS

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

    frame: as `as_frame` gives it, of one kind of augmentation.
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


def all_epochs(runs: Iterable[Run]) -> pd.DataFrame:
    """The histories of several runs in one frame: method, strength and seed before the columns of the history."""
    parts = []
    for run in runs:
        part = run.history.copy()
        for place, name in enumerate(("method", "strength", "seed")):
            part.insert(place, name, getattr(run.config, name))
        parts.append(part)
    columns = ["method", "strength", "seed", "epoch", "class", *COLUMNS]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def final_classes(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run and class: method, strength, seed, class, class_name, weight and final accuracies."""
    parts = []
    for run in runs:
        last = run.history[run.history["epoch"] == run.history["epoch"].max()]
        named = last.assign(class_name=[run.class_names[i] for i in last["class"]])
        named["test_accuracy"] = run.test_accuracy.to_numpy()
        parts.append(named.assign(method=run.config.method, strength=run.config.strength, seed=run.config.seed))
    columns = ["method", "strength", "seed", "epoch", "class", "class_name", *COLUMNS]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def common_settings(runs: Iterable[Run]) -> list[Run]:
    """The runs of those settings (augmentation, strength, seed) that every method has: all on the same ground."""
    runs = list(runs)
    methods = {run.config.method for run in runs}
    had: dict[tuple, set[str]] = {}
    for run in runs:
        had.setdefault((run.config.augmentation, run.config.strength, run.config.seed), set()).add(run.config.method)
    return [r for r in runs if had[r.config.augmentation, r.config.strength, r.config.seed] == methods]
