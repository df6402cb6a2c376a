"""docs/game/game.js by node, without a browser: the same numbers as clamkit.theory. Skipped where node is missing."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: pip install 'clamkit[notebooks]'")

from clamkit.theory import game, update
from clamkit.theory.sets import LowerBounded
from helpers import players

from .game_reference import NETWORKS, assert_same, max_player, random_settings, set_of, theory

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "game"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(not NODE, reason="node is not on the PATH")


def by_node(expression: str, given: list) -> list:
    """[expression for each `one` of given], where Game is game.js."""
    code = f"""const Game = require({json.dumps(str(FOLDER / "game.js"))});
    const given = JSON.parse(require("fs").readFileSync(0));
    console.log(JSON.stringify(given.map((one) => {expression})));"""
    done = subprocess.run([NODE, "-e", code], input=json.dumps(given), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_reference_is_the_game():
    """From equal weights the reference is `game.play` itself."""
    for chosen in random_settings(40, seed=1, most_classes=6)[1::2]:
        found, S = theory(chosen), set_of(chosen)
        played = game.play(max_player(chosen), S, chosen["tau"], chosen["projection"], chosen["rounds"])
        np.testing.assert_allclose(found["w"], played.weights[:-1], rtol=0, atol=1e-12)
        assert found["regret"][-1] == pytest.approx(game.regret(played), abs=1e-12)
        assert found["bound"][-1] == pytest.approx(game.corrected_bound(S, chosen["tau"], chosen["rounds"]))


@needs_node
@pytest.mark.slow
def test_games_are_those_of_the_theory():
    chosen = random_settings(50, seed=0, most_classes=8)
    found = by_node("Game.play(one)", chosen)
    assert sum(map(assert_same, chosen, found)) >= 45
    for one, numbers in zip(chosen, found, strict=True):
        if numbers["boundHolds"]:
            assert all(at["regret"] <= at["bound"] + 1e-12 for at in numbers["played"]), one


@needs_node
def test_projections_are_those_of_the_theory():
    """Also of points on the edge, of equal entries and of those far outside."""
    rng, given = np.random.default_rng(2), []
    for i in range(300):
        n = int(rng.integers(2, 9))
        x = rng.dirichlet(np.full(n, 0.3)) if i % 3 else rng.permutation(np.eye(n)[0] * 0.9 + 0.1 / n)
        x[1:] *= rng.random(n - 1) > 0.2
        given.append({"x": (x / x.sum()).tolist(), "u": float(rng.integers(0, 20) / 20 / n)})
    found = by_node(f"{list(update.MAPS)}.map((name) => Game.intoSet(one.x, one.u, name))", given)
    for one, maps in zip(given, found, strict=True):
        S, x = LowerBounded(len(one["x"]), one["u"]), np.array(one["x"])
        for projection, w in zip(update.MAPS, maps, strict=True):
            exact = update.into_set(x, S, projection)
            np.testing.assert_allclose(w, exact, rtol=0, atol=1e-12, err_msg=f"{projection} {one}")


@needs_node
def test_theorem_1_and_names():
    lengths = [20, 400, 2000]
    for T, found in zip(lengths, by_node("Game.theorem1(3, one)", lengths), strict=True):
        assert found["tau"] == pytest.approx(players.tau_paper(3, T, 1), abs=1e-15)
        assert found["bound"] == pytest.approx(players.stated_bound(3, T, 1), abs=1e-15)
    assert by_node("[Game.PROJECTIONS, Object.keys(Game.NETWORKS)]", [0]) == [[[*game.PROJECTIONS], [*NETWORKS]]]
    bound_holds = [["kl", 0.1], ["clip", 0.1], ["euclidean", 0], ["released", 1 / 6]]
    not_proven = [["euclidean", 0.1], ["released", 0.1], ["best_response", 0.1]]
    assert by_node("Game.boundHolds(3, one[1], one[0])", bound_holds + not_proven) == [True] * 4 + [False] * 3


@needs_node
def test_an_impossible_game_is_refused():
    chosen = random_settings(1, seed=0)[0]
    wrong = [{"tau": 0}, {"share": 1}, {"rounds": 0}, {"accuracies": [1.2, 0, 0]}]
    tried = "(() => { try { return Game.play(one) } catch (error) { return error.message } })()"
    assert {found[:25] for found in by_node(tried, [chosen | part for part in wrong])} == {"give accuracies in [0, 1]"}


def test_the_page_is_small_and_loads_nothing_from_elsewhere():
    scripts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.js"))]
    assert sum(len(script.splitlines()) for script in scripts) <= 400
    for path in sorted(FOLDER.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?:|fetch\(|XMLHttpRequest|\bimport\b|@import|url\((?!#)", text), path.name
    loaded = re.findall(r'(?:src|href)="([^"]+)"', (FOLDER / "index.html").read_text(encoding="utf-8"))
    assert all(name.startswith("data:") or (FOLDER / name).is_file() for name in loaded)
