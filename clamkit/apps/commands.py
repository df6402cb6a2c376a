"""The commands for models of one's own: `clamkit diagnose` and `clamkit fix`. What one needs is imported inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clamkit.apps.data import say


def fix_command(
    logits: Annotated[
        Path, typer.Argument(help="npz, CSV or Parquet with logits (or probabilities) and labels; a run")
    ],
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="points of average accuracy that may be paid (default: 0.5)")
    ] = None,
    target: Annotated[str | None, typer.Option(help="the cheapest biases that reach this: worst=0.6, std=0.1")] = None,
    biases: Annotated[Path, typer.Option(help="the file to write")] = Path("biases.json"),
    out: Annotated[Path | None, typer.Option(help="folder of the picture (default: figures/ in the project)")] = None,
) -> None:
    """Class biases for a finished model, without training: what they gain, what they cost, how to apply them.

    Example: clamkit fix logits.npz --max-cost 0.5; clamkit fix logits.npz --target worst=0.6
    """
    from clamkit.apps import fix

    say(fix.report(logits, biases, out, None if max_cost is None else max_cost / 100, target))
