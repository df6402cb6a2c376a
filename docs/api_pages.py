"""The reference of the library: a page that lists every public name, and the docstrings as Sphinx can read them.

Docstrings are plain text: one line on what it is, prose, aligned lists of arguments, examples. Sphinx reads
reStructuredText. `as_rest` translates; as an extension of Sphinx this module hands it every docstring.
"""

from __future__ import annotations

import inspect
import re
from textwrap import indent
from typing import Any

import clamkit

GROUPS = {
    "Class weights": ("CLAM", "MaxMin", "TCE", "GGF", "APStar", "Uniform", "Weighter"),
    "Methods of other papers": ("CFOL", "GroupDRO", "TLA", "LogitAdjusted", "ClassBalanced", "Fixed"),
    "Measure": ("class_accuracy", "fairness", "compare"),
    "Class biases": ("fit_biases", "fit_drops", "Biases"),
    "Train": ("RunConfig", "train", "Run", "RunStore", "load_data", "METHODS"),
    "Sets and projections": ("LowerBounded", "RatioBounded", "Permutahedron", "Box"),
    "The rest": ("ClamkitError", "__version__"),
}
CONSTANTS = {  # they have no docstrings
    "METHODS": """Every method by name: :doc:`methods`.

>>> METHODS["clam"].label, METHODS["ggf"].values("cifar10")["alpha"]
('CLAM', 0.9)""",
    "__version__": """The version, as a string.

>>> __version__.split(".")[0]
'0'""",
}


def pages() -> dict[str, str]:
    """docs/api.md."""
    listed = [name for names in GROUPS.values() for name in names]
    if differing := sorted(set(listed) ^ set(clamkit.__all__)):
        raise SystemExit(f"GROUPS of docs/api_pages.py and clamkit.__all__ differ: {', '.join(differing)}")
    parts = [
        "# Library reference",
        "All of these come from `from clamkit import …` and are loaded when they are first used; `import clamkit` "
        "loads no torch. Every example runs in the tests, with torch and numpy (`np`) imported. "
        "[The map](../clamkit/README.md) says where the rest is.",
    ]
    for group, names in GROUPS.items():
        parts.append(f"## {group}")
        for name in names:
            parts.append("```{eval-rst}\n" + directive(name) + "\n```")
            parts += ["The settings, options of `clamkit train` too:", fields()] if name == "RunConfig" else []
    return {"docs/api.md": "\n\n".join(parts) + "\n"}


def fields() -> str:
    """The settings of a run: name, default, what it is."""
    rows = ["| setting | default | what it is |", "|---|---|---|"]
    for name, field in clamkit.RunConfig.model_fields.items():
        default = "" if field.default is None else f"`{field.default!r}`".replace("'", '"')
        rows.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(rows)


def directive(name: str) -> str:
    thing = getattr(clamkit, name)
    if name == "RunConfig":
        return ".. autoclass:: clamkit.RunConfig(**fields)"
    if inspect.isclass(thing):
        members = [] if issubclass(thing, Exception) else public_members(thing)
        listed = f"\n   :members: {', '.join(members)}" if members else ""
        return f".. autoclass:: clamkit.{name}{listed}"
    if inspect.isfunction(thing):
        return f".. autofunction:: clamkit.{name}"
    return f".. py:data:: {name}\n   :module: clamkit\n\n" + indent(CONSTANTS[name], "   ")


def public_members(thing: type) -> list[str]:
    """Methods and properties of a class's own that have a docstring of their own."""
    found = []
    for name, member in vars(thing).items():
        kind = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
        text = getattr(member, "__doc__", None)
        above = any(
            getattr(vars(base).get(name), "__doc__", None) == text for base in thing.__mro__[1:] if name in vars(base)
        )
        if kind and text and not name.startswith("_") and not above and name != "extra_repr":
            found.append(name)
    return found


def as_rest(text: str) -> str:
    """A plain docstring as reStructuredText: aligned lists become definitions, examples stay, the rest is prose."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: str) -> str:
    lines = block.splitlines()
    if block.startswith(">>>"):
        return block
    if re.match(r"^\S.*? {2,}\S", lines[0]):
        return _definitions(lines)
    return _prose(block)


def _definitions(lines: list[str]) -> str:
    """An aligned list, `name  what it is` with further lines indented, as a list of definitions."""
    items: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and items:
            items[-1][1] += f" {line.strip()}"
        else:
            name, _, text = re.sub(r" {2,}", "\t", line, count=1).partition("\t")
            items.append([name, text])
    return "\n".join(f"{_prose(name)}\n   {_prose(text or '…')}" for name, text in items)


def _prose(text: str) -> str:
    """Plain text with `code` in it; a backslash and a space part code from what touches it."""
    parts = re.split(r"`([^`\n]+)`", text)
    plain = [re.sub(r"([*|\\_])", r"\\\1", part) for part in parts[::2]]
    made = plain[0]
    for code, after in zip(parts[1::2], plain[1:], strict=True):
        before = "\\ " * bool(made and not re.search(r"[\s'\"(\[{<\-/:]$", made))
        made += f"{before}``{code}``" + "\\ " * bool(after and not re.match(r"[\s'\")\]}>\-/:.,;!?]", after)) + after
    return made


def process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's event autodoc-process-docstring."""
    if lines:
        lines[:] = as_rest("\n".join(lines)).splitlines()


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
