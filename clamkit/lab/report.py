"""The analysis notebooks, executed on the runs at hand, as one page."""

from __future__ import annotations

import os
import re
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from clamkit import __version__, paths
from clamkit.errors import ClamkitError, check_known, not_installed
from clamkit.files import atomic
from clamkit.lab.execution import execute_notebook, last_line

SUMMARY = "05"  # the notebook that opens the page
CELL_TIMEOUT_S = 600
Place = Path | None
PAGE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block html_head_css %}<style>
main { max-width: 66rem; margin: 2rem auto; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
</style>{% endblock %}
"""  # nbconvert's own page without what it would load from elsewhere


def analysis_notebooks(names: Sequence[str] = ()) -> list[Path]:
    """The notebooks that read finished runs (05 and 20 to 29), or those of them that are named."""
    found = {path.stem: path for path in sorted(paths.notebooks().glob("*.ipynb")) if path.stem.startswith(("05", "2"))}
    for name in names:
        check_known("analysis notebook", name, found)
    return [path for name, path in found.items() if not names or name in names]


def write(
    notebooks: Sequence[Path], runs: Place = None, folder: Place = None, *, page: Place = None, code: bool = False
) -> Path:
    """Execute notebooks on a runs folder; figures as PNG and PDF and one self-contained page, whose path is returned.

    page: default report.html beside the figures. It begins with what notebook 05 found, then has all verdicts.
    code: show the cells' code too. A notebook that fails is shown as far as it came, and named in an error at the end.
    """
    try:
        import nbformat
        from nbconvert.exporters import HTMLExporter
    except ImportError as error:
        raise not_installed(error.name or "nbconvert", "lab") from None

    folder = folder or paths.figures()
    page = page or folder / "report.html"
    try:
        for needed in (folder, page.parent):  # before the notebooks take their minutes
            needed.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=needed).close()  # a folder that is there may still be read-only
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = pool.map(lambda path: _execute(path, runs), notebooks)
            bar = tqdm(jobs, total=len(notebooks), unit="notebook", disable=None)
            executed = dict(zip(notebooks, bar, strict=True))
        failed = {path.stem: error for path, (_, error) in executed.items() if error}
        index = nbformat.v4.new_markdown_cell(_index({p.stem: n for p, (n, _) in executed.items()}, failed))
        whole = nbformat.v4.new_notebook(metadata={"title": f"clamkit {__version__} report"})
        for path, (notebook, _) in executed.items():
            for name, content in figures(path.stem, notebook).items():
                with atomic(folder / name) as temporary:
                    temporary.write_bytes(content)
            whole.cells += notebook.cells
        whole.cells.insert(notebooks[0].stem.startswith(SUMMARY) if notebooks else 0, index)
        for i, cell in enumerate(whole.cells):  # those of two notebooks may be the same
            cell["id"] = f"cell-{i}"
        exporter = HTMLExporter(raw_template=PAGE, exclude_input=not code, embed_images=True)
        html, _ = exporter.from_notebook_node(whole)
        with atomic(page) as temporary:
            temporary.write_text(html, encoding="utf-8")
    except OSError as error:
        raise ClamkitError(f"cannot write {paths.shown(page)} or figures ({error}): give another folder.") from error
    if failed:
        name, why = next(iter(failed.items()))
        raise ClamkitError(
            f"{len(failed)} of {len(executed)} notebooks failed, {paths.shown(page)} has them. {name}: {why}"
        )
    return page


def _execute(path: Path, runs: Place) -> tuple[Any, str]:
    """The executed notebook and, where a cell failed, the error. Figures come as PNG and PDF."""
    import nbformat

    place = {"CLAMKIT_RUNS": str(Path(runs).expanduser().resolve())} if runs else {}
    environment = {"SOURCE_DATE_EPOCH": "0"} | place  # no time of day in the PDFs
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, path.name)
        options = {"environment": environment, "cell_timeout_s": CELL_TIMEOUT_S}
        error = execute_notebook(path, output, figure_formats=("png", "pdf"), **options)
        notebook = nbformat.read(output if output.is_file() else path, 4)
    return notebook, last_line(error)


def figures(stem: str, notebook: Any) -> dict[str, bytes]:
    """The figures of an executed notebook: <stem>-<number>.png and, where it has them, .pdf."""
    shown = [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", [])]
    return {
        f"{stem}-{number}.{kind.rpartition('/')[2]}": b64decode(data[kind])
        for number, data in enumerate((data for data in shown if "image/png" in data), 1)
        for kind in ("image/png", "application/pdf")
        if kind in data
    }


def _index(notebooks: dict[str, Any], failed: dict[str, str]) -> str:
    """The head of the page: a link to each notebook, and what its cells tagged `verdict` show in bold.

    That is each claim with its verdict (`helpers.found`); where there is none, their first line.
    """
    lines = [f"# The verdicts\n\nclamkit {__version__}. The numbers are in the notebooks below.\n"]
    for name, notebook in notebooks.items():
        headings = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        heading = next(text for text in headings if text.startswith("# ")).splitlines()[0].lstrip("# ")
        lines.append(f"- [{name[:2]} · {heading}](#{heading.replace(' ', '-')})")
        shown = "\n".join(
            out.get("data", {}).get("text/markdown", "")
            for cell in notebook.cells
            if "verdict" in cell.metadata.get("tags", [])
            for out in cell.get("outputs", [])
        )
        said = re.findall(r"\*\*(.+?)\*\*", shown) or [line.removeprefix("- ") for line in shown.splitlines()[:1]]
        said += [f"failed: {failed[name]}"] if name in failed else []
        lines += [f"    - {escape(text)}" for text in said]
    return "\n".join(lines)
