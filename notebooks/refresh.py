"""Execute notebooks in place and strip what should not be committed: python notebooks/refresh.py [NAME ...]

Training in them goes to a throw-away runs folder, so that the outputs are always made anew. With notebook 05 the
numbers in README.md, docs/start.md and docs/findings.md (helpers/front_page.py) and the figures are written anew too.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat

from clamkit.errors import ClamkitError, check_known
from clamkit.lab.execution import execute_notebook
from clamkit.lab.report import figures
from helpers import front_page

HERE = Path(__file__).parent


def refresh(path: Path, runs: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, path.name)
        if error := execute_notebook(path, output, environment={"CLAMKIT_RUNS": runs}):
            raise ClamkitError(f"{path.name} failed: {error}")
        notebook = nbformat.read(output, 4)
    strip(notebook)
    nbformat.write(notebook, path)
    print("refreshed", path.name, flush=True)


def strip(notebook: nbformat.NotebookNode) -> None:
    """Take out of an executed notebook what should not be committed: widget state, times, papermill's own notes."""
    for name in ("widgets", "papermill"):
        notebook.metadata.pop(name, None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for name in ("execution", "papermill"):
            cell.metadata.pop(name, None)
        if cell.metadata.get("tags") == []:
            del cell.metadata["tags"]


def write_findings(root: Path) -> None:
    """Notebook 05 outside of it: the numbers of the pages, and its figures as `clamkit report` names them."""
    front_page.write(root)
    notebook = nbformat.read(HERE / "05_what_we_found.ipynb", 4)
    for name, picture in figures("05_what_we_found", notebook).items():
        (root / "figures" / name).write_bytes(picture)


def chosen(names: Sequence[str]) -> list[Path]:
    """The notebooks that are named, or all."""
    found = {file.stem: file for file in sorted(HERE.glob("*.ipynb"))}
    for name in names:
        check_known("notebook", name, found)
    return [file for name, file in found.items() if not names or name in names]


if __name__ == "__main__":
    names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as throw_away:
        for file in chosen(names):
            refresh(file, throw_away)
        if not names or "05_what_we_found" in names:
            write_findings(HERE.parent)
