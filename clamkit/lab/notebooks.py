"""Notebooks as programs: the config their parameter cell describes, and the names it has."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from clamkit import paths
from clamkit.engine.config import RunConfig
from clamkit.errors import ClamkitError, not_installed, unknown
from clamkit.lab.recipes import recipe

PAPERMILL_MARK = "# Parameters"  # the first line of the cell papermill injects


def notebook_config(namespace: dict[str, Any], paper_dataset: str | None = None) -> RunConfig:
    """The config that a notebook's parameter cell describes: pass `globals()`.

    `options` (a dict) may hold any further field; `scale` names a recipe ("small", "fast", "long", "paper"), here that
    for `paper_dataset`, which gives what the parameter cell leaves None or does not have.
    A parameter injected by papermill that the notebook does not know raises, where papermill itself only warns.
    """
    _check_injected(namespace)
    given = {key: namespace[key] for key in RunConfig.model_fields if namespace.get(key) is not None}
    fields = recipe(namespace.get("scale") or "small", paper_dataset or "fashion_mnist_mini") | given
    options = namespace.get("options") or {}
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise ClamkitError(f"options={options!r} is not allowed: it must be a dict of further fields.")
    return RunConfig(**(fields | options))


def _check_injected(namespace: dict[str, Any]) -> None:
    cells = [cell for cell in namespace.get("In", []) if cell.strip()]
    marked = [i for i, cell in enumerate(cells) if cell.startswith(PAPERMILL_MARK)]
    if not marked:
        return
    own = set().union(*(_assigned(cell) for cell in cells[: marked[0]]))
    for name in sorted(_assigned(cells[marked[0]]) - own):
        raise unknown("notebook parameter", name, own)


def _assigned(source: str) -> set[str]:
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a cell with magics
        return set()
    targets = [t for node in body if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def notebook_parameters(notebook: Path) -> set[str]:
    """Names assigned in the cell tagged `parameters`."""
    try:
        from papermill import inspect_notebook
    except ImportError as error:
        raise not_installed(error.name or "papermill", "lab") from None
    try:
        found = set(inspect_notebook(str(notebook)))
    except ValueError as error:  # no kernel named, or none that papermill knows
        raise ClamkitError(f"papermill cannot read {paths.shown(notebook)}: {error}") from error
    if not found:
        raise ClamkitError(f"{paths.shown(notebook)} has no cell tagged `parameters`: a sweep can set nothing in it.")
    return found
