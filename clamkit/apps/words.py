"""Numbers as people read them."""

from __future__ import annotations


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %".replace("-", "−")


def share(value: float) -> str:
    """Whole percent, but what is there is never called 0 %."""
    return "none" if value == 0 else "below 1 %" if value < 0.01 else percent(value, 0)


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
