"""What people read: tables of methods side by side, and the analysis notebooks as one page."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pandas as pd
from tqdm.auto import tqdm

from clamkit import __version__, paper, paths
from clamkit.errors import ClamkitError, unknown
from clamkit.methods import METHODS
from clamkit.runs import atomic

# metric -> (heading, +1 where higher is better and −1 where lower is)
METRICS = {
    "average": ("average %", +1),
    "std": ("std %", -1),
    "cov": ("COV", -1),
    "range": ("range %", -1),
    "decile_range": ("decile range %", -1),
    "worst": ("worst 10 %", +1),
}
BETTER = "*"


def comparison(frame: pd.DataFrame, baseline: str = "normal") -> pd.DataFrame:
    """Means over seeds by strength of augmentation and method, as text; `*` marks what beats the baseline there.

    frame: as `clamkit.runs.as_frame` gives it, of one kind of augmentation.
    """
    means = frame.groupby(["strength", "method"], sort=False)[list(METRICS)].mean()
    kind = frame["augmentation"].iloc[0]
    rows = []
    for (strength, method), row in means.sort_index(level=0, sort_remaining=False).iterrows():
        texts = {kind: f"{strength:g}", "method": METHODS[method].label}
        for metric, (heading, sign) in METRICS.items():
            text = f"{row[metric]:.3f}" if metric == "cov" else f"{100 * row[metric]:.1f}"
            reference = means[metric].get((strength, baseline))
            better = method != baseline and reference is not None and sign * (row[metric] - reference) > 0
            texts[heading] = text + (BETTER if better else " ")
        rows.append(texts)
    return pd.DataFrame(rows)


def spread_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean ± std over the rows of each method, as text in percent; COV as it is."""
    columns = {}
    for metric, (heading, _) in METRICS.items():
        scale, digits = (1, 3) if metric == "cov" else (100, 1)
        grouped = frame.groupby("method", sort=False)[metric]
        mean, std = scale * grouped.mean(), scale * grouped.std()
        columns[heading] = [f"{m:.{digits}f} ± {s:.{digits}f}" for m, s in zip(mean, std, strict=True)]
    return pd.DataFrame(columns, index=[METHODS[method].label for method in frame["method"].unique()])


def paper_table(dataset: str) -> pd.DataFrame:
    """What the paper prints for a dataset with crops, in the same shape; its range is our decile range."""
    names = {"range": "decile_range"}
    rows = paper.results()
    rows = rows[(rows["dataset"] == dataset) & rows["table"].isin(["fairness_crop", "average_crop", "worst_crop"])]
    table = rows.assign(metric=rows["metric"].replace(names)).pivot(index="method", columns="metric", values="value")
    order = [method for method in METHODS if method in table.index]
    found = {heading: table[metric] for metric, (heading, _) in METRICS.items() if metric in table}
    return pd.DataFrame(found).loc[order].rename(index={name: METHODS[name].label for name in order})


# --------------------------------------------------------------------------- the analysis notebooks as one page

TIMEOUT = 600  # seconds a cell may take
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
        if name not in found:
            raise unknown("analysis notebook", name, found)
    return [path for name, path in found.items() if not names or name in names]


def write(
    notebooks: Sequence[Path], runs: str | os.PathLike | None = None, folder: Path | None = None, *, code: bool = False
) -> Path:
    """Execute notebooks on a runs folder; figures as PNG and PDF and one self-contained page, whose path is returned.

    code: show the cells' code too. A notebook that fails is shown as far as it came, and named in an error at the end.
    """
    from nbconvert.exporters import HTMLExporter

    folder = folder or paths.figures()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = pool.map(lambda path: _execute(path, runs), notebooks)
        executed = dict(zip(notebooks, tqdm(jobs, total=len(notebooks), unit="notebook", disable=None), strict=True))
    failed = {path.stem: error for path, (_, error) in executed.items() if error}
    whole = nbformat.v4.new_notebook(metadata={"title": "clamkit report"})
    whole.cells = [_index({path.stem: notebook for path, (notebook, _) in executed.items()}, failed)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, (notebook, _) in executed.items():
            for name, content in _figures(path.stem, notebook).items():
                with atomic(folder / name) as temporary:
                    temporary.write_bytes(content)
            whole.cells += notebook.cells
        exporter = HTMLExporter(raw_template=PAGE, exclude_input=not code, embed_images=True)
        page, _ = exporter.from_notebook_node(whole)
        with atomic(folder / "report.html") as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ClamkitError(f"cannot write to {paths.shown(folder)}: {error}.") from error
    if failed:
        name, error = next(iter(failed.items()))
        raise ClamkitError(
            f"{len(failed)} of {len(executed)} notebooks failed, {paths.shown(folder)} has the others. {name}: {error}"
        )
    return folder / "report.html"


def _execute(path: Path, runs: str | os.PathLike | None) -> tuple[nbformat.NotebookNode, str]:
    """The executed notebook and, where a cell failed, the error. Figures come as PNG and PDF."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    both, quiet = "--InlineBackend.figure_formats={'png', 'pdf'}", "--IPKernelApp.log_level=40"
    environment = os.environ | {
        "CLAMKIT_PROGRESS": "0",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "SOURCE_DATE_EPOCH": "0",
    }
    if runs:
        environment["CLAMKIT_RUNS"] = str(Path(runs).expanduser().resolve())
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        coalesce_streams=True,
        extra_arguments=[both, quiet],
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        return notebook, f"{error.ename}: {error.evalue}"
    return notebook, ""


def _figures(stem: str, notebook: nbformat.NotebookNode) -> dict[str, bytes]:
    """<notebook>-<number>.png and .pdf of its figures; the PDFs are then taken out of the notebook."""
    from nbconvert.preprocessors import ExtractOutputPreprocessor

    shown = [out for cell in notebook.cells for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
    for number, output in enumerate(shown, 1):
        output.metadata["filename"] = f"{stem}-{number}"
    extract = ExtractOutputPreprocessor(extract_output_types={"image/png", "application/pdf"})
    _, resources = extract.preprocess(copy.deepcopy(notebook), {"outputs": {}})
    for output in shown:
        output.data.pop("application/pdf", None)
    return resources["outputs"]


def _index(notebooks: dict[str, nbformat.NotebookNode], failed: dict[str, str]) -> nbformat.NotebookNode:
    """The first cell of the page: a link to each notebook and what its cells tagged `verdict` print."""
    lines = [f"# clamkit report\n\nclamkit {__version__}. Each line leads to its notebook below.\n"]
    for name, notebook in notebooks.items():
        heading = (
            next(cell.source for cell in notebook.cells if cell.cell_type == "markdown").splitlines()[0].lstrip("# ")
        )
        lines.append(f"- [{name[:2]} · {heading}](#{heading.replace(' ', '-')})")
        said = [
            out.text
            for cell in notebook.cells
            if "verdict" in cell.metadata.get("tags", [])
            for out in cell.get("outputs", [])
            if out.output_type == "stream"
        ]
        said += [f"failed: {failed[name]}"] if name in failed else []
        lines += [f"\n  ```\n{_indent(text)}\n  ```\n" for text in said]
    return nbformat.v4.new_markdown_cell("\n".join(lines))


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines())
