"""The built site in a real browser: search finds pages, formulas are set, a phone and dark mode show it all.

Nothing is fetched from elsewhere: `new_page` answers other hosts with nothing and fails on errors of the console.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make extras")
expect = playwright.expect

ROOT = Path(__file__).resolve().parents[2]
BUILT, PACKAGES = ROOT / "build" / "site", Path(sys.prefix) / "docs"
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
PAGES = ("docs/start", "docs/findings", "docs/methods/clam_kl", "docs/theory", "notebooks/24_augmentation_curves")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def built() -> Path:
    """The site as it is now; only pages that have changed are built anew."""
    if not PACKAGES.is_dir():
        pytest.skip("the site's packages are not installed: make docs")
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "build_site.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return BUILT


@pytest.fixture
def address(built, serve_folder) -> str:
    return serve_folder(built)


def test_search_finds_a_method_and_a_word_of_the_theory(address, new_page):
    page = new_page()
    for word, found in (("GroupDRO", "docs/api.html#clamkit.GroupDRO"), ("Schur-concave", "docs/theory.html")):
        page.goto(f"{address}/search.html?q={word}")
        first = page.locator("ul.search li a").filter(has_text=re.compile(".")).first
        expect(first).to_be_visible()
        places = page.locator("ul.search li a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert any(found in place for place in places), places


def test_formulas_are_set_and_the_first_page_is_found(address, new_page):
    page = new_page()
    page.goto(address)
    page.wait_for_url("**/docs/start.html")
    page.goto(f"{address}/docs/theory.html")
    expect(page.locator("mjx-container").first).to_be_visible()
    assert page.locator("mjx-merror").count() == 0


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone_and_dark_mode(address, new_page, name):
    phone = new_page(**PHONE)
    phone.goto(f"{address}/{name}.html")
    expect(phone.locator("article h1").first).to_be_visible()
    wider = phone.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 1, f"{name} is {wider} px wider than a phone"
    dark = new_page(color_scheme="dark")
    dark.goto(f"{address}/{name}.html")
    shade = dark.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", shade)[:3])) < 60, shade
