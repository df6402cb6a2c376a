"""`make lock`: docs/licences.md, the licence of every pinned package as its own metadata tells it.

A package that is not installed here (CUDA, other systems) keeps the line that it had.
"""

import re
import sys
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences

clamkit itself is under the MIT licence. These are the packages it is tested with (`requirements*.lock`), each with the
licence that its own metadata names. `pip install .` alone needs those with a dot, and what they bring along.
Written by `make lock`.

| package | version | licence | |
|---|---|---|---|
"""
ABSENT = "not read here: installed only with CUDA"


def licence(found: Message) -> str:
    """The SPDX expression; else the classifiers; else the first line of the licence text."""
    if expression := found["License-Expression"]:
        return expression
    named = [line.split(" :: ")[-1] for line in found.get_all("Classifier", []) if line.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    lines = (found["License"] or "").strip().splitlines()
    return ", ".join(named) or (lines[0] if lines else "not named")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> list[tuple[str, str]]:
    """(name, version); the site has a few packages in versions of its own."""
    files = [file.read_text() for file in sorted(ROOT.glob("requirements*.lock"))]
    return sorted({pin for text in files for pin in re.findall(r"^([\w.-]+)==([^\s;+]+)", text, re.MULTILINE)})


def main() -> None:
    known = dict(re.findall(r"^\| (\S+) \| \S+ \| (.*?) \|", PAGE.read_text(), re.MULTILINE)) if PAGE.is_file() else {}
    project = (ROOT / "pyproject.toml").read_text().split("dependencies = [")[1].split("]")[0]
    direct = {normal(name) for name in re.findall(r'"([\w.-]+)>=', project)}
    installed = distributions(path=[*sys.path, str(Path(sys.prefix) / "docs")])
    said = {normal(found.name): licence(found.metadata) for found in installed}
    lines = [
        f"| {name} | {version} | {said.get(normal(name), known.get(name, ABSENT)).replace('|', '/')} "
        f"| {'•' * (name in direct)} |"
        for name, version in pinned()
    ]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
