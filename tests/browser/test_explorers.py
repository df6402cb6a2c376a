"""The explorers in a real browser, in JupyterLab and as voila pages: sliders move, pictures and numbers follow.

Needs a Chromium or Chrome on the PATH, or CLAMKIT_BROWSER with its path. Screenshots go to figures/screens.
"""

import io
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
from PIL import Image

from clamkit import RunConfig, RunStore, paths, train

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make extras")
expect = playwright.expect

ROOT = Path(__file__).resolve().parents[2]
SCREENS, RUNS = paths.figures() / "screens", paths.runs()  # before the tests' own folders take their place
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("CLAMKIT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
NOTEBOOKS = ("30_explore_game", "31_explore_runs")
PATIENCE = 180_000  # milliseconds; a machine may be busy

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not BROWSER, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH"),
]


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
        deadline = time.monotonic() + 60
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


@pytest.fixture(scope="session")
def browser():
    with playwright.sync_playwright() as started:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=BROWSER, args=sandbox)
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    """A page of 1280 pixels; errors on its console fail the test. What voila would fetch elsewhere is not let out."""
    opened = browser.new_page(viewport={"width": 1280, "height": 960}, accept_downloads=True)
    opened.set_default_timeout(PATIENCE)
    opened.route(re.compile(r"^https?://(?!127\.0\.0\.1)"), lambda route: route.fulfill(status=200, body=""))
    errors = []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert not errors


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


def shoot(page, name: str) -> None:
    """A screenshot of the explorer, from its top."""
    page.locator(".jp-OutputArea-output .widget-box").first.evaluate("box => box.scrollIntoView()")
    SCREENS.mkdir(parents=True, exist_ok=True)
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.quantize(256).save(SCREENS / f"{name}.png", optimize=True)  # a third of the bytes


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
def test_the_game(page, serve, environment, kind):
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
    shoot(page, f"game_{kind}")


@pytest.mark.parametrize("kind", OPEN)
def test_the_runs(page, serve, environment, kind):
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
    shoot(page, f"runs_{kind}")


@pytest.mark.parametrize("kind", OPEN)
def test_nothing_without_the_token(page, serve, kind):
    address, _ = serve(kind)
    place = {"lab": "/lab/tree/30_explore_game.ipynb", "voila": "/voila/render/30_explore_game.ipynb"}[kind]
    page.goto(address + place)
    assert re.search("/login", page.url), page.url
    assert answers(f"{address}/api/kernels") in (403, 404)
