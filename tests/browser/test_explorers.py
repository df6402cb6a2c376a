"""The explorers in a real browser, in JupyterLab and as voila pages: sliders move, pictures and numbers follow."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import nbformat
import pytest

from clamkit import RunConfig, RunStore, paths, train

from .conftest import PATIENCE

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make extras")
expect = playwright.expect

ROOT = Path(__file__).resolve().parents[2]
RUNS = paths.runs()  # before the tests' own folders take its place
NOTEBOOKS = ("30_explore_game", "31_explore_runs", "32_diagnose")

pytestmark = pytest.mark.browser


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict:
    """What the servers see: the notebooks without outputs, Jupyter's settings, and the project's runs or two short."""
    folder = tmp_path_factory.mktemp("served")
    for name in NOTEBOOKS:
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
        for cell in code_cells(notebook):
            cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, folder / f"{name}.ipynb")
    shutil.copytree(ROOT / "notebooks" / "helpers", folder / "helpers")
    settings = folder.parent / "settings"
    (settings / "@jupyterlab/apputils-extension").mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "@jupyterlab/apputils-extension/notification.jupyterlab-settings").write_text(json.dumps(quiet))
    runs = RUNS
    if not RunStore(RUNS).runs():
        runs = folder.parent / "runs"
        for method in ("normal", "clam"):
            train(RunConfig(method=method, epochs=2), runs=runs)
    own = {f"JUPYTER_{kind}_DIR": str(folder.parent / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTERLAB_WORKSPACES_DIR": str(folder.parent / "workspaces")}
    env = os.environ | own | {"CLAMKIT_RUNS": str(runs), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("CLAMKIT_PROGRESS", None)  # someone looks
    return {"cwd": folder, "env": env}


@pytest.fixture(scope="session")
def serve(environment, tmp_path_factory):
    """serve("lab" or "voila") -> (address, token) of a server that is up; each is started once."""
    started = {}

    def start(kind: str) -> tuple[str, str]:
        if kind in started:
            return started[kind][1:]
        library = {"lab": "jupyterlab", "voila": "voila"}[kind]
        pytest.importorskip(library, reason=f"{library} is not installed: make extras")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        token, address = secrets.token_hex(16), f"http://127.0.0.1:{port}"
        command = {
            "lab": ["jupyterlab", "--no-browser", f"--ServerApp.port={port}", f"--IdentityProvider.token={token}"],
            "voila": ["voila", ".", "--no-browser", f"--port={port}", f"--token={token}"],
        }[kind]
        if kind == "lab" and os.geteuid() == 0:
            command.append("--allow-root")
        log = open(tmp_path_factory.mktemp("log") / kind, "w")  # noqa: SIM115
        process = subprocess.Popen([sys.executable, "-m", *command], **environment, stdout=log, stderr=log)
        started[kind] = process, address, token
        deadline = time.monotonic() + PATIENCE / 1000
        while not answers(address):
            assert process.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.3)
        return address, token

    yield start
    for process, *_ in started.values():
        process.terminate()
        process.wait(30)


def answers(address: str) -> int:
    try:
        return urlopen(address, timeout=5).status
    except HTTPError as error:
        return error.code
    except (URLError, OSError):
        return 0


def open_in_lab(page, serve, name: str) -> None:
    """Open a notebook, hide what is beside it, and run all cells."""
    address, token = serve("lab")
    page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={token}")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.keyboard.press("Control+b")
    page.get_by_text("| Idle").first.wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def open_in_voila(page, serve, name: str) -> None:
    address, token = serve("voila")
    page.goto(f"{address}/voila/render/{name}.ipynb?token={token}")


def moved(page, description: str, key: str, numbers: str = "round") -> None:
    """Move a slider by a key: the picture and the numbers (the text that starts so) must follow."""
    picture, line = "img.widget-image", page.locator(".widget-html-content", has_text=re.compile(f"^{numbers}"))
    before = page.locator(picture).get_attribute("src"), line.inner_text()
    page.locator(".widget-slider", has_text=description).locator(".noUi-handle").press(key)
    page.wait_for_function(f"before => document.querySelector('{picture}').src != before", arg=before[0])
    expect(line).not_to_have_text(before[1], timeout=PATIENCE)


def to_the_explorer(page) -> None:
    page.locator(".jp-OutputArea-output .widget-box").first.evaluate("box => box.scrollIntoView()")


def check_all_ran(page, kind: str, notebook: Path) -> list:
    """No cell ended in an error. In JupyterLab: save, and look at the file; returns the outputs of its cells."""
    if kind == "voila":
        assert page.get_by_text(re.compile("Traceback|error when executing")).count() == 0
        return []
    deadline = time.monotonic() + PATIENCE / 1000
    while True:
        page.keyboard.press("Control+s")
        cells = code_cells(nbformat.read(notebook, 4))
        if all(cell.execution_count for cell in cells):
            break
        assert time.monotonic() < deadline
        page.wait_for_timeout(500)
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    return outputs


OPEN = {"lab": open_in_lab, "voila": open_in_voila}


@pytest.mark.parametrize("kind", OPEN)
def test_the_game(page, serve, environment, shoot, kind):
    OPEN[kind](page, serve, "30_explore_game")
    page.locator("img.widget-image").wait_for()
    moved(page, "step size", "ArrowLeft")
    moved(page, "accuracy 1", "ArrowRight")
    page.locator(".widget-dropdown", has_text="projection").locator("select").select_option("kl")
    page.locator(".jupyter-widgets.widget-play button").first.click()
    expect(page.get_by_text(re.compile(r"^round [1-9]?[0-9]$"))).to_be_visible(timeout=PATIENCE)
    page.locator(".jupyter-widgets.widget-play button").first.click()  # pause
    moved(page, "up to round", "End")
    expect(page.get_by_text("round 200", exact=True)).to_be_visible(timeout=PATIENCE)
    check_all_ran(page, kind, environment["cwd"] / "30_explore_game.ipynb")
    to_the_explorer(page)
    shoot(page, f"game_{kind}")


@pytest.mark.parametrize("kind", OPEN)
def test_the_runs(page, serve, environment, shoot, kind):
    OPEN[kind](page, serve, "31_explore_runs")
    page.locator("img.widget-image").wait_for()
    moved(page, "epoch", "ArrowLeft", "epoch")
    page.get_by_role("button", name="export this view").click()
    for suffix, first in (("PNG", b"\x89PNG"), ("CSV", b"method,epoch,class,weight")):
        with page.expect_download() as download:
            page.get_by_role("link", name=f"save as {suffix}").click()
        assert Path(download.value.path()).read_bytes().startswith(first)
    outputs = check_all_ran(page, kind, environment["cwd"] / "31_explore_runs.ipynb")
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == (3 if kind == "lab" else 0), "one of them is the live view, drawn in place"
    to_the_explorer(page)
    shoot(page, f"runs_{kind}")


def upload(page, file: Path, number: int = 0) -> None:
    """Choose a file as a person would."""
    with page.expect_file_chooser() as chooser:
        page.locator("button.widget-upload").nth(number).click()
    chooser.value.set_files(file)


@pytest.mark.parametrize("kind", OPEN)
def test_the_diagnosis(page, serve, environment, shoot, kind, tmp_path):
    """A file whose names are markup, one of another type, one that is too large, and the example along its front."""
    OPEN[kind](page, serve, "32_diagnose")
    said = page.locator(".clamkit-said")
    expect(said).to_contain_text("Choose a file", timeout=PATIENCE)
    names = ["<script>alert(1)</script>", "<b>bold</b>", "plain"]
    rows = [f"{names[i % 3]},{names[i % 3 if i % 5 else 0]}" for i in range(60)]
    (tmp_path / "<i>mine<i>.csv").write_text("\n".join(["label,prediction", *rows]))
    upload(page, tmp_path / "<i>mine<i>.csv")
    frame = page.frame_locator("iframe[title=diagnosis]")
    expect(frame.get_by_text(names[0]).first).to_be_visible(timeout=PATIENCE)
    expect(said).to_contain_text("<i>mine<i>.csv")
    (tmp_path / "notes.txt").write_text("label,prediction")
    upload(page, tmp_path / "notes.txt")
    expect(said).to_contain_text("is no file that can be read here", timeout=PATIENCE)
    (tmp_path / "large.csv").write_bytes(b"0,0\n" * 3_000_000)
    upload(page, tmp_path / "large.csv")
    expect(said).to_contain_text("is larger than 9 MB", timeout=PATIENCE)
    choice = page.locator(".widget-dropdown", has_text="or model").locator("select")
    choice.select_option(label="an example: a linear model of a long tail")
    moved(page, "cost", "ArrowLeft", "\\s*without")
    for name, first in (("biases.json", b"{"), ("classes.csv", b"class,images"), ("diagnosis.html", b"<!")):
        with page.expect_download() as download:
            page.get_by_role("link", name=f"save {name}").click()
        assert Path(download.value.path()).read_bytes().startswith(first), name
    check_all_ran(page, kind, environment["cwd"] / "32_diagnose.ipynb")
    shoot(page, f"diagnose_{kind}")


@pytest.mark.parametrize("kind", OPEN)
def test_nothing_without_the_token(page, serve, kind):
    address, _ = serve(kind)
    place = {"lab": "/lab/tree/30_explore_game.ipynb", "voila": "/voila/render/30_explore_game.ipynb"}[kind]
    page.goto(address + place)
    assert re.search("/login", page.url), page.url
    assert answers(f"{address}/api/kernels") in (403, 404)
