"""The page of a diagnosis: figures, tables and sentences in one HTML file that needs no other."""

from __future__ import annotations

import base64
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.apps.diagnose import TESTS, Diagnosis, diagnose, sentences
from clamkit.apps.words import p_value, percent, points, share
from clamkit.errors import ClamkitError
from clamkit.metrics import tail_size
from clamkit.plots.style import PERCENT, png, styled

LISTED_ROWS = 15  # rows in a list of classes or of confused pairs
NAMED_CLASSES = 30  # so many classes fit into one figure by name
EXTREMES = 8  # classes at each end of the figure of changes
SIDES = (("", "#0072b2", "without"), ("_after", "#d55e00", "with augmentation"))  # suffix of the columns, colour, name
VERDICTS = (("", "#b5b5b5", "no change shown"), ("helped", "#009e73", "helped"), ("hurt", "#d55e00", "hurt"))


def _label(name: str, width: int = 24) -> str:
    """A class name on an axis: its middle cut out, and no formula in it."""
    cut = name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"
    return cut.replace("$", r"\$")


def _intervals(axis: Axes, rows: pd.DataFrame) -> None:
    """A line a class, first on top: accuracy and its interval, before and after."""
    y = np.arange(len(rows))[::-1]
    both = "accuracy_after" in rows
    for (suffix, colour, text), shift in zip(SIDES, (0.14, -0.14), strict=True):
        if f"accuracy{suffix}" in rows:
            at = y + shift * both
            axis.hlines(at, rows[f"low{suffix}"], rows[f"high{suffix}"], color=colour, alpha=0.45, lw=2.4)
            axis.plot(rows[f"accuracy{suffix}"], at, "o", color=colour, ms=4.5, label=text)
    axis.set(yticks=y, yticklabels=[_label(name) for name in rows.index], ylim=(-0.6, len(rows) - 0.4))
    axis.set_xlabel("accuracy, 95 % interval")
    axis.xaxis.set_major_formatter(PERCENT)
    axis.grid(axis="y", visible=False)


@styled
def figure_classes(result: Diagnosis) -> Figure:
    """All classes by name where they fit; else their sorted accuracies and a histogram."""
    worst = result.worst()
    both = result.paired is not None
    if len(worst) <= NAMED_CLASSES:
        figure, axis = plt.subplots(figsize=(7.2, 0.9 + (0.32 if both else 0.25) * len(worst)))
        _intervals(axis, worst)
        if both:
            figure.legend(loc="outside upper center", ncols=2)
        return figure
    figure, (curve, bars) = plt.subplots(1, 2, figsize=(9, 3.1), width_ratios=(1.5, 1))
    x = np.arange(1, len(worst) + 1)
    tail = tail_size(len(worst))
    per_class = int(worst["images"].median())  # bins hold whole steps of one image, else the bars are jagged
    width = max(1, round(per_class / np.clip(len(worst) // 8, 8, 25)))
    edges = (np.arange(0, per_class + 1 + width, width) - 0.5) / per_class
    for start, text in ((0.5, "worst 10 %"), (len(worst) - tail + 0.5, "best 10 %")):
        curve.axvspan(start, start + tail, color="#f0f0f0", lw=0)
        curve.text(start + tail / 2, 0.02, text, ha="center", va="bottom", fontsize=7, color="#555555", rotation=90)
    for suffix, colour, text in SIDES:
        if f"accuracy{suffix}" in worst:
            rows = worst.sort_values(f"accuracy{suffix}")
            curve.fill_between(x, rows[f"low{suffix}"], rows[f"high{suffix}"], color=colour, alpha=0.15, lw=0)
            curve.plot(x, rows[f"accuracy{suffix}"], color=colour, label=text)
            bars.hist(rows[f"accuracy{suffix}"], edges, histtype="step", color=colour, lw=1.6)
            bars.hist(rows[f"accuracy{suffix}"], edges, color=colour, alpha=0.2)
    curve.set(title="sorted, with 95 % intervals", xlabel="classes, worst first", ylabel="accuracy", ylim=(0, 1.02))
    curve.set_xlim(0.5, len(worst) + 0.5)
    curve.yaxis.set_major_formatter(PERCENT)
    bars.set(title="histogram", xlabel="accuracy", ylabel="classes", xlim=(0, edges[-1]))
    bars.xaxis.set_major_formatter(PERCENT)
    if both:
        figure.legend(*curve.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


@styled
def figure_changes(result: Diagnosis) -> Figure:
    """Accuracy with augmentation against without, a point a class; beside it the classes that lost and won most."""
    classes = result.classes
    extremes = classes.sort_values("change", kind="stable")
    shown = pd.concat([extremes.head(EXTREMES), extremes.tail(EXTREMES)])
    figure, (scatter, names) = plt.subplots(1, 2, figsize=(9, 4.4), width_ratios=(1, 0.9))
    scatter.axline((0, 0), slope=1, color="#9a9a9a", lw=1)
    for verdict, colour, text in VERDICTS:
        rows = classes[classes["verdict"] == verdict]
        scatter.scatter(rows["accuracy"], rows["accuracy_after"], s=14, color=colour, lw=0, alpha=0.8)
        scatter.scatter([], [], s=22, color=colour, label=f"{text} ({len(rows):,})")
    scatter.set(title="each class", xlabel="accuracy without", ylabel="accuracy with augmentation", aspect="equal")
    scatter.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    scatter.xaxis.set_major_formatter(PERCENT)
    scatter.yaxis.set_major_formatter(PERCENT)
    scatter.legend(loc="upper left")
    _intervals(names, shown)
    names.axhline(len(shown) - EXTREMES - 0.5, color="#9a9a9a", lw=1)
    names.set_title(f"{EXTREMES} that lost most, {EXTREMES} that won most")
    names.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return figure


def _embedded(figure: Figure) -> str:
    """The figure as text for an <img>."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a script that the font lacks; the tables have the name
        data = png(figure, 150)
    plt.close(figure)
    return base64.b64encode(data).decode()


def html(result: Diagnosis, title: str = "Class by class") -> str:
    """One self-contained page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page.filters |= {"percent": percent, "points": points, "p": p_value, "share": share}
    figures = {"classes": _embedded(figure_classes(result))}
    if result.paired is not None and len(result.classes) > NAMED_CLASSES:
        figures["changes"] = _embedded(figure_changes(result))
    return page.get_template("diagnose.html").render(
        title=title,
        result=result,
        sentences=sentences(result),
        figures=figures,
        most=LISTED_ROWS,
        worst=result.worst(),
        hurt=result.named("hurt") if result.paired is not None else None,
        helped=result.named("helped") if result.paired is not None else None,
        test=None if result.paired is None else TESTS[result.paired],
    )


def write_html(result: Diagnosis, path: Path | str, title: str = "Class by class") -> Path:
    path, text = Path(path), html(result, title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClamkitError(f"cannot write the page {paths.shown(path)}: {error}. Choose another place.") from error
    return path


def report(predictions: Path, augmented: Path | None, out: Path) -> str:
    """Write the page to `out` and return the diagnosis in a few lines."""
    result = diagnose(predictions, augmented)
    title = Path(predictions).name + (f", with augmentation {Path(augmented).name}" if augmented else "")
    write_html(result, out, title)
    return "\n".join([*sentences(result), *result.notes, f"page: {paths.shown(out)}"])
