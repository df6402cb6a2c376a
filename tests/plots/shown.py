"""What a figure shows, as plain values."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def titles(figure: Figure) -> list[str]:
    return [axis.get_title(loc="left") for axis in figure.axes]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def lines(axis: Axes) -> dict[str, list[float]]:
    """The heights of every line that has a name."""
    return {line.get_label(): list(line.get_ydata()) for line in axis.lines if not line.get_label().startswith("_")}
