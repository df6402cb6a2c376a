"""Tables of runs: methods side by side, all epochs, final classes."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from clamkit.engine.store import COLUMNS, Run
from clamkit.methods.specs import METHODS
from clamkit.metrics import HIGHER_IS_BETTER

HEADINGS = {
    "average": "average %",
    "std": "std %",
    "cov": "COV",
    "range": "range %",
    "decile_range": "decile range %",
    "worst": "worst 10 %",
}
SETTING = ["method", "strength", "seed"]


def _text(metric: str, value: float) -> str:
    return f"{value:.3f}" if metric == "cov" else f"{100 * value:.1f}"


def comparison(frame: pd.DataFrame, baseline: str = "normal") -> pd.DataFrame:
    """Means over seeds by strength of augmentation and method, as text; `*` marks what beats the baseline there.

    frame: as `as_frame` gives it, of one kind of augmentation.
    """
    means = frame.groupby(["strength", "method"], sort=False)[list(HEADINGS)].mean()
    kind = frame["augmentation"].iloc[0]
    rows = []
    for (strength, method), row in means.sort_index(level=0, sort_remaining=False).iterrows():
        texts = {kind: f"{strength:g}", "method": METHODS[method].label}
        for metric, heading in HEADINGS.items():
            gain = row[metric] - means[metric].get((strength, baseline), row[metric])
            better = gain > 0 if metric in HIGHER_IS_BETTER else gain < 0
            texts[heading] = _text(metric, row[metric]) + ("*" if better else " ")
        rows.append(texts)
    return pd.DataFrame(rows)


def spread_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean ± std over the rows of each method, as text in percent; COV as it is."""
    moments = frame.groupby("method", sort=False)[list(HEADINGS)].agg(["mean", "std"])
    columns = {
        heading: [f"{_text(metric, mean)} ± {_text(metric, std)}" for mean, std in moments[metric].to_numpy()]
        for metric, heading in HEADINGS.items()
    }
    return pd.DataFrame(columns, index=[METHODS[method].label for method in moments.index])


def all_epochs(runs: Iterable[Run]) -> pd.DataFrame:
    """The histories of several runs in one frame: method, strength and seed before the columns of the history."""
    columns = [*SETTING, "epoch", "class", *COLUMNS]
    parts = [run.history.assign(**{name: getattr(run.config, name) for name in SETTING})[columns] for run in runs]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def final_classes(runs: Iterable[Run]) -> pd.DataFrame:
    """One row for each run and class: method, strength, seed, class, class_name, weight and final accuracies."""
    parts = []
    for run in runs:
        last = all_epochs([run]).query("epoch == epoch.max()")
        last.insert(5, "class_name", [run.class_names[i] for i in last["class"]])
        parts.append(last.assign(test_accuracy=run.test_accuracy.to_numpy()))
    columns = [*SETTING, "epoch", "class", "class_name", *COLUMNS]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def common_settings(runs: Iterable[Run]) -> list[Run]:
    """The runs of those settings (augmentation, strength, seed) that every method has: all on the same ground."""
    runs = list(runs)
    settings = [(run.config.augmentation, run.config.strength, run.config.seed) for run in runs]
    had = {(setting, run.config.method) for setting, run in zip(settings, runs, strict=True)}
    methods = {run.config.method for run in runs}
    return [run for setting, run in zip(settings, runs, strict=True) if had >= {(setting, m) for m in methods}]
