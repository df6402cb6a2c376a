"""The game under sliders: `game_explorer()` for JupyterLab and voila; `GamePicture(n).show(Settings(...))` without.

Its sibling `browse` explores finished runs.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from html import escape

import ipywidgets as widgets
import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from clamkit import game
from clamkit.errors import ClamkitError, unknown
from clamkit.gameplots import CORNERS, draw_triangle
from clamkit.plots import COLOURS, STYLE
from clamkit.simplex import LowerBounded, whole

SIZE, DPI = (8.4, 5.9), 100  # inches, pixels per inch: with the sliders it fits a screen of 1280 pixels
MOST_CLASSES, MOST_ROUNDS = 8, 500
PLAYERS = {  # what the accuracies do; the sliders say what they are under equal weights
    "accuracies stay": lambda v, T: np.tile(v, (T, 1)),
    "network answers at once": lambda v, T: game.best_response_on_curves(_rates(v)),
    "network learns": lambda v, T: game.GradientPlayer(_rates(v), step=0.05),
}
SEQUENCES = ("learning curves", "drift", "alternating", "trap", "coin flips", "random")  # of `game.suite`


def _rates(v: np.ndarray) -> np.ndarray:
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
        n, T = len(self.accuracies), whole(self.rounds, "rounds")
        if self.payoffs in PLAYERS:
            max_player = PLAYERS[self.payoffs](np.array(self.accuracies, dtype=float), T)
        elif self.payoffs in SEQUENCES:
            max_player = game.suite(n, T)[self.payoffs]
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
        weights = {f"weight {i + 1}": w for i, w in enumerate(self.play().weights[at - 1])}
        return pd.concat([pd.Series(weights), self.curves().loc[at]]).rename(at)


class GamePicture:
    """The weights' path on the triangle, weights, value and regret over the rounds, for n classes.

    `show` moves the lines and numbers of one lasting figure and draws only these over a picture of the rest. So that
    the rest never changes, rounds and regret are drawn as shares of their axes. A full redraw takes five times as long.
    """

    SCALES = (0.02, 0.04, 0.1, 0.2, 0.4, 1.0, 2.0)  # upper ends of the axis of regret; it begins at minus a half

    def __init__(self, n: int):
        with mpl.style.context(STYLE):
            self.figure = Figure(SIZE, dpi=DPI, layout="none")
            self.canvas = FigureCanvasAgg(self.figure)
            axes = self.figure.subplots(2, 2, gridspec_kw={"wspace": 0.18, "hspace": 0.34}).flatten()
            self.figure.subplots_adjust(left=0.065, right=0.98, top=0.945, bottom=0.085)
            self._build(n, *axes)
            self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(self.figure.bbox)

    def _build(self, n: int, place: Axes, weights: Axes, value: Axes, regret: Axes) -> None:
        colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
        moving = {"animated": True}
        if n == 3:
            draw_triangle(place, LowerBounded(3, 0.5 / 3))
            allowed = place.patches[-1]
            allowed.set_animated(True)
            (path,) = place.plot([], [], "-o", color=COLOURS["clam_kl"], ms=2.5, lw=0.8, **moving)
            (now,) = place.plot([], [], "o", color=COLOURS["clam_kl"], ms=9, mec="white", **moving)
            self.place = [allowed, path, now]
            place.set_xlim(-0.39, 1.39)  # as wide as the panel, so that its title stands where the others' do
            place.set_title("weights on the simplex (blue: allowed)")
        else:
            bars = place.bar(np.arange(1, n + 1), np.ones(n), color=colours[:n], **moving)
            self.place = [*bars, place.axhline(0, color="#555555", ls="--", lw=1, **moving)]
            place.set(
                title="class weights now (dashes: u_min)", xticks=np.arange(1, n + 1), xlabel="class", ylim=(0, 1)
            )
        self.weights = [weights.plot([], [], color=c, lw=1.4, label=f"class {i + 1}", **moving)[0]
                        for i, c in enumerate(colours[:n])]  # fmt: skip
        grey, dark = {"color": "#aaaaaa", "lw": 1}, {"color": "#333333", "ls": "--", "lw": 1.2}
        blue = {"color": COLOURS["clam"]}
        lines = {
            "loss": (value, "value w·v of the round", grey),
            "mean": (value, "its mean so far", blue),
            "best": (value, "the best fixed weights so far", dark),
            "regret": (regret, "regret: mean − best", blue),
            "bound": (regret, "bound D/(τt) + τ/8 (for KL and clip)", dark),
        }
        self.lines = {name: a.plot([], [], label=text, **look, **moving)[0] for name, (a, text, look) in lines.items()}
        weights.set(title="class weights", ylim=(0, 1))
        value.set(title="value of the game", ylim=(0, 1))
        regret.set(title="regret against its bound", ylim=(-0.5, 1), yticks=(-0.5, 0, 0.5, 1), yticklabels=[])
        small = {"size": mpl.rcParams["xtick.labelsize"], **moving}
        self.rounds = []  # (share of the axis, its number), as for the regrets
        for axis in (weights, value, regret):
            axis.set(xlim=(0, 1), xticks=np.linspace(0, 1, 5), xticklabels=[])
            axis.set_xlabel("round", labelpad=12)
            across = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "top"}
            self.rounds += [(x, axis.text(x, -0.035, "", **across, **small)) for x in axis.get_xticks()]
            legend = axis.legend(loc="upper right", ncols=2 if axis is weights and n > 4 else 1)
            for handle in legend.get_lines():
                handle.set_animated(False)
        up = {"transform": regret.get_yaxis_transform(), "ha": "right", "va": "center"}
        self.regrets = [(y, regret.text(-0.02, y, "", **up, **small)) for y in regret.get_yticks()]

    def show(self, settings: Settings, upto: int | None = None) -> bytes:
        """PNG of the game by `settings`, drawn up to round `upto` (default: all)."""
        played, table = settings.play(), settings.curves()
        T = settings.rounds
        shown = table.iloc[: min(upto or T, T)]
        highest = max(table["regret"].iloc[T // 20 :].max(), table["bound"].iloc[-1])
        scale = next(s for s in self.SCALES if s > 1.05 * highest or s == self.SCALES[-1])
        at = shown.index / T
        for share, number in self.rounds:
            number.set_text(f"{share * T:.0f}")
        for share, number in self.regrets:
            number.set_text(f"{share * scale:.3g}".replace("-", "−"))
        weights = played.weights[: len(shown)]
        for i, line in enumerate(self.weights):
            line.set_data(at, weights[:, i])
        for name, line in self.lines.items():
            line.set_data(at, shown[name] / (scale if name in ("regret", "bound") else 1))
        if played.S.n == 3:
            allowed, path, now = self.place
            allowed.set_xy(np.array([played.S.argmin(-corner) for corner in np.eye(3)]) @ CORNERS)
            path.set_data(*(weights @ CORNERS).T)
            now.set_data(*(weights[-1:] @ CORNERS).T)
        else:
            for bar, height in zip(self.place, weights[-1], strict=False):
                bar.set_height(height)
            self.place[-1].set_ydata([played.S.u_min] * 2)
        self.canvas.restore_region(self.background)
        numbers = [number for _, number in (*self.rounds, *self.regrets)]
        for artist in (*self.place, *self.weights, *self.lines.values(), *numbers):
            self.figure.draw_artist(artist)
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB").save(buffer, "png", compress_level=1)
        return buffer.getvalue()


def game_explorer(start: Settings | None = None) -> widgets.Widget:
    """Sliders for everything in `Settings`, the picture, its numbers, and play and pause through the rounds."""
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
    clock = widgets.Play(value=start.rounds, min=1, max=start.rounds, interval=200)
    image, numbers = widgets.Image(format="png", layout=widgets.Layout(max_width="100%")), widgets.HTML()
    sliders = widgets.VBox()
    picture = lru_cache(GamePicture)  # one for each number of classes
    moving = False  # while code moves sliders, one redraw at the end is enough

    def redraw(change=None) -> None:
        if moving:
            return
        n = classes.value
        chosen = Settings(
            tuple(slider.value for slider in accuracies[:n]),
            payoffs.value, tau.value, share.value, projection.value, rounds.value,
        )  # fmt: skip
        try:
            image.value = picture(n).show(chosen, now.value)
            numbers.value = _as_lines(chosen, now.value)
        except ClamkitError as error:
            numbers.value = f"<i>{escape(str(error))}</i>"

    def rearrange(change=None) -> None:
        nonlocal moving
        moving = True
        for slider in accuracies:
            slider.disabled = payoffs.value in SEQUENCES
        sliders.children = accuracies[: classes.value]
        clock.step = max(1, rounds.value // 60)
        at_end = now.value == now.max
        clock.max = now.max = rounds.value
        if at_end:
            now.value = rounds.value
        moving = False
        redraw()

    widgets.jslink((clock, "value"), (now, "value"))
    for control in (classes, payoffs, rounds):
        control.observe(rearrange, "value")
    for control in (*accuracies, tau, share, projection, now):
        control.observe(redraw, "value")
    rearrange()
    left = widgets.VBox(
        [payoffs, classes, sliders, tau, share, projection, rounds, now, clock, numbers],
        layout=widgets.Layout(flex="0 0 325px"),
    )
    return widgets.HBox([left, widgets.VBox([image], layout=widgets.Layout(min_width="0"))])


def _as_lines(settings: Settings, upto: int) -> str:
    at = settings.numbers(upto)
    weights = ", ".join(f"{value:.3f}" for name, value in at.items() if name.startswith("weight"))
    return (
        f"<b>round {at.name}</b><br>weights {weights}<br>value {at['loss']:.3f}, its mean {at['mean']:.3f}<br>"
        f"best fixed weights {at['best']:.3f}<br>regret {at['regret']:+.4f}, bound {at['bound']:.4f}"
    )
