"""docs/game in a real browser: the numbers of clamkit.theory, keys, mouse and finger, presets, phone and dark."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: pip install 'clamkit[notebooks]'")

from helpers import players

from .conftest import PATIENCE
from .game_reference import assert_same, random_settings, theory

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = (ROOT / "docs" / "game" / "index.html").as_uri()
FASHION = {"Shirt": 6, "T-shirt/top": 0, "Trouser": 1}  # the page's three classes, and their labels
FIRST_SEEDS = range(5)
TWO_FRAMES = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"

pytestmark = pytest.mark.browser


def opened(page, preset: str = "convergence"):
    """The page, opened from its file as by a double click; it asks for its own four files and nothing else."""
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{ADDRESS}#{preset}")
    page.wait_for_function("() => document.getElementById('numbers').textContent.startsWith('Round')")
    folder = ADDRESS.removesuffix("index.html")
    assert {url.removeprefix(folder).split("#")[0] for url in asked} == {"index.html", "game.js", "page.js", "game.css"}
    return page


def state(page) -> dict:
    """What is set and where the game stands, as the page has it."""
    return page.evaluate("() => ({...Page.settings(), now: Number(document.getElementById('round').value)})")


def centre(page, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_fifty_games_are_those_of_the_theory(page):
    """Every network and projection; what is written is what was computed."""
    chosen = random_settings(50, seed=0)
    shown = opened(page).evaluate(
        """chosen => chosen.map((one) => {
            Page.change({...one, rounds: 40}); Page.change(one);
            return [Page.game(), document.getElementById("numbers").textContent, Page.settings()] })""",
        chosen,
    )
    whole = 0
    for one, (found, text, settings) in zip(chosen, shown, strict=True):
        used = one | {"start": settings["start"]}
        np.testing.assert_allclose(used["start"], np.maximum(one["start"], 0.001), atol=2e-3)
        whole += assert_same(used, found)
        last = found["played"][-1]
        assert f"Round {one['rounds']} of {one['rounds']}" in text
        assert "weights w: " + ", ".join(f"{w:.3f}" for w in last["w"]) in text
        assert f"average regret: {last['regret']:.4f}".replace("-", "−").replace("−0.0000", "0.0000") in text
    assert whole >= 45


def test_presets_show_what_they_promise(page):
    opened(page)
    played = {}
    for name in ("convergence", "oscillation", "trap", "fashion_mnist"):
        page.evaluate("name => Page.choose(name, false)", name)
        assert page.locator("#note").inner_text()
        assert page.locator(f"#choose-{name}").get_attribute("aria-pressed") == "true"
        played[name] = theory(state(page))
    moves = {name: np.abs(found["w"][-1] - found["w"][-2]).max() for name, found in played.items()}
    assert moves["convergence"] < 1e-6
    assert moves["oscillation"] > 0.3
    page.evaluate("() => Page.choose('trap', false)")
    trap, promised = state(page), players.stated_bound(3, 2000, 1)
    assert trap["tau"] == pytest.approx(players.tau_paper(3, 2000, 1))
    assert played["trap"]["regret"][-1] > promised > theory(trap | {"projection": "kl"})["regret"][-1]
    assert f"at most {promised:.4f}" in page.locator("#numbers").inner_text()
    page.locator("#projection").select_option("kl")
    assert "below its bound" in page.locator("#numbers").inner_text()


def test_fashion_mnist_is_measured(page):
    """The accuracies are those of data/results, and the page says where they are from."""
    runs = pd.read_csv(ROOT / "data" / "results" / "mini_crop.csv").query("crop_lower_bound == 0.3")
    history = pd.read_parquet(ROOT / "data" / "results" / "mini_crop.parquet").query("epoch == 15")
    measured = {}
    for method in ("normal", "clam"):
        chosen = runs[(runs["method"] == method) & runs["seed"].isin(FIRST_SEEDS)]
        assert len(chosen) == len(FIRST_SEEDS)
        of_class = history[history["run"].isin(chosen["run"])].groupby("class")["test_accuracy"].mean()
        measured[method] = of_class[list(FASHION.values())].astype(float).round(2).tolist()
    settings = state(opened(page, "fashion_mnist"))
    assert settings["names"] == list(FASHION)
    assert settings["accuracies"] == measured["normal"]
    note = page.locator("#note").inner_text()
    assert "data/results/mini_crop" in note
    assert "ended at {:.2f}, {:.2f} and {:.2f}".format(*measured["clam"]) in note


def test_keys(page):
    opened(page)
    page.locator("#tau").press("ArrowRight")
    assert state(page)["tau"] == pytest.approx(10**0.05)
    page.locator("#v1").press("ArrowLeft")
    assert state(page)["accuracies"] == pytest.approx([0.3, 0.59, 0.9])
    page.keyboard.press(" ")
    assert page.locator("#play").inner_text() == "Pause"
    page.wait_for_function(
        "() => { const now = Number(document.getElementById('round').value); return now > 2 && now < 60 }"
    )
    page.keyboard.press(" ")
    assert page.locator("#play").inner_text() == "Play"
    stopped = state(page)["now"]
    page.locator("#step").click()
    assert state(page)["now"] == stopped + 1
    page.locator("#triangle").press("ArrowUp")
    assert state(page)["start"] == pytest.approx([1 / 3 - 0.005, 1 / 3 - 0.005, 1 / 3 + 0.01])
    page.keyboard.press("r")
    assert (state(page)["now"], state(page)["start"]) == (1, pytest.approx([1 / 3] * 3))
    page.locator("#projection").press("r")
    assert state(page)["projection"] == "released", "letters choose in a list, and do nothing else there"


def test_play_ends_and_begins_again(page):
    opened(page)
    page.evaluate("() => Page.change({rounds: 20})")
    page.locator("#play").click()
    page.wait_for_function("() => document.getElementById('play').textContent === 'Play'", timeout=PATIENCE)
    assert state(page)["now"] == 20
    assert page.locator("#weights g path").first.get_attribute("d").count("L") == 19


def test_the_mouse_moves_the_start(page):
    opened(page)
    (x, y), corner = centre(page, "#start"), centre(page, "#allowed")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 40, y + 10, steps=4)
    page.mouse.up()
    moved = state(page)["start"]
    assert moved[0] > 0.4
    assert min(moved) >= 1 / 6 - 1e-12, "it stays in the area"
    assert page.evaluate("() => Page.game().played[0].w") == moved
    assert centre(page, "#start") != pytest.approx((x, y), abs=5)
    assert corner == centre(page, "#allowed"), "the area stays where it is"


def test_a_finger_moves_the_start(new_page):
    phone = opened(new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True))
    phone.locator("#triangle").scroll_into_view_if_needed()
    x, y = centre(phone, "#start")
    phone.touchscreen.tap(x + 30, y + 10)
    tapped = state(phone)["start"]
    assert tapped[1] > 0.4
    phone.evaluate("() => Page.choose('trap', true)")  # plays: Chromium without a screen passes touches on with frames
    phone.evaluate(TWO_FRAMES)
    x, y = centre(phone, "#start")
    touch(phone, (x, y), (x + 20, y + 10), (x + 40, y + 20))
    dragged = state(phone)["start"]
    assert dragged[1] > 0.4, "the ring follows the finger"
    touch(phone, (x - 80, y + 70), (x - 80, y + 30), (x - 80, y - 130))
    assert state(phone)["start"] == dragged, "a finger that scrolls over the triangle leaves the start alone"


def touch(page, *places: tuple[float, float]) -> None:
    """A finger goes from place to place, a frame drawn at each: a busy Chromium drops moves between two frames."""
    session = page.context.new_cdp_session(page)
    for kind, (x, y) in zip(["touchStart", *["touchMove"] * (len(places) - 1)], places, strict=True):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
        page.evaluate(TWO_FRAMES)
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.evaluate(TWO_FRAMES)


@pytest.mark.parametrize("width", [320, 390, 760, 1280])
def test_it_fits(new_page, width):
    page = opened(new_page(viewport={"width": width, "height": 844}), "fashion_mnist")
    for projection in ("euclidean", "released", "best_response"):
        page.locator("#projection").select_option(projection)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    small = page.evaluate(
        "() => [...document.querySelectorAll('button, select')].filter((one) => one.offsetHeight < 40).length"
    )
    assert small == 0, "large enough for a finger"


def test_dark_and_labelled(new_page):
    page = opened(new_page(color_scheme="dark"))
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == "rgb(255, 255, 255)" != dark
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input, select, svg[role], button')].filter((one) =>
            !(one.labels?.[0]?.textContent.trim() || one.textContent.trim() || one.ariaLabel)).map((one) => one.id)"""
    )
    assert nameless == []
    page.emulate_media(reduced_motion="reduce")
    page.reload()
    page.locator("#choose-oscillation").click()
    assert (state(page)["now"], page.locator("#play").inner_text()) == (60, "Play"), "no motion unasked"


def test_inside_a_page_of_the_site(page, tmp_path, serve_folder):
    """As docs/game.md shows it: as high as it needs, light or dark as the site is."""
    embedded = (ROOT / "docs" / "game.md").read_text(encoding="utf-8").split("<iframe")[1].split("</iframe>")[0]
    (tmp_path / "index.html").write_text(
        f'<!doctype html><html data-theme="dark"><title>site</title><body><iframe{embedded}</iframe></body></html>'
    )
    (tmp_path / "game").symlink_to(ROOT / "docs" / "game")
    page.goto(f"{serve_folder(tmp_path)}/index.html")
    frame = page.frame_locator("iframe")
    frame.locator("#numbers").wait_for()
    body = frame.locator("body")
    height = body.evaluate("body => [innerHeight, body.scrollHeight]")
    assert height[0] == pytest.approx(height[1], abs=2)
    dark = body.evaluate("body => getComputedStyle(body).backgroundColor")
    page.evaluate("() => { document.documentElement.dataset.theme = 'light' }")
    page.wait_for_timeout(100)
    assert body.evaluate("body => getComputedStyle(body).backgroundColor") == "rgb(255, 255, 255)" != dark


def test_a_picture_of_it(new_page, shoot):
    page = opened(new_page(viewport={"width": 1240, "height": 690}), "fashion_mnist")
    shoot(page, "game_page")
