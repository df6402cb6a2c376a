"""The analysis notebooks as one page."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest

from clamkit.errors import ClamkitError
from clamkit.lab import report
from clamkit.lab.execution import Processes


@pytest.fixture(scope="module")
def _in_forks():
    """Notebooks are executed in forks of one process, as in a sweep; in `test_the_command` as a report does it."""
    with Processes(forks=True) as forks, pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "execute_notebook", partial(report.execute_notebook, processes=forks))
        yield


def notebook(folder, name, *cells):
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_markdown_cell(f"# About {name}\n\nA claim.")]
    for source, *tags in cells:
        made.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    for i, cell in enumerate(made.cells):
        cell["id"] = f"cell-{i}"  # as the training notebooks have them: the same in each
    path = folder / f"{name}.ipynb"
    nbformat.write(made, path)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("_in_forks")
@pytest.mark.filterwarnings("error:Non-unique cell id")
def test_one_page_with_index_figures_and_nothing_from_elsewhere(tmp_path):
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    evil = "import pandas as pd\npd.DataFrame({'class': ['<script>alert(1)</script>']})"
    markdown = "import os\nfrom IPython.display import Markdown\nMarkdown({})"
    where = markdown.format("f\"- runs in {os.path.basename(os.environ['CLAMKIT_RUNS'])}\\n- and elsewhere\"")
    shown = "- **KL is better: the opposite**. It is -1.\n- **It is: not decided** (0 of 2).\n\n*Regime*: small."
    first = notebook(tmp_path, "20_first", (draw,))
    second = notebook(tmp_path, "21_second", (evil,), (markdown.format(repr("- <b>bold</b>")), "verdict"))
    third = notebook(tmp_path, "22_third", (where, "verdict"))
    fourth = notebook(tmp_path, "23_fourth", (markdown.format(repr(shown)), "verdict"))
    page = report.write([first, second, third, fourth], runs=tmp_path / "mine", folder=tmp_path / "out")
    assert sorted(path.name for path in page.parent.iterdir()) == ["20_first-1.pdf", "20_first-1.png", "report.html"]
    assert (page.parent / "20_first-1.pdf").read_bytes()[:5] == b"%PDF-"
    text = page.read_text(encoding="utf-8")
    index = text[: text.index("A claim")]
    assert "runs in mine" in index
    assert "<li>KL is better: the opposite</li>" in index, "the numbers are below"
    assert "<li>It is: not decided</li>" in index
    assert "and elsewhere" not in index, "without a verdict, the first line"
    assert index.index("The verdicts") < index.index("runs in mine")
    for heading in ("About-20_first", "About-21_second"):
        assert f'href="#{heading}"' in index
        assert f'id="{heading}"' in text
    assert "<script>alert" not in text
    assert "<b>bold" not in index
    assert text.count("<img") == 1
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "plt.plot" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("_in_forks")
def test_a_failing_notebook_does_not_stop_the_others(tmp_path):
    good = notebook(tmp_path, "21_good", ("print(6 * 7)", "verdict"))
    bad = notebook(tmp_path, "20_bad", ("1 / 0",))
    with pytest.raises(ClamkitError, match="1 of 2 notebooks failed.*20_bad: ZeroDivisionError"):
        report.write([bad, good], folder=tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "42" in text
    assert "failed: ZeroDivisionError" in text


@pytest.mark.slow
@pytest.mark.usefixtures("_in_forks")
def test_the_page_goes_where_it_is_asked_for_and_begins_with_what_was_found(tmp_path):
    found, other = notebook(tmp_path, "05_found"), notebook(tmp_path, "20_other")
    page = report.write([found, other], folder=tmp_path / "out", page=tmp_path / "new" / "x.html")
    assert page == tmp_path / "new" / "x.html"
    assert not list((tmp_path / "out").iterdir())
    text = page.read_text(encoding="utf-8")
    assert text.index("A claim") < text.index("The verdicts") < text.rindex("A claim")


def test_bad_input(tmp_path):
    with pytest.raises(ClamkitError, match="unknown analysis notebook '20_fairness'.*20_fairness_tables"):
        report.analysis_notebooks(["20_fairness"])
    (tmp_path / "file").touch()
    for given in ({"folder": tmp_path / "file"}, {"folder": tmp_path, "page": tmp_path / "file" / "page.html"}):
        with pytest.raises(ClamkitError, match="cannot write .*give another folder"):
            report.write([], **given)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can write")
def test_a_folder_that_cannot_be_written_to_is_told_before_a_notebook_is_executed(tmp_path, monkeypatch):
    executed = []
    monkeypatch.setattr(report, "_execute", lambda path, runs: executed.append(path))
    with pytest.raises(ClamkitError, match="cannot write /proc/page.html .*give another folder"):
        report.write([tmp_path / "20_first.ipynb"], folder=tmp_path, page=Path("/proc/page.html"))
    assert executed == []


def test_the_analysis_notebooks_need_no_script_for_formulas():
    for path in report.analysis_notebooks():
        for cell in nbformat.read(path, 4).cells:
            assert cell.cell_type != "markdown" or "$" not in cell.source, path.stem


@pytest.mark.slow
def test_the_command(tmp_path):
    """A real analysis notebook on committed results: its page and figures."""
    words = [sys.executable, "-m", "clamkit", "report", "21_fairness_over_training", "--out", str(tmp_path / "out")]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    said = ended.stdout
    assert not ended.stderr, "no warnings"
    assert said.count(str(tmp_path / "out")) == 2, "the page, and the folder of the figures"
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".html", ".png", ".pdf"}
