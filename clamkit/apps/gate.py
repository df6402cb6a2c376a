"""A gate for CI: conditions such as worst<0.60 under which a model does not pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from clamkit.apps.diagnose import Diagnosis
from clamkit.errors import ClamkitError, unknown
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
    match = re.fullmatch(r"\s*(\w+)\s*([<>])\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text)
    if not match:
        raise ClamkitError(
            f"the gate {text!r} cannot be read: give a metric, < or >, and a number, in quotes, such as 'worst<0.60', "
            f"'std>12%' or 'hurt>0'. Metrics: {', '.join(ALLOWED)}."
        )
    metric, sign, number, percent = match.groups()
    if metric not in ALLOWED:
        raise unknown("metric of a gate", metric, ALLOWED)
    limit = float(number) / (100 if percent else 1)
    if metric not in COUNTED and metric != "cov" and limit > 1:
        raise ClamkitError(
            f"the gate {text!r} never decides: accuracies are fractions. Say {limit / 100:g} or {limit:g}%."
        )
    return Condition(metric, sign == "<", limit, text.strip())


def reasons(
    conditions: Sequence[Condition], results: Sequence[Diagnosis], *, confident: bool = False, reference: bool = True
) -> list[str]:
    """Why the models fail, one line a condition; none where they pass.

    confident: only where the whole 95 % interval lies on the wrong side. reference: the first model is looked at too.
    """
    found = []
    for condition in conditions:
        for place, result in enumerate(results):
            if result.paired is None and condition.metric in COUNTED:
                raise ClamkitError(f"the gate {condition.text!r} compares two models: give the other with --baseline.")
            for suffix, title in zip(("", "_after"), result.titles, strict=False):
                first = suffix == "" and result.paired is not None
                if first and (place or not reference or condition.metric in COUNTED):
                    continue
                value, low, high = _value(result, condition.metric, suffix)
                at = (high if condition.below else low) if confident else value
                if at < condition.limit if condition.below else at > condition.limit:
                    sure = f" (95 % interval {low:.3f} to {high:.3f})" if low != high else ""
                    found.append(f"{title}: {condition.metric} is {value:.4g}{sure}, and {condition.text} fails.")
    return found


def _value(result: Diagnosis, metric: str, suffix: str) -> tuple[float, float, float]:
    """The metric and the ends of its interval."""
    if metric in COUNTED:
        return (float((result.classes["verdict"] == metric).sum()),) * 3
    if metric == "lowest":
        row = result.classes.loc[result.classes[f"accuracy{suffix}"].idxmin()]
        return row[f"accuracy{suffix}"], row[f"low{suffix}"], row[f"high{suffix}"]
    row = result.fairness.loc[metric]
    return row[f"accuracy{suffix}"], row[f"low{suffix}"], row[f"high{suffix}"]
