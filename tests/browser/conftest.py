"""A real browser for the tests: Chromium or Chrome on the PATH, or CLAMKIT_BROWSER with its path.

Screenshots go to figures/screens.
"""

import io
import os
import re
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from PIL import Image

from clamkit import paths

SCREENS = paths.figures() / "screens"  # before the tests' own folders take their place
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("CLAMKIT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
PATIENCE = 180_000  # milliseconds; a machine may be busy


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make extras")
    if not BROWSER:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    with playwright.sync_playwright() as started:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=BROWSER, args=sandbox)
        yield opened
        opened.close()


@pytest.fixture
def new_page(browser):
    """new_page(**options of a browser context): errors on its console fail the test; nothing is fetched elsewhere."""
    pages, errors = [], []

    def open_one(**options):
        opened = browser.new_page(**{"viewport": {"width": 1280, "height": 960}, **options})
        pages.append(opened)
        opened.set_default_timeout(PATIENCE)
        opened.route(re.compile(r"^https?://(?!127\.0\.0\.1)"), lambda route: route.fulfill(status=200, body=""))
        opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: errors.append(str(error)))
        return opened

    yield open_one
    for opened in pages:
        opened.close()
    assert not errors


@pytest.fixture
def page(new_page):
    return new_page(accept_downloads=True)


@pytest.fixture
def shoot():
    """shoot(page, name): what the page shows now, as figures/screens/name.png."""

    def save(page, name: str) -> None:
        SCREENS.mkdir(parents=True, exist_ok=True)
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.quantize(256).save(SCREENS / f"{name}.png", optimize=True)  # a third of the bytes

    return save


@pytest.fixture
def serve_folder():
    """serve_folder(folder) -> the address of a server of its files, on this machine alone."""
    servers = []

    def start(folder) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder))
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *given) -> None:
        pass
