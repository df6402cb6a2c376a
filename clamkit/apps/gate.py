"""A gate for CI: conditions such as worst<0.60 under which a model does not pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clamkit.apps.diagnose import CONFIDENCE, Diagnosis, Model
from clamkit.apps.intervals import wilson
from clamkit.apps.words import read_limit
from clamkit.errors import ClamkitError
from clamkit.metrics import METRICS

COUNTED = ("hurt", "helped")  # classes, against another model
ALLOWED = (*METRICS, "lowest", *COUNTED)


class Condition(NamedTuple):
    """The model fails where metric < limit (below) or metric > limit."""

    metric: str
    below: bool
    limit: float
    text: str


def read_condition(text: str) -> Condition:
    example = "a metric, < or >, and a number, in quotes, such as 'worst<0.60', 'std>12%' or 'hurt>0'"
    metric, sign, limit = read_limit(text, "gate", "<>", ALLOWED, example, counts=(*COUNTED, "cov"))
    if metric in COUNTED and "%" in text:
        raise ClamkitError(f"the gate {text!r} counts classes: give their number, without %.")
    return Condition(metric, sign == "<", limit, text.strip())


def reasons(
    conditions: Sequence[Condition], result: Diagnosis, *, confident: bool = False, reference: bool = True
) -> list[str]:
    """Why the models fail, one line a condition; none where they pass.

    confident: only where the whole 95 % interval lies on the wrong side. reference: the first model is looked at too.
    """
    found = []
    for condition in conditions:
        counted = condition.metric in COUNTED
        if counted and not result.others:
            raise ClamkitError(f"the gate {condition.text!r} compares two models: give the other with --baseline.")
        for model in result.models if reference and not counted else result.others:
            value, low, high = _value(model, condition.metric)
            at = (high if condition.below else low) if confident else value
            if not (at >= condition.limit if condition.below else at <= condition.limit):  # nan does not pass
                sure = f" (95 % interval {low:.3f} to {high:.3f})" if low != high else ""
                found.append(f"{model.title}: {condition.metric} is {value:.4g}{sure}: gate {condition.text} fails.")
    return found


def _value(model: Model, metric: str) -> tuple[float, float, float]:
    """The metric and the ends of its interval."""
    if metric in COUNTED:
        return (float(len(model.named(metric))),) * 3
    if metric == "lowest":  # intervals that hold for all classes together, as the lowest was picked from all
        classes = model.classes
        low, high = wilson(classes["right"], classes["images"], 1 - (1 - CONFIDENCE) / len(classes))
        return classes["accuracy"].min(), low.min(), high.min()
    return tuple(model.fairness.loc[metric])
