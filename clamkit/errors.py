"""The one error type for bad input: what was given, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ClamkitError(ValueError):
    """Bad input or a state the kit refuses to go on from; the message is one readable paragraph.

    >>> LowerBounded(10, u_min=0.2)
    Traceback (most recent call last):
        ...
    clamkit.errors.ClamkitError: u_min=0.2 leaves no room for 10 classes: it must be at least 0 and below 1/10...
    """


def unknown(kind: str, given: object, allowed: Iterable[object]) -> ClamkitError:
    """Error for a name that is not in a list, with the nearest allowed name as a hint."""
    allowed = sorted(map(str, allowed))
    near = get_close_matches(str(given), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ClamkitError(f"unknown {kind} {given!r}.{hint} Allowed: {', '.join(allowed)}.")


def check_known(kind: str, given: object, allowed: Iterable[object]) -> None:
    """Refuse a name that is not in a list."""
    if given not in tuple(allowed):
        raise unknown(kind, given, allowed)


def not_installed(package: str, extra: str) -> ClamkitError:
    """Error for a package that an extra brings."""
    return ClamkitError(f"{package} is not installed: `pip install 'clamkit[{extra}]'` brings it.")
