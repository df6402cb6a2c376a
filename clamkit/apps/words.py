"""Numbers as people read them, and as they type them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clamkit.errors import ClamkitError, check_known


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %".replace("-", "−")


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def share(value: float) -> str:
    """Whole percent, but what is there is never called 0 %, nor what is not all 100 %."""
    if value == 0:
        return "none"
    return "below 1 %" if value < 0.01 else "above 99 %" if 0.99 < value < 1 else percent(value, 0)


def points(value: float) -> str:
    """A difference in percentage points; no sign at zero."""
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def p_value(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "< 0.0001"


def some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def changes(of: dict[str, float], most: int = 3) -> str:
    """How many classes changed, and the first of them."""
    if not of:
        return "no class"
    first = ", ".join(f"{name} {points(change)}" for name, change in list(of.items())[:most])
    more = f", and {len(of) - most} more" if len(of) > most else ""
    return f"{len(of)} class{'es' if len(of) > 1 else ''} ({first}{more})"


def numbered(lines: list[str]) -> list[str]:
    return [f"{i}. {line}" for i, line in enumerate(lines, 1)]


def read_limit(
    text: str, kind: str, signs: str, metrics: Sequence[str], example: str, counts: Sequence[str] = ()
) -> tuple[str, str, float]:
    """Metric, sign and number of "worst<0.60" or "std>12%"; kind: what it is for; counts: metrics, no fractions."""
    match = re.fullmatch(rf"\s*(\w+)\s*([{signs}])\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text)
    if not match:
        raise ClamkitError(f"the {kind} {text!r} cannot be read: give {example}. Metrics: {', '.join(metrics)}.")
    metric, sign, number, percentage = match.groups()
    check_known(f"metric of a {kind}", metric, metrics)
    value = float(number) / (100 if percentage else 1)
    if value > 1 and metric not in counts:
        raise ClamkitError(
            f"the {kind} {text!r} is above 1, and accuracies are fractions. Say {value / 100:g} or {value:g}%."
        )
    return metric, sign, value
