"""Execute notebooks in place and strip what should not be committed: python notebooks/refresh.py [NAME ...]

Training in them goes to a throw-away runs folder, so that the outputs are always made anew. With notebook 05 its
table and figures in the README are written anew too.
"""

import os
import re
import sys
import tempfile
from base64 import b64decode
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def refresh(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    where = {"metadata": {"path": str(HERE)}}
    NotebookClient(notebook, timeout=1200, kernel_name="python3", coalesce_streams=True, resources=where).execute()
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)
    print("refreshed", path.name, flush=True)


def write_findings(root: Path) -> None:
    """Notebook 05 into the README: its first table, and its figures as `clamkit report` names them."""
    from clamkit.findings import as_markdown, findings

    readme, notebook = root / "README.md", nbformat.read(HERE / "05_what_we_found.ipynb", 4)
    text, found = readme.read_text(encoding="utf-8"), findings()
    old = re.search(r"(?<=<!-- findings -->\n).*?(?=<!-- -->)", text, re.DOTALL)
    text = f"{text[: old.start()]}\n{as_markdown(found[found['kind'] == 'paper'])}\n\n{text[old.end() :]}"
    readme.write_text(text, encoding="utf-8")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    for number, picture in enumerate(pictures, 1):
        (root / "figures" / f"05_what_we_found-{number}.png").write_bytes(b64decode(picture))


if __name__ == "__main__":
    names = sys.argv[1:]
    with tempfile.TemporaryDirectory() as runs:
        os.environ |= {"CLAMKIT_RUNS": runs, "CLAMKIT_PROGRESS": "0", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        for file in sorted(HERE.glob("*.ipynb")):
            if not names or file.stem in names:
                refresh(file)
        if not names or "05_what_we_found" in names:
            write_findings(HERE.parent)
