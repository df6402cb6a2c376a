"""The site: what its build refuses, the pages it makes, and that all of it can be built."""

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

import clamkit
from clamkit.methods.specs import METHODS

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs"))

import api_pages  # noqa: E402
import build_site as build  # noqa: E402
import method_pages  # noqa: E402
import site_checks as checks  # noqa: E402

# ------------------------------------------------------------------------------------------------- what is refused


def notebook(path: Path, *counts: int | None, error: bool = False, text: str = "# Title") -> Path:
    outputs = [{"output_type": "error", "ename": "E", "evalue": "", "traceback": []}] if error else []
    cells = [{"cell_type": "markdown", "source": [text], "metadata": {}}]
    cells += [{"cell_type": "code", "source": "1", "execution_count": count, "outputs": outputs} for count in counts]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    return path


def test_notebooks_must_be_executed(tmp_path):
    assert checks.unexecuted(notebook(tmp_path / "a.ipynb", 1, 2, 3)) == []
    for counts in ((1, None), (2, 1), (1, 3)):
        (fault,) = checks.unexecuted(notebook(tmp_path / "bad.ipynb", *counts))
        assert fault.startswith("bad.ipynb is not executed from top to bottom")
        assert "refresh.py bad" in fault
    (fault,) = checks.unexecuted(notebook(tmp_path / "failed.ipynb", 1, error=True))
    assert fault.startswith("failed.ipynb ends a cell with an error")


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("other.md", None),
        ("other.md#a-second-heading", None),
        ("#first-here", None),
        ("other.ipynb", None),
        ("made.md#anything", None),
        ("https://example.org/x#y", None),
        ("mailto:a@example.org", None),
        ("gone.md", "there is no file for the link gone.md"),
        ("other.md#no-such", "other.md has no heading for the link other.md#no-such"),
        ("#no-such", "page.md has no heading for the link #no-such"),
        ("http://example.org", "not an https address"),
        ("https://localhost/x", "no name of a host in it"),
        ("htps://example.org", "not an https address"),
        ("mailto:nobody", "no e-mail address"),
    ],
)
def test_links(tmp_path, link, fault):
    (tmp_path / "other.md").write_text("# One\n\n## A `second`, heading!\n\n```\n# no such\n```\n", encoding="utf-8")
    notebook(tmp_path / "other.ipynb", 1)
    page = tmp_path / "page.md"
    page.write_text(f"# First here\n\n[some `text`]({link}) and `[code](nowhere.md)`\n\n```\n[x](no.md)\n```\n")
    found = checks.broken_links(page, [tmp_path / "made.md"])
    assert found == [] if fault is None else len(found) == 1 and found[0].startswith("page.md: ") and fault in found[0]
    if fault:
        same = checks.broken_links(notebook(tmp_path / "n.ipynb", 1, text=f"# First here\n[a]({link})"))
        assert [line.removeprefix("n.ipynb") for line in same] == [
            line.removeprefix("page.md").replace("page.md", "n.ipynb") for line in found
        ]


@pytest.mark.slow
def test_every_page_of_the_project_links_to_what_is_there():
    made = [ROOT / name for name in build.generated()]
    assert build.faults_of_sources(ROOT, made) == []
    assert len(checks.LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) > 40, "the check sees links"


def site(folder: Path, body: str, css: str = "") -> Path:
    (folder / "_static").mkdir()
    (folder / "_static" / "style.css").write_text(css)
    (folder / "other.html").write_text("<h1 id='here'>x</h1>")
    (folder / "index.html").write_text(f"<html><head>{body}</head></html>")
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<script src="//cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="https://example.org/x.css">',
        '<link rel="preload" as="font" href="https://example.org/x.woff2">',
        '<img src="https://example.org/x.png">',
        '<iframe src="https://example.org/"></iframe>',
        "<p style=\"background: url('https://example.org/x.png')\">",
    ],
)
def test_nothing_is_loaded_from_elsewhere(tmp_path, body):
    (fault,) = checks.faults_of_site(site(tmp_path, body))
    assert fault.startswith("index.html loads ")
    assert fault.endswith("from another host")


def test_style_sheets_load_nothing_from_elsewhere(tmp_path):
    css = "@font-face {src: url(https://example.org/a.woff2)} @import 'https://example.org/b.css'; a {b: url(c.png)}"
    found = checks.faults_of_site(site(tmp_path, "", css))
    assert [fault.split()[2] for fault in found] == ["https://example.org/a.woff2", "https://example.org/b.css"]


def test_links_inside_a_site(tmp_path):
    good = '<a href="other.html#here">a</a> <a href="https://example.org/">b</a> <link rel="canonical" href="https://x.org/">'
    bad = '<a href="gone.html">c</a> <a href="other.html#gone">d</a> <img src="gone.png"> <a href="#gone">e</a>'
    found = checks.faults_of_site(site(tmp_path, good + bad))
    assert found == [
        "index.html: there is nothing at gone.html",
        "index.html: there is no place other.html#gone",
        "index.html: there is no place #gone",
        "index.html: there is nothing at gone.png",
    ]


def test_a_fault_ends_the_build_with_its_name(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(build, "use_packages", lambda: None)
    monkeypatch.setattr(build.site_checks, "unexecuted", lambda path: [f"{path.name} is not executed"])
    assert build.main(["--out", str(tmp_path / "site")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("the site is not built: ")
    assert "00_start_here.ipynb is not executed" in said


def test_without_its_packages_the_build_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(build, "PACKAGES", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "jupyter_book", None)
    assert build.main(["--out", str(tmp_path / "site")]) == 1
    said = capsys.readouterr().err
    assert "call `make docs`" in said
    assert "-r requirements-docs.lock" in said


# ---------------------------------------------------------------------------------------------------- the pages


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return build.generated()


@pytest.mark.parametrize("name", METHODS)
def test_each_method_has_a_page(pages, name):
    page = pages[f"docs/methods/{name}.md"]
    assert page.startswith(f"# {METHODS[name].label}: `{name}`\n\n{METHODS[name].about}\n\n$$\n")
    headings = re.findall(r"^##+ (.*)$", page, re.M)
    assert headings == [
        "In the table of games",
        "Settings",
        "Cost",
        "Pitfalls",
        "Our results",
        *method_pages.REGIMES,
        "Source",
    ]
    for setting in METHODS[name].settings:
        assert f"| `{setting}` |" in page
    assert f"[`{name}`](methods/{name}.md)" in pages["docs/methods.md"]


def test_settings_of_a_page_are_those_of_the_paper(pages):
    paper = "0.98, 0.9 on CIFAR-10, 0.95 on Mini-ImageNet, 0.998 on ImageNet"
    assert f"| {paper}; in the released code 0.95 on Fashion-MNIST |" in pages["docs/methods/ggf.md"]
    assert "| 0; in the released code 50 on Mini-ImageNet, 30 on ImageNet |" in pages["docs/methods/clam_kl.md"]
    assert "| 2.5; in the released code 2 |" in pages["docs/methods/pw.md"]


def test_results_of_a_page_against_a_case_worked_by_hand(tmp_path):
    """Two seeds, two bounds: means of a seed first, then over seeds; differences 2 and 4 points: 3 ± t·√2/√2."""
    folder = tmp_path / "data" / "results"
    folder.mkdir(parents=True)
    rows = [
        f"{method},{bound},{seed},1.0,{base + gain * seed / 100},0.1,0.5"
        for method, base, gain in (("normal", 0.80, 0), ("clam", 0.82, 2))
        for bound in (0.3, 1.0)
        for seed in (0, 1)
    ]
    (folder / "g.csv").write_text("\n".join(["method,strength,seed,tau,average,std,worst", *rows]))
    grid = method_pages.read_grid(tmp_path, "g")
    ((label, bounds, seeds, average, *_),) = method_pages.result_lines("clam", "Images", "g", {"g": grid})
    assert (label, bounds, seeds) == ("Images (`g`)", "0.3, 1", "2")
    assert average == "83.0 ± 1.4<br>+3.0\xa0[−9.7,\xa0+15.7]"  # t of 1 degree of freedom, 12.706, times 1.41/√2


def test_runs_that_the_findings_count_are_on_the_page_of_their_method(pages):
    """Each method of the table of equal effort, by the name of its setting there."""
    effort = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8").split("<!-- effort -->")[1]
    by_label = {method.label: name for name, method in METHODS.items()}
    told = [row.split(" | ")[:4] for row in effort.splitlines() if row.startswith("| ") and "=" in row]
    assert len(told) == 8
    for label, setting, average, _ in told:
        (row,) = (
            line for line in pages[f"docs/methods/{by_label[label[2:]]}.md"].splitlines() if "small_chosen" in line
        )
        assert setting == "gamma=1.0" or setting.partition("=")[2] in row
        assert average.partition(" ")[0].lstrip("+−") in row
    assert "small_average" in pages["docs/methods/fixed.md"]


def test_what_rounds_to_zero_has_no_sign_on_a_page():
    """Means of −0.04 and +0.04 points; t of 1 degree of freedom is 12.706, times √2·0.04/√2 is 0.5."""
    index = pd.MultiIndex.from_product([[0.3], [0, 1]], names=["strength", "seed"])
    assert method_pages.difference(pd.Series([-0.0004, 0.0004], index)) == "<br>0.0\xa0[−0.5,\xa0+0.5]"
    assert method_pages.difference(pd.Series([-0.0004, -0.0004], index)) == "<br>0.0\xa0[0.0,\xa00.0]"
    assert method_pages.difference(pd.Series([-0.0004], index[:1])) == "<br>0.0"


def test_the_example_on_the_theory_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(encoding="utf-8"), re.S)
    names: dict = {}
    exec(code, names)
    assert names["game"].weights[-1].argmax() == 1, "the class that is worst"


def test_the_table_of_contents_has_every_page(pages):
    toc = yaml.safe_load(build.table_of_contents(pages))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    listed = {toc["root"], *(chapter["file"] for chapter in chapters)}
    listed |= {section["file"] for chapter in chapters for section in chapter.get("sections", [])}
    own = {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")}
    notebooks = {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    made = {name.removesuffix(".md") for name in pages}
    assert own | notebooks | made | {"CONTRIBUTING", "CHANGELOG"} <= listed


# ------------------------------------------------------------------------------------------------- the reference


def test_the_reference_has_every_public_name(pages):
    for name in clamkit.__all__:
        assert re.search(rf"(auto\w+:: clamkit\.{name}|py:data:: {name})(\(.*\))?\n", pages["docs/api.md"]), name


@pytest.mark.parametrize("name", api_pages.CONSTANTS)
def test_each_name_without_a_docstring_has_an_example_that_runs(name):
    example = doctest.DocTestParser().get_doctest(
        api_pages.CONSTANTS[name], {name: getattr(clamkit, name)}, name, "", 0
    )
    assert re.search(rf"\b{name}\b", example.examples[0].source)
    assert doctest.DocTestRunner().run(example) == (0, 1)


def test_the_reference_has_every_setting_of_a_run(pages):
    for name, field in clamkit.RunConfig.model_fields.items():
        assert f"| `{name}` |" in pages["docs/api.md"]
        assert field.description in pages["docs/api.md"]


def test_docstrings_become_restructured_text():
    text = """w ← w·exp(−τv) for **options and `a_b`.

    a, b  what it is
          and more_
    c     another

    A line with |v| and x_.

    >>> 1 + 1
    2
    """
    assert api_pages.as_rest(text) == (
        "w ← w·exp(−τv) for \\*\\*options and ``a_b``.\n\na, b\n   what it is and more\\_\nc\n   another\n\n"
        "A line with \\|v\\| and x\\_.\n\n>>> 1 + 1\n2\n"
    )


# ---------------------------------------------------------------------------------------------------- the build


@pytest.fixture(scope="module")
def built() -> Path:
    """The site as it is now, in build/site: pages that have not changed since `make docs` are not built anew."""
    if not build.PACKAGES.is_dir():
        pytest.skip("the site's packages are not installed: make docs")
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "build_site.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return ROOT / "build" / "site"


@pytest.mark.slow
def test_the_site_is_built_whole_and_works_offline(built):
    assert checks.faults_of_site(built) == []
    assert "url=docs/start.html" in (built / "index.html").read_text()
    theory = (built / "docs" / "theory.html").read_text()
    assert "_static/mathjax/tex-chtml.js" in theory
    assert (
        built / "_static" / "mathjax" / "output" / "chtml" / "fonts" / "woff-v2" / "MathJax_Main-Regular.woff"
    ).is_file()
    assert "data:image/png" in (built / "notebooks" / "05_what_we_found.html").read_text() or list(
        (built / "_images").glob("*.png")
    )
    index = (built / "searchindex.js").read_text()
    assert "docs/methods/clam_kl" in index
    assert re.search(r'"?simplex"?:', index)
