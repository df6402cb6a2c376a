"""The commands for models of one's own: `clamkit diagnose` and `clamkit fix`. What one needs is imported inside it."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from clamkit.apps.data import say
from clamkit.errors import ClamkitError


def diagnose_command(
    files: Annotated[
        list[Path], typer.Argument(help="CSV, Parquet or npz with label and prediction (or scores); a run")
    ],
    against: Annotated[
        Path | None, typer.Option("--against", "--baseline", help="the model that the others are compared with")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="the page to write (default: diagnosis.html)")] = None,
    json: Annotated[bool, typer.Option("--json", help="print everything as JSON; a page only with --html")] = False,
    fail_if: Annotated[
        list[str] | None, typer.Option(help="exit 1 if this holds: 'worst<0.60', 'std>0.12', 'hurt>0'; may be repeated")
    ] = None,
    confident: Annotated[
        bool, typer.Option("--confident", help="with --fail-if: only where the whole 95 % interval says so")
    ] = False,
) -> None:
    """What a model's predictions say about its classes, and what changed between models; a gate for CI.

    The first file is what the others are compared with, unless --against is given.

    Example: clamkit diagnose preds.csv; clamkit diagnose new.csv --baseline old.csv --fail-if "hurt>0"
    """
    from clamkit.apps import diagnose, diagnose_page, gate

    conditions = [gate.read_condition(text) for text in fail_if or ()]
    if confident and not conditions:
        raise ClamkitError("--confident goes with --fail-if: give what must not be, such as --fail-if 'worst<0.60'.")
    page = html or (None if json else Path("diagnosis.html"))
    found = diagnose_page.report([*([against] if against else []), *files], page)
    reasons = gate.reasons(conditions, found.result, confident=confident, reference=against is None)
    if json:
        content = diagnose.as_json(found.result, found.advice) | {"failed": reasons}
        typer.echo(dumps(content, indent=1, ensure_ascii=False))
    else:
        say(found.text)
    if reasons:
        typer.echo(f"clamkit: {' '.join(reasons)}", err=True)
        raise typer.Exit(1)


def fix_command(
    logits: Annotated[
        Path, typer.Argument(help="npz, CSV or Parquet with logits (or probabilities) and labels; a run")
    ],
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="points of average accuracy that may be paid (default: 0.5)")
    ] = None,
    target: Annotated[str | None, typer.Option(help="the cheapest biases that reach this: worst=0.6, std=0.1")] = None,
    by: Annotated[str, typer.Option(help="what to choose by: average-std, worst-tail or average")] = "average-std",
    biases: Annotated[Path, typer.Option(help="the file to write")] = Path("biases.json"),
    out: Annotated[Path | None, typer.Option(help="folder of the picture (default: build/figures/)")] = None,
) -> None:
    """Class biases for a finished model, without training: what they gain, what they cost, how to apply them.

    Example: clamkit fix logits.npz --max-cost 0.5; clamkit fix logits.npz --target worst=0.6
    """
    from clamkit.apps import fix
    from clamkit.apps.advice import advice
    from clamkit.apps.diagnose import diagnose
    from clamkit.apps.predictions import read
    from clamkit.apps.words import numbered

    model = read(logits)
    found, text = fix.report(model, biases, out, target, by=by, max_cost=None if max_cost is None else max_cost / 100)
    lines = advice(diagnose(model), model, found)
    say("\n".join([text, "What next:", *numbered(lines)]))
