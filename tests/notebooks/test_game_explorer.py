"""The game explorer without a browser: what it computes, what it draws, that every control redraws."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plots.shown import legend, titles

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: pip install 'clamkit[notebooks]'")

from clamkit.errors import ClamkitError
from clamkit.theory import game
from clamkit.theory.sets import LowerBounded
from helpers.game_explorer import PLAYERS, PRESETS, SEQUENCES, Settings, game_explorer, rates, side_by_side
from helpers.theory_figures import CORNERS

from .widgets import controls, pixels


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.02, 0.98), min_size=3, max_size=8),
    st.sampled_from([*PLAYERS, *SEQUENCES]),
    st.floats(0.01, 10),
    st.floats(0, 0.95),
    st.sampled_from(game.PROJECTIONS),
    st.integers(20, 60),
)
def test_curves_end_where_the_game_says(accuracies, payoffs, tau, share, projection, rounds):
    chosen = Settings(tuple(accuracies), payoffs, tau, share, projection, rounds)
    played, last = chosen.play(), chosen.curves().iloc[-1]
    assert last["regret"] == pytest.approx(game.regret(played), abs=1e-12)
    assert last["bound"] == pytest.approx(
        game.corrected_bound(LowerBounded(len(accuracies), share / len(accuracies)), tau, rounds)
    )
    assert chosen.numbers()[f"weight {len(accuracies)}"] == played.weights[rounds - 1, -1]


@given(st.lists(st.floats(0.02, 0.98), min_size=3, max_size=8))
def test_sliders_are_the_accuracies_under_equal_weights(accuracies):
    """The rates are such that an equal share of the effort gives just these accuracies."""
    v, n = np.array(accuracies), len(accuracies)
    assert 1 - np.exp(-rates(v) / n) == pytest.approx(v)
    assert Settings(tuple(accuracies), "accuracies stay", rounds=2).play().payoffs[1] == pytest.approx(v)


def test_unknown_payoffs_are_refused():
    with pytest.raises(ClamkitError, match="Did you mean 'trap'"):
        Settings(payoffs="trpa").play()
    with pytest.raises(ClamkitError, match="rounds=0"):
        Settings(rounds=0).play()


@pytest.mark.parametrize(("n", "upto"), [(3, None), (3, 7), (5, 30)])
def test_the_picture_shows_the_game(n, upto):
    """The lines are the weights and curves up to that round, on axes of the whole game."""
    chosen = Settings((0.3,) * n, "trap", tau=0.1, rounds=40)
    until = upto or 40
    figure = chosen.figure(upto)
    place, weights, value, regret = figure.axes
    expected = chosen.play().weights[:until]
    assert np.array([line.get_ydata() for line in weights.lines]).T == pytest.approx(expected)
    table = chosen.curves().iloc[:until]
    for axis, columns in ((value, ["loss", "mean", "best"]), (regret, ["regret", "bound"])):
        assert np.array([line.get_ydata() for line in axis.lines]).T == pytest.approx(table[columns].to_numpy())
    for axis in (weights, value, regret):
        assert axis.get_xlim() == (0, 40)
        assert axis.get_xlabel() == "round"
        assert axis.get_legend() is not None
    assert regret.get_ylim() == Settings((0.3,) * n, "trap", tau=0.1, rounds=40).figure(1).axes[3].get_ylim()
    if n == 3:
        np.testing.assert_allclose(np.array(place.lines[0].get_data()).T, expected @ CORNERS)
        np.testing.assert_allclose(np.array(place.lines[1].get_data())[:, 0], expected[-1] @ CORNERS)
    else:
        assert [bar.get_height() for bar in place.patches] == pytest.approx(expected[-1])
        assert place.lines[0].get_ydata()[0] == pytest.approx(0.5 / n), "dashes at u_min"


CHOSEN = [
    Settings(tuple(np.linspace(0.1, 0.9, 8))),
    Settings(tuple(np.linspace(0.1, 0.9, 8)), "drift", tau=0.3),
    Settings((0.5, 0.7, 0.9), "random", tau=10),
    *PRESETS.values(),
]


@pytest.mark.parametrize("chosen", CHOSEN, ids=lambda chosen: f"{len(chosen.accuracies)} {chosen.payoffs}")
def test_regret_stays_on_its_axis_and_legends_off_the_lines(chosen):
    """With eight classes regret once fell below, and legends lay on the lines."""
    figure = chosen.figure()
    low, high = figure.axes[3].get_ylim()
    regret = chosen.curves()["regret"]
    assert low <= regret.min() <= regret.max() <= high
    figure.draw_without_rendering()
    for axis in figure.axes[1:]:
        place = axis.get_legend().get_window_extent()
        (title,) = axis.findobj(lambda artist, axis=axis: artist_text(artist) == axis.get_title("left"))
        assert place.y0 >= axis.get_window_extent().y1 - 1
        assert place.y1 <= title.get_window_extent().y0 + 2, "below the title"
        assert place.x1 <= figure.bbox.x1, "within the picture"


def artist_text(artist) -> str:
    return artist.get_text() if hasattr(artist, "get_text") else ""


def test_two_games_side_by_side_are_told_apart():
    games = {name: Settings(payoffs="trap", tau=0.05, rounds=60, projection=name) for name in ("euclidean", "kl")}
    figure = side_by_side(games)
    *places, regret = figure.axes
    assert titles(figure)[:2] == ["euclidean", "kl"]
    lines = {line.get_label(): line for line in regret.lines}
    assert legend(figure) == list(lines)
    for place, (name, chosen) in zip(places, games.items(), strict=True):
        line = lines[f"regret, {name}"]
        np.testing.assert_allclose(line.get_ydata(), chosen.curves()["regret"])
        np.testing.assert_allclose(place.lines[0].get_xydata(), chosen.play().weights[:-1] @ CORNERS)
        assert place.lines[0].get_color() == line.get_color(), "a colour is a projection"
    assert len({line.get_color() for line in lines.values()}) == 3


def test_presets_do_what_they_are_called():
    moves = {name: np.abs(np.diff(chosen.play().weights[-2:], axis=0)).max() for name, chosen in PRESETS.items()}
    assert moves["convergence"] < 1e-6
    assert moves["oscillation"] > 0.3
    trapped, free = PRESETS["trap"].numbers(), replace(PRESETS["trap"], projection="kl").numbers()
    assert trapped["regret"] > trapped["bound"] > free["regret"]


def test_drawing_leaves_the_style_alone():
    before = mpl.rcParams["axes.grid"], mpl.rcParams["figure.constrained_layout.use"]
    assert pixels(Settings(rounds=20).png()).shape == (590, 840, 3)
    assert (mpl.rcParams["axes.grid"], mpl.rcParams["figure.constrained_layout.use"]) == before


@pytest.mark.slow
def test_a_slider_redraws_picture_and_numbers():
    found = controls(game_explorer(Settings(rounds=20)))
    image, numbers = found["Image"].value, found["HTML"].value
    found["step size τ"].value = 0.1
    assert found["Image"].value == Settings(tau=0.1, rounds=20).png() != image
    assert found["HTML"].value != numbers
    assert f"regret {Settings(tau=0.1, rounds=20).numbers()['regret']:+.4f}" in found["HTML"].value


@pytest.mark.slow
def test_every_control_of_the_game_redraws():
    explorer = game_explorer()
    found = controls(explorer)
    image, numbers = found["Image"], found["HTML"]
    moves = {
        "projection": "kl", "accuracy 2": 0.3, "step size τ": 0.1, "floor n·u_min": 0.9, "rounds": 100,
        "up to round": 30, "payoffs": "trap", "classes": 5,
    }  # fmt: skip
    for name, value in moves.items():
        before = image.value, numbers.value
        found[name].value = value
        assert image.value != before[0], name
        assert numbers.value != before[1], name
    assert pixels(image.value).shape == (590, 840, 3)
    assert "accuracy 5" in controls(explorer)
    assert controls(explorer)["accuracy 5"].disabled, "a fixed sequence does not look at the sliders"
    found["rounds"].value = 40
    assert (found["up to round"].max, found["Play"].max) == (40, 40)


@pytest.mark.slow
def test_a_preset_sets_everything():
    """From a game of other size, length and place in time."""
    found = controls(game_explorer(Settings((0.1,) * 5, "drift", 0.3, 0.2, "clip", 100)))
    found["up to round"].value = 30
    for name, chosen in PRESETS.items():
        found[name].click()
        assert found["Image"].value == chosen.png(), name
    assert found["accuracy 1"].disabled
