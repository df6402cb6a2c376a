"""The game under sliders: `game_explorer()` for JupyterLab and voila; `side_by_side` and `Settings(...).png()` without.

Its sibling `runs_explorer` explores finished runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

import ipywidgets as widgets
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit.checks import positive_int
from clamkit.errors import ClamkitError, unknown
from clamkit.plots import style
from clamkit.theory import game
from clamkit.theory.sets import LowerBounded, SymmetricSet
from helpers import players
from helpers.theory_figures import CORNERS, MAP_NAMES, MAPS, draw_triangle

SIZE, DPI = (8.4, 5.9), 100  # inches, pixels per inch: with the sliders it fits a screen of 1280 pixels
FIXED = {"figure.constrained_layout.use": False, "axes.titley": 1.0}  # nothing jumps while sliders move, and no search
MOST_CLASSES, MOST_ROUNDS = 8, 500
PLAYERS = {  # what the accuracies do; the sliders say what they are under equal weights
    "accuracies stay": lambda v, T: np.tile(v, (T, 1)),
    "network answers at once": lambda v, T: players.best_response_on_curves(rates(v)),
    "network learns": lambda v, T: players.GradientPlayer(rates(v), step=0.05),
}
ABOVE = 28  # points from an axis to its title: room for two lines of legend, off the curves
LEGEND = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "borderaxespad": 0, "handlelength": 1.6}
LEGEND |= {"columnspacing": 1.2, "labelspacing": 0.15}
TITLES = ("class weights", "value of the game", "regret against its bound")
_DASHED = {"color": "#333333", "ls": "--", "lw": 1.2}
CURVES: dict[str, tuple[int, str, dict[str, Any]]] = {  # panel, name and look of each column of `Settings.curves`
    "loss": (1, "value w·v of the round", {"color": "#aaaaaa", "lw": 1}),
    "mean": (1, "its mean so far", {}),
    "best": (1, "the best fixed weights so far", _DASHED),
    "regret": (2, "regret: mean − best", {}),
    "bound": (2, "bound D/(τt) + τ/8 (for KL and clip)", _DASHED),
}
SEQUENCES = ("learning curves", "drift", "alternating", "trap", "coin flips", "random")  # of `players.suite`


def rates(v: np.ndarray) -> np.ndarray:
    """The k for which 1 − exp(−k θ) is v when every class gets the same effort θ = 1/n."""
    return -len(v) * np.log1p(-np.clip(v, 0.01, 0.99))


@dataclass(frozen=True)
class Settings:
    """A game as the sliders describe it. share: n·u_min, the part of all weight that is given out equally."""

    accuracies: tuple[float, ...] = (0.5, 0.7, 0.9)
    payoffs: str = "network learns"
    tau: float = 1.0
    share: float = 0.5
    projection: str = "euclidean"
    rounds: int = 200

    @lru_cache(maxsize=8)  # noqa: B019  settings are small, and moving through time asks for the same game again
    def play(self) -> game.Play:
        n, T = len(self.accuracies), positive_int(self.rounds, "rounds")
        max_player: Any
        if self.payoffs in PLAYERS:
            max_player = PLAYERS[self.payoffs](np.array(self.accuracies, dtype=float), T)
        elif self.payoffs in SEQUENCES:
            max_player = players.suite(n, T)[self.payoffs]
        else:
            raise unknown("payoffs", self.payoffs, (*PLAYERS, *SEQUENCES))
        return game.play(max_player, LowerBounded(n, self.share / n), self.tau, self.projection, T)

    @lru_cache(maxsize=8)  # noqa: B019
    def curves(self) -> pd.DataFrame:
        """For each round t: the value w·v, its mean so far, that of the best fixed weights, regret, and its bound."""
        played = self.play()
        t = np.arange(1, self.rounds + 1)
        mean = played.losses.cumsum() / t
        best = np.array([played.S.value(v) for v in played.payoffs.cumsum(axis=0) / t[:, None]])
        bound = played.S.kl_diameter() / (played.tau * t) + played.tau / 8  # game.corrected_bound at every t
        table = {"loss": played.losses, "mean": mean, "best": best, "regret": mean - best, "bound": bound}
        return pd.DataFrame(table, index=t)

    def numbers(self, upto: int | None = None) -> pd.Series:
        """The curves at a round, after the weights: what the explorer prints below its picture."""
        at = min(upto or self.rounds, self.rounds)
        weights = {f"weight {i}": w for i, w in enumerate(self.play().weights[at - 1], 1)}
        return pd.Series(weights | self.curves().loc[at].to_dict(), name=at)

    def png(self, upto: int | None = None) -> bytes:
        """The weights' path on the triangle, weights, value and regret over the rounds, drawn up to round `upto`."""
        return style.png(self.figure(upto), DPI, crop=False)

    def figure(self, upto: int | None = None) -> Figure:
        with mpl.style.context([style.STYLE, FIXED]):
            figure = Figure(SIZE)
            axes = figure.subplots(2, 2, gridspec_kw={"wspace": 0.18, "hspace": 0.5}).flatten()
            figure.subplots_adjust(left=0.065, right=0.98, top=0.895, bottom=0.085)
            weights = self.play().weights[: min(upto or self.rounds, self.rounds)]
            colour = MAPS[self.projection][0]
            _draw_place(axes[0], self.play().S, weights, colour)
            axes[0].set_title(f"weights now: {MAP_NAMES.get(self.projection, 'best response')}, τ = {self.tau:.3g}")
            place = axes[0].get_position(original=True)  # it has no legend, so it may end where the others' legends do
            place.y1 += (ABOVE - mpl.rcParams["axes.titlepad"]) / 72 / SIZE[1]
            axes[0].set_position(place)
            _draw_curves(axes[1:], self.curves(), weights, colour)
        return figure


def _draw_curves(axes: Sequence[Axes], table: pd.DataFrame, weights: np.ndarray, colour: str) -> None:
    """Weights, value and regret of the rounds so far, on axes for the whole game; the colour is the projection's."""
    shown, (T, n) = table.iloc[: len(weights)], (len(table), weights.shape[1])
    for i, (weight, width) in enumerate(zip(weights.T, np.linspace(2.6, 1.2, n), strict=True), 1):
        axes[0].plot(shown.index, weight, lw=width, label=f"class {i}")  # where lines meet, all are seen
    for name, (panel, text, look) in CURVES.items():
        axes[panel].plot(shown.index, shown[name], label=text, **{"color": colour} | look)
    limits, in_columns = ((0, 1), (0, 1), _regret_limits([table])), ((n + 1) // 2 if n > 4 else n, 2, 1)
    for axis, title, ylim, columns in zip(axes, TITLES, limits, in_columns, strict=True):
        axis.set(xlabel="round", xlim=(0, T), ylim=ylim)
        axis.set_title(title, pad=ABOVE)
        axis.locator_params(nbins=6)
        axis.legend(ncols=columns, **LEGEND)


def _regret_limits(tables: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """From the lowest to the highest regret of all rounds, and the bound at the end; the bound begins above."""
    highest = max(max(table["regret"].max(), table["bound"].iloc[-1]) for table in tables)
    return 1.1 * min(*(table["regret"].min() for table in tables), -highest / 6), 1.1 * highest


def _draw_place(axis: Axes, S: SymmetricSet, weights: np.ndarray, colour: str) -> None:
    """Where the weights are now: on the triangle of three classes with the way they came, else as bars."""
    if S.n == 3:
        draw_triangle(axis, S)
        axis.plot(*(weights @ CORNERS).T, "-o", color=colour, ms=2.5, lw=0.8)
        axis.plot(*(weights[-1] @ CORNERS), "o", color=colour, ms=9, mec="white")
        axis.set_xlim(-0.36, 1.36)  # as wide as the panel, so that its title stands where the others' do
    else:
        classes = np.arange(1, S.n + 1)
        axis.bar(classes, weights[-1], color=mpl.rcParams["axes.prop_cycle"].by_key()["color"][: S.n])
        axis.axhline(S.bounds[0], color="#555555", ls="--", lw=1)
        axis.set(xticks=classes, xlabel="class (dashes: u_min)", ylim=(0, 1))


@style.styled
def side_by_side(games: Mapping[str, Settings]) -> Figure:
    """The way of the weights in some games of three classes; in one panel the regrets of all, against their bound."""
    figure, axes = plt.subplots(1, len(games) + 1, figsize=(9.2, 3.2), width_ratios=[*[1] * len(games), 1.6])
    tables = [chosen.curves() for chosen in games.values()]
    for axis, (name, chosen), table in zip(axes, games.items(), tables, strict=False):
        colour, line = MAPS[chosen.projection]
        _draw_place(axis, chosen.play().S, chosen.play().weights[:-1], colour)
        axis.set(title=name, xlim=(-0.12, 1.12))
        axes[-1].plot(table["regret"], color=colour, ls=line, label=f"regret, {name}")
    axes[-1].plot(tables[0]["bound"], label="bound D/(τt) + τ/8", **_DASHED)
    axes[-1].set(title=TITLES[2], xlabel="round", xlim=(0, len(tables[0])), ylim=_regret_limits(tables))
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower right", ncols=len(games) + 1)
    return figure


PRESETS = {  # as on docs/game, where the trap is long enough to break Theorem 1 itself
    "convergence": Settings((0.3, 0.6, 0.9), "network answers at once", rounds=60),
    "oscillation": Settings((0.3, 0.6, 0.9), "network answers at once", tau=10**0.85, rounds=60),
    "trap": Settings(payoffs="trap", tau=0.05, rounds=400),
}


def game_explorer(start: Settings | None = None) -> widgets.Widget:
    """Buttons for `PRESETS`, sliders for everything in `Settings`, the picture, its numbers, play and pause."""
    start = start or Settings()
    wide = {"layout": widgets.Layout(width="310px"), "style": {"description_width": "88px"}}
    classes = widgets.IntSlider(len(start.accuracies), 3, MOST_CLASSES, description="classes", **wide)
    payoffs = widgets.Dropdown(options=[*PLAYERS, *SEQUENCES], value=start.payoffs, description="payoffs", **wide)
    accuracies = [
        widgets.FloatSlider(value, min=0.02, max=0.98, step=0.02, description=f"accuracy {i + 1}", **wide)
        for i, value in enumerate((*start.accuracies, *np.linspace(0.5, 0.9, MOST_CLASSES))[:MOST_CLASSES])
    ]
    tau = widgets.FloatLogSlider(start.tau, min=-2, max=1, step=0.05, description="step size τ", **wide)
    share = widgets.FloatSlider(start.share, min=0, max=0.95, step=0.05, description="floor n·u_min", **wide)
    projection = widgets.Dropdown(options=game.PROJECTIONS, value=start.projection, description="projection", **wide)
    rounds = widgets.IntSlider(start.rounds, 20, MOST_ROUNDS, 20, description="rounds", **wide)
    now = widgets.IntSlider(start.rounds, 1, start.rounds, description="up to round", **wide)
    clock = widgets.Play(
        value=start.rounds, min=1, max=start.rounds, interval=300
    )  # milliseconds; a redraw takes half of it
    presets = {name: widgets.Button(description=name, layout=widgets.Layout(width="auto")) for name in PRESETS}
    image, numbers = widgets.Image(format="png", layout=widgets.Layout(max_width="100%")), widgets.HTML()
    sliders = widgets.VBox()
    moving = False  # while code moves sliders, one redraw at the end is enough

    def redraw(change: object = None) -> None:
        if moving:
            return
        n = classes.value
        chosen = Settings(
            tuple(slider.value for slider in accuracies[:n]),
            payoffs.value, tau.value, share.value, projection.value, rounds.value,
        )  # fmt: skip
        try:
            image.value = chosen.png(now.value)
            numbers.value = _as_lines(chosen, now.value)
        except ClamkitError as error:
            numbers.value = f"<i>{escape(str(error))}</i>"

    def rearrange(change: object = None) -> None:
        nonlocal moving
        if moving:
            return
        moving = True
        for slider in accuracies:
            slider.disabled = payoffs.value in SEQUENCES
        sliders.children = accuracies[: classes.value]
        clock.step = max(1, rounds.value // 40)
        at_end = now.value == now.max
        clock.max = now.max = rounds.value
        if at_end:
            now.value = rounds.value
        moving = False
        redraw()

    def take(button: widgets.Button) -> None:
        nonlocal moving
        moving, chosen = True, PRESETS[button.description]
        classes.value = len(chosen.accuracies)
        for slider, value in zip(accuracies, chosen.accuracies, strict=False):
            slider.value = value
        for control, value in (
            (payoffs, chosen.payoffs), (tau, chosen.tau), (share, chosen.share), (projection, chosen.projection),
            (rounds, chosen.rounds), (now, now.max),
        ):  # fmt: skip
            control.value = value
        moving = False
        rearrange()

    widgets.jslink((clock, "value"), (now, "value"))
    for control in (classes, payoffs, rounds):
        control.observe(rearrange, "value")
    for control in (*accuracies, tau, share, projection, now):
        control.observe(redraw, "value")
    for button in presets.values():
        button.on_click(take)
    rearrange()
    controls = (payoffs, classes, sliders, tau, share, projection, rounds, now, clock, numbers)
    left = widgets.VBox([widgets.HBox([*presets.values()]), *controls], layout=widgets.Layout(flex="0 0 325px"))
    return widgets.HBox([left, widgets.VBox([image], layout=widgets.Layout(min_width="0"))])


def _as_lines(settings: Settings, upto: int) -> str:
    at = settings.numbers(upto)
    weights = ", ".join(f"{value:.3f}" for value in at.filter(like="weight"))
    return (
        f"<b>round {at.name}</b><br>weights {weights}<br>value {at['loss']:.3f}, its mean {at['mean']:.3f}<br>"
        f"best fixed weights {at['best']:.3f}<br>regret {at['regret']:+.4f}, bound {at['bound']:.4f}"
    )
