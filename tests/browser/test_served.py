"""JupyterLab and voila as `make lab` and `make app` start them: who sees what. Names with markup are text everywhere.

Names of classes come from data that somebody else may have made.
"""

import http.client
import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from clamkit import RunConfig, RunStore, train
from clamkit.apps import diagnose_page, status
from clamkit.lab import report
from tests.faults.clusters import free_port

from .conftest import PATIENCE

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make extras")
pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
MARKUP = [
    f'<img src=x onerror="window.pwned={i}"><b id=bold>{name}</b>' for i, name in enumerate(("cat", "dog", "owl"))
]
SECRET = "nobody-may-read-this"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs on a dataset whose name and classes are markup."""
    folder = tmp_path_factory.mktemp("runs")
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    x = rng.integers(0, 255, (60, 12, 12, 1), dtype=np.uint8)
    data = folder / "<b>[red]mine.npz"
    np.savez(data, x_train=x, y_train=y, x_test=x[:30], y_test=y[:30], class_names=np.array(MARKUP))
    for method in ("normal", "clam"):
        train(
            RunConfig(dataset=str(data), method=method, epochs=1, batch_size=20), runs=folder / "runs", progress=False
        )
    return folder / "runs"


@pytest.fixture(scope="module")
def served(tmp_path_factory, runs):
    """served("lab" or "voila") -> (port, token): what the Makefile starts, beside a file that is not to be seen."""
    folder, started = tmp_path_factory.mktemp("project"), {}
    (folder / "secret.txt").write_text(SECRET)
    for place in ("notebooks", "build/app"):
        shutil.copytree(ROOT / "notebooks" / "helpers", folder / place / "helpers")
        (folder / place / "inside.txt").write_text("inside")
        for name in ("30_explore_game", "31_explore_runs"):
            shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", folder / place)
    recipes = (ROOT / "Makefile").read_text()

    def start(kind: str) -> tuple[int, str]:
        if kind not in started:
            command, module = {"lab": ("jupyter lab", "jupyterlab"), "voila": ("voila", "voila")}[kind]
            words = re.search(rf"^\t@\$\(BIN\)/{command} (.*)$", recipes, re.MULTILINE)[1].split()
            words += ["--no-browser", f"--port={(port := free_port())}"]
            words += ["--allow-root"] if kind == "lab" and os.geteuid() == 0 else []
            log = folder.parent / f"{kind}.log"
            env = os.environ | {"CLAMKIT_RUNS": str(runs), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            env |= {f"JUPYTER_{part}_DIR": str(folder.parent / part) for part in ("CONFIG", "DATA", "RUNTIME")}
            with log.open("w") as out:
                line = [sys.executable, "-m", module, *words]
                process = subprocess.Popen(line, cwd=folder, env=env, stdout=out, stderr=out)
            started[kind] = process, port
            deadline = time.monotonic() + PATIENCE / 1000
            while not (token := re.search(r"[?&]token=(\w+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.3)
            started[kind] = process, port, token[1]
        return started[kind][1:]

    start.secret = str(folder / "secret.txt")
    yield start
    for process, *_ in started.values():
        process.terminate()
        process.wait(30)


def get(port: int, path: str, token: str | None = None) -> tuple[int, str]:
    """Status and content; the path as it is, without the tidying that browsers do."""
    for _ in range(100):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path, headers={"Authorization": f"token {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace") + str(answer.headers)
        except ConnectionRefusedError:  # it prints its address a moment before it listens
            time.sleep(0.2)
        finally:
            connection.close()
    raise AssertionError("it does not listen")


PLACES = {
    "lab": ("/lab", "/tree", "/files/inside.txt", "/api/contents", "/api/kernels", "/api/sessions", "/api/terminals"),
    "voila": ("/", "/voila/render/31_explore_runs.ipynb", "/voila/tree", "/voila/files/inside.txt", "/api/kernels"),
}
CLIMBS = ("../", "../../", "..%2f..%2f", "%2e%2e/%2e%2e/", "....//", "/", "%2f", "helpers/../../", "helpers/../../../")
DOORS = (
    "/files/",
    "/api/contents/",
    "/lab/tree/",
    "/voila/files/",
    "/voila/render/",
    "/voila/tree/",
    "/static/",
    "/voila/static/",
)


@pytest.mark.parametrize("kind", PLACES)
def test_a_token_is_asked_for(served, kind):
    port, token = served(kind)
    assert len(token) >= 32
    for place in PLACES[kind]:
        for wrong in (None, "x" * len(token)):
            code, content = get(port, place, wrong)
            assert code in (302, 403, 404), (place, code)
            assert code != 302 or "/login" in content, place
            assert "inside" not in content.replace(place, "").replace("inside.txt", "")
    assert get(port, PLACES[kind][0], token)[0] in (200, 302)


@pytest.mark.parametrize("kind", PLACES)
def test_nothing_outside_its_folder_is_served(served, kind):
    port, token = served(kind)
    assert Path(served.secret).read_text() == SECRET
    for door in DOORS:
        for climb in CLIMBS:
            for file in ("secret.txt", "", "etc/passwd", served.secret):
                content = get(port, f"{door}{climb}{file}", token)[1]
                assert SECRET not in content, (door, climb)
                assert '"secret.txt"' not in content, "a listing"
                assert "root:x:0" not in content, (door, climb)
    if kind == "lab":
        assert get(port, "/files/inside.txt", token)[0] == 200
    else:
        for file in ("inside.txt", "helpers/runs_explorer.py", "31_explore_runs.ipynb"):
            assert get(port, f"/voila/files/{file}", token)[0] in (403, 404), "pages, and nothing beside them"


def as_text(page) -> None:
    """The names stand there as they are, and nothing of them has become an element or has run."""
    assert page.evaluate("window.pwned") is None
    assert page.locator("#bold").count() == 0
    assert page.locator("img[src=x]").count() == 0


def test_names_in_the_page_of_a_diagnosis(page, tmp_path):
    rng = np.random.default_rng(0)
    names = np.array(MARKUP)[np.arange(90) % 3]
    files = []
    for i in range(2):
        said = np.where(rng.random(90) < 0.8 - 0.2 * i, names, MARKUP[i])
        files.append(tmp_path / f"<b id=bold>{i}.csv")
        pd.DataFrame({"label": names, "prediction": said}).to_csv(files[-1], index=False)
    diagnose_page.report(files, tmp_path / "page.html")
    page.goto((tmp_path / "page.html").as_uri())
    assert page.get_by_text(MARKUP[0]).count() > 0
    as_text(page)


def test_names_in_the_explorer_of_runs(page, served):
    port, token = served("voila")
    page.goto(f"http://127.0.0.1:{port}/voila/render/31_explore_runs.ipynb?token={token}")
    page.locator("img.widget-image").first.wait_for()
    playwright.expect(page.locator("option", has_text=MARKUP[0]).first).to_be_attached(timeout=PATIENCE)
    as_text(page)


def test_names_in_the_report_and_the_status(page, runs, tmp_path):
    code = "from clamkit import RunStore\n\nrun = RunStore().runs()[0]\nprint(run.class_names)\nrun.wide('weight').T"
    cells = [nbformat.v4.new_markdown_cell("# Names"), nbformat.v4.new_code_cell(code)]
    cells[1].metadata["tags"] = ["verdict"]
    notebook = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    nbformat.write(notebook, tmp_path / "20_names.ipynb")
    written = report.write([tmp_path / "20_names.ipynb"], runs=runs, folder=tmp_path / "figures")
    page.goto(written.as_uri())
    assert page.get_by_text(MARKUP[0]).count() >= 2, "in the table and in what the cell printed"
    as_text(page)
    shown = Console(file=io.StringIO(), width=120)
    for table in status.list_runs(RunStore(runs).runs(), runs):
        shown.print(table)
    assert "_b__red_mine" in shown.file.getvalue()
