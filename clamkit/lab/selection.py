"""Choosing a setting of a method by held-out images and a stated rule; test images are not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from clamkit.engine.config import STRENGTHS, WITHOUT_EFFECT, RunConfig
from clamkit.engine.store import Run
from clamkit.errors import ClamkitError, check_known
from clamkit.lab.controls import held_out_accuracy
from clamkit.methods.posthoc import OBJECTIVES
from clamkit.metrics.accuracy import TAIL, fairness_of_rows

GIVEN = {"dataset", "per_class", "holdout", "method", "augmentation", *STRENGTHS.values(), "seed", *WITHOUT_EFFECT}
FIELDS = [name for name in RunConfig.model_fields if name not in GIVEN]  # what can be chosen


class Selection(NamedTuple):
    """A row for each candidate (dataset, method, setting, score, std over seeds, chosen), and the rule in words."""

    table: pd.DataFrame
    rule: str

    def __str__(self) -> str:
        score, std, chosen = (self.table[name] for name in ("score", "std", "chosen"))
        texts = [f"{100 * s:.2f} ± {100 * d:.2f}" for s, d in zip(score, std, strict=True)]
        shown = self.table.assign(score=texts, chosen=chosen.map({True: "← chosen", False: ""}))
        return f"{shown.drop(columns='std').rename(columns={'chosen': ''}).to_string(index=False)}\n{self.rule}"


def held_out_score(run: Run, by: str = "average-std") -> float:
    """An objective of `posthoc.fit_biases`, of the final network's class accuracies on the run's held-out images."""
    return float(OBJECTIVES[by](fairness_of_rows(held_out_accuracy(run), TAIL), 1.0))


def choices(
    configs: Iterable[RunConfig], fields: Sequence[str] = (), by: str = "average-std"
) -> dict[tuple[str, str], list[str]]:
    """The fields to choose for each dataset and method; refuses what cannot be chosen, before anything is trained."""
    check_known("objective", by, OBJECTIVES)
    for name in fields:
        check_known("field to choose", name, FIELDS)
    groups: dict[tuple[str, str], list[dict]] = {}
    for config in configs:
        if not config.holdout:
            raise ClamkitError(f"{config.folder()} has no held-out images, and settings are not chosen by test images: "
                               "add `holdout: 50`, images of each class, to what is fixed in the grid.")  # fmt: skip
        groups.setdefault((config.dataset, config.method), []).append(config.identity())
    found = {
        key: [name for name in fields or FIELDS if len({repr(own.get(name)) for own in group}) > 1]
        for key, group in groups.items()
    }
    idle = set(fields).difference(*found.values())
    if idle or not any(found.values()):
        what = min(idle, default="nothing that can be chosen")
        raise ClamkitError(f"{what} varies within no method of these runs: give it several values in the grid's axes.")
    return found


def select(
    runs: Iterable[Run], fields: Sequence[str] = (), *, by: str = "average-std", wanted: Iterable[RunConfig] = ()
) -> Selection:
    """One setting for each dataset and method: the best mean of `held_out_score` over the seeds and all else.

    fields  what is chosen, such as ("tau",); default all that vary within a method. The rest is the same for each.
    wanted  the configs of the grid: one without a run is an error
    """
    found: dict[str, Run] = {run.name: run for run in runs}
    if missing := [name for config in wanted if (name := config.folder().as_posix()) not in found]:
        raise ClamkitError(f"runs that are not finished: {len(missing)}, the first is {missing[0]}: sweep again.")
    rows = []
    for group, chosen in choices((run.config for run in found.values()), fields, by).items():
        own = [run for run in found.values() if (run.config.dataset, run.config.method) == group]
        rows += _candidates(own, chosen, by) if chosen else []
    seeds, sees = {run.config.seed for run in found.values()}, {run.config.accuracy_from for run in found.values()}
    rule = (f"Rule: the largest {by} of the class accuracies on held-out images, the mean over {len(seeds)} seed"
            f"{'s' * (len(seeds) > 1)} and all else; of equals the first. Test images were not looked at.")  # fmt: skip
    rule += " Some runs moved their weights by the same held-out images." if "holdout" in sees else ""
    return Selection(pd.DataFrame(rows), rule)


def _candidates(runs: list[Run], fields: list[str], by: str) -> list[dict]:
    """The rows of one dataset and method."""
    dataset, method = runs[0].config.dataset, runs[0].config.method
    scores: dict[str, dict[tuple[str, int], float]] = {}
    for run in runs:
        setting = ", ".join(f"{name}={getattr(run.config, name)}" for name in fields)
        rest = {k: v for k, v in run.config.identity().items() if k not in (*fields, "seed")}
        scores.setdefault(setting, {})[repr(rest), run.config.seed] = held_out_score(run, by)
    table = pd.DataFrame(scores).rename_axis(["rest", "seed"])
    for setting in scores:
        if len(lacking := table.index[table[setting].isna()]):
            raise ClamkitError(f"{method} with {setting} has no run with seed {lacking[0][1]} such as others have: "
                               "candidates are compared over the same seeds and bounds.")  # fmt: skip
    by_seed = table.groupby("seed").mean()
    result = pd.DataFrame({"score": by_seed.mean().round(12), "std": by_seed.std()}).rename_axis("setting")
    result = result.assign(chosen=result.index == result["score"].idxmax()).reset_index()
    return [{"dataset": dataset, "method": method} | row for row in result.to_dict("records")]
