"""The page of a diagnosis: figures, tables and sentences in one HTML file that needs no other."""

from __future__ import annotations

import base64
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.apps.advice import advice as advice_on
from clamkit.apps.diagnose import TESTS, Diagnosis, Model, diagnose, sentences
from clamkit.apps.predictions import Source, read
from clamkit.apps.words import numbered, p_value, percent, points, share
from clamkit.errors import ClamkitError
from clamkit.metrics import tail_size
from clamkit.plots.style import PERCENT, png, short_name, styled

LISTED_ROWS = 15  # rows in a list of classes or of confused pairs
NAMED_CLASSES = 30  # so many classes fit into one figure by name
DRAWN_CLASSES = 200  # in the table of all classes, with a drawing of their intervals
MOST_CLASSES = 1_000  # in that table at all: the page stays below a megabyte
EXTREMES = 8  # classes at each end of the figure of changes
COLOURS = ("#0072b2", "#d55e00", "#7b3294", "#cc79a7", "#e69f00", "#56b4e9", "#555555")  # of the models, in their order
HURT, HELPED = "#b2182b", "#00805c"  # no model has these
VERDICTS = (("", "#b5b5b5", "no change shown"), ("helped", HELPED, "helped"), ("hurt", HURT, "hurt"))


def _colours(result: Diagnosis) -> list[str]:
    """A colour for each model, by its place."""
    return [COLOURS[i % len(COLOURS)] for i in range(len(result.models))]


def _intervals(axis: Axes, models: Sequence[Model], colours: Sequence[str], names: Sequence[str]) -> None:
    """A line a class, first on top: accuracy and its interval under each model."""
    y = np.arange(len(names))[::-1]
    for i, (model, colour) in enumerate(zip(models, colours, strict=True)):
        rows, at = model.classes.loc[names], y + 0.28 * ((len(models) - 1) / 2 - i) / max(1, len(models) - 1)
        axis.hlines(at, rows["low"], rows["high"], color=colour, alpha=0.45, lw=2.4)
        axis.plot(rows["accuracy"], at, "o", color=colour, ms=4.5, label=model.title)
    axis.set(yticks=y, yticklabels=[short_name(name) for name in names], ylim=(-0.6, len(names) - 0.4))
    axis.set_xlabel("accuracy, 95 % interval")
    axis.xaxis.set_major_formatter(PERCENT)
    axis.grid(axis="y", visible=False)


@styled
def figure_classes(result: Diagnosis) -> Figure:
    """All classes by name where they fit; else sorted accuracies, and the share of classes below each accuracy."""
    models, worst, colours = result.models, result.worst(), _colours(result)
    if len(worst) <= NAMED_CLASSES:
        figure, axis = plt.subplots(figsize=(7.2, 0.9 + (0.18 + 0.07 * len(models)) * len(worst)))
        _intervals(axis, models, colours, list(worst.index))
        if len(models) > 1:
            figure.legend(loc="outside upper center", ncols=min(3, len(models)))
        return figure
    figure, (curve, profile) = plt.subplots(1, 2, figsize=(9, 3.1), width_ratios=(1.5, 1))
    x = np.arange(1, len(worst) + 1)
    tail = tail_size(len(worst))
    for start, y, at, text in ((0.5, 1, "top", "worst 10 %"), (len(worst) - tail + 0.5, 0.02, "bottom", "best 10 %")):
        curve.axvspan(start, start + tail, color="#f0f0f0", lw=0)
        curve.text(start + tail / 2, y, text, ha="center", va=at, fontsize=7, color="#555555", rotation=90)
    for model, colour in zip(models, colours, strict=True):
        rows = model.worst()
        curve.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.15, lw=0)
        curve.plot(x, rows["accuracy"], color=colour, label=model.title)
        profile.step([0, *rows["accuracy"], 1], [0, *x / len(x), 1], where="post", color=colour)
    curve.set(title="sorted, with 95 % intervals", xlabel="classes, worst first", ylabel="accuracy", ylim=(0, 1.02))
    curve.set_xlim(0.5, len(worst) + 0.5)
    profile.set(title="profile", xlabel="accuracy", ylabel="classes at or below it", xlim=(0, 1), ylim=(0, 1.02))
    for axis in (curve.yaxis, profile.xaxis, profile.yaxis):
        axis.set_major_formatter(PERCENT)
    if len(models) > 1:
        figure.legend(*curve.get_legend_handles_labels(), loc="outside upper center", ncols=min(3, len(models)))
    return figure


@styled
def figure_changes(first: Model, model: Model, colour: str = COLOURS[1]) -> Figure:
    """Accuracy under a model against the first, a point a class; beside it those that lost and won most."""
    classes = model.table
    extremes = classes.sort_values("change", kind="stable")
    shown = [*extremes.index[:EXTREMES], *extremes.index[-EXTREMES:]]
    figure, (scatter, names) = plt.subplots(1, 2, figsize=(9, 4.4), width_ratios=(1, 0.9))
    scatter.axline((0, 0), slope=1, color="#9a9a9a", lw=1)
    for verdict, dots, text in VERDICTS:
        rows = classes[classes["verdict"] == verdict]
        scatter.scatter(first.classes.loc[rows.index, "accuracy"], rows["accuracy"], s=14, color=dots, lw=0, alpha=0.8)
        scatter.scatter([], [], s=22, color=dots, label=f"{text} ({len(rows):,})")
    scatter.set(xlabel=f"accuracy {short_name(first.title)}", ylabel=f"accuracy {short_name(model.title)}")
    scatter.set(title="each class", aspect="equal", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    scatter.xaxis.set_major_formatter(PERCENT)
    scatter.yaxis.set_major_formatter(PERCENT)
    scatter.legend(loc="upper left")
    _intervals(names, [first, model], [COLOURS[0], colour], shown)
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


def _code(text: str) -> str:
    """What stands between backticks, as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def html(result: Diagnosis, *, title: str | None = None, advice: Sequence[str] = ()) -> str:
    """One self-contained page on the models."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page.filters |= {"percent": percent, "points": points, "p": p_value, "share": share, "code": _code}
    drawn, colours = len(result.classes) > NAMED_CLASSES, _colours(result)
    compared = list(zip(result.others, colours[1:], strict=True))
    return page.get_template("diagnose.html").render(
        title=title or " · ".join(result.titles),
        result=result,
        colours=colours,
        sentences=sentences(result),
        advice=advice,
        classes_figure=_embedded(figure_classes(result)),
        changes_figures=[_embedded(figure_changes(result, *pair)) if drawn else "" for pair in compared],
        hurt=HURT,
        helped=HELPED,
        most=LISTED_ROWS,
        drawn=DRAWN_CLASSES,
        listed=MOST_CLASSES,
        tests=TESTS,
    )


class Report(NamedTuple):
    """What a command says, and what it rests on."""

    result: Diagnosis
    advice: list[str]
    text: str


def report(files: Sequence[Source], out: Path | None) -> Report:
    """Diagnose one model, or several against the first; write the page to `out` where that is given."""
    models = [read(file) for file in files]
    result = diagnose(*models)
    told = advice_on(result, models[-1])
    of = f" for {result.titles[-1]}" if result.others else ""
    lines = [*sentences(result), *result.notes, f"What next{of}:", *numbered(told)]
    if out:
        page = html(result, advice=told)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ClamkitError(f"cannot write the page {paths.shown(out)}: {error}. Choose another place.") from error
        lines.append(f"page: {paths.shown(out)}")
    return Report(result, told, "\n".join(lines))
