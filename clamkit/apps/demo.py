"""What `clamkit demo` shows: three figures, and a table of the methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from clamkit import plots
from clamkit.engine.store import Run, as_frame
from clamkit.lab.tables import comparison, final_classes


def save_figures(runs: Sequence[Run]) -> list[Path]:
    """Classes and fairness over the strength of augmentation; weights at its strongest. Where they were written."""
    frame = as_frame(runs)
    strongest = {run.config.method: run for run in runs if run.config.strength == frame["strength"].min()}
    figures = {
        "demo_classes": plots.class_curves(final_classes(runs), list(strongest)),
        "demo_fairness": plots.fairness_over_strength(frame),
        "demo_weights": plots.weight_evolution(strongest["clam_kl"], strongest["normal"]),
    }
    return [plots.save(figure, name) for name, figure in figures.items()]


def comparison_table(runs: Sequence[Run]) -> Table:
    """`lab.tables.comparison` for a terminal: what beats Normal at the same strength is green and has a star."""
    table = comparison(as_frame(runs))
    shown = Table(title="CLAM against Normal on the test images (* better than Normal at the same crop)")
    for column in table:
        shown.add_column(column, justify="left" if column == "method" else "right")
    for i, row in enumerate(table.itertuples(index=False)):
        last = i + 1 == len(table) or table.iloc[i + 1, 0] != row[0]
        shown.add_row(*(f"[green]{cell}[/]" if cell.endswith("*") else cell for cell in row), end_section=last)
    return shown
