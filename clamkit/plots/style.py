"""What every figure shares: the style, a colour and a marker for each method, axes and legends, saving."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from clamkit import paths
from clamkit.errors import ClamkitError
from clamkit.files import atomic
from clamkit.methods.specs import METHODS

STYLE = Path(__file__).with_name("clamkit.mplstyle")
WIDTH = 7.0  # inches, of figures as wide as the text
TITLES = {  # of metrics, with the direction that is better
    "average": "average ↑",
    "std": "std ↓",
    "cov": "COV ↓",
    "range": "range (max − min) ↓",
    "decile_range": "decile range ↓",
    "worst": "worst 10 % ↑",
    "best": "best 10 % ↑",
}
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.4g}%".replace("-", "−"))


class _OfMethods(dict[str, str]):
    """One field of every method by its name; what is added to METHODS later, or is not in its list, is found too."""

    def __init__(self, field: str):
        super().__init__({name: getattr(method, field) for name, method in METHODS.items()})
        self.field = field

    def __missing__(self, method: str) -> str:
        return getattr(METHODS[method], self.field)


COLOURS = _OfMethods("colour")
MARKERS = _OfMethods("marker")


def label(method: str) -> str:
    return METHODS[method].label


def short_name(name: str, width: int = 24) -> str:
    """A class name in a figure: cut where it is long, no formula in it, and in legends also if _ comes first."""
    cut = name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"
    return " " * cut.startswith("_") + cut.replace("$", r"\$")


@cache
def _cycle() -> list[str]:
    with mpl.style.context(STYLE):
        return mpl.rcParams["axes.prop_cycle"].by_key()["color"]


def class_colours(names: Sequence[str], chosen: Sequence[str] | None = None) -> dict[str, str]:
    """A colour for each class by its place among all classes, so that it is the same in every figure of a dataset.

    Where there are more classes than colours, only the chosen ones can differ: their places among themselves decide.
    """
    cycle = _cycle()
    if len(names) > len(cycle) and chosen is not None:
        names = chosen
    return {name: cycle[i % len(cycle)] for i, name in enumerate(names)}


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the kit's style without touching the caller's; where there is nothing to draw, a note that says so."""

    def nothing(value: Any) -> bool:
        return value is None or (isinstance(value, pd.DataFrame | list | dict) and not len(value))

    @wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Figure:
        with mpl.style.context(STYLE):
            if any(map(nothing, args[:2])):
                figure = plt.figure(figsize=(WIDTH, 0.6))
                figure.text(0.5, 0.5, "no finished runs to draw yet", ha="center", va="center", color="#777777")
                return figure
            return draw(*args, **kwargs)

    return wrapper


def png(figure: Figure, dpi: float | None = None, *, crop: bool = True) -> bytes:
    """A figure as a PNG, by default at 200 dots per inch; crop=False keeps its margins, so that sizes are exact.

    It holds no date and no version: the same figure gives the same bytes.
    """
    buffer = io.BytesIO()
    options: dict[str, Any] = {"metadata": {"Software": None}} | ({} if crop else {"bbox_inches": figure.bbox_inches})
    with mpl.style.context(STYLE):
        figure.savefig(buffer, format="png", dpi=dpi or mpl.rcParams["savefig.dpi"], **options)
    return buffer.getvalue()


def save(figure: Figure, name: str, folder: Path | None = None) -> Path:
    """Write <name>.png into a folder, by default `paths.figures()`, and return its path."""
    folder = folder or paths.figures()
    path = folder / f"{name}.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary:
            temporary.write_bytes(png(figure))
    except OSError as error:
        raise ClamkitError(f"cannot write figures to {paths.shown(folder)} ({error}): give another folder.") from error
    return path


def method_lines(frame: pd.DataFrame, x: str, y: str, axis: Axes, **options: Any) -> None:
    """y against x, a line for each method: the mean, and a band of one standard deviation where there are several."""
    import seaborn as sns  # two seconds that training notebooks need not wait

    methods = list(frame["method"].unique())
    look: dict[str, Any] = {"hue": "method", "hue_order": methods, "palette": {m: COLOURS[m] for m in methods}}
    look |= {"style": "method", "markers": {m: MARKERS[m] for m in methods}, "dashes": False}
    options = {"errorbar": "sd", "err_kws": {"alpha": 0.12, "lw": 0}, "mec": "none"} | options
    sns.lineplot(frame, x=x, y=y, ax=axis, legend=False, **look, **options)
    axis.set_ylabel("")


def method_legend(figure: Figure, methods: Iterable[str], loc: Any = "outside upper center", ncols: int = 6) -> None:
    methods = list(dict.fromkeys(methods))
    handles = [Line2D([], [], color=COLOURS[m], marker=MARKERS[m], mec="none", label=label(m)) for m in methods]
    figure.legend(handles=handles, loc=loc, ncols=min(ncols, len(methods)))


def epoch_axis(axis: Axes, title: str, **options: Any) -> None:
    """Whole epochs along the axis."""
    axis.set(title=title, xlabel="epoch", **options)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
