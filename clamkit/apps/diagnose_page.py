"""The page of a diagnosis: figures, tables and sentences in one HTML file that needs no other."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.apps.advice import advice as advice_on
from clamkit.apps.diagnose import TESTS, Diagnosis, diagnose, sentences
from clamkit.apps.predictions import Source, read
from clamkit.apps.words import p_value, percent, points, share
from clamkit.errors import ClamkitError
from clamkit.metrics import tail_size
from clamkit.plots.style import PERCENT, png, styled

LISTED_ROWS = 15  # rows in a list of classes or of confused pairs
NAMED_CLASSES = 30  # so many classes fit into one figure by name
DRAWN_CLASSES = 200  # in the table of all classes, with a drawing of their intervals
MOST_CLASSES = 1_000  # in that table at all: the page stays below a megabyte
EXTREMES = 8  # classes at each end of the figure of changes
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")  # of the models, in their order
VERDICTS = (("", "#b5b5b5", "no change shown"), ("helped", "#009e73", "helped"), ("hurt", "#d55e00", "hurt"))
Models = list[tuple[str, str, pd.DataFrame]]  # title, colour, one row a class: accuracy, low, high


def _models(results: Sequence[Diagnosis]) -> Models:
    """The model that all results share first, then the others."""
    columns = ["accuracy", "low", "high"]
    found = [(results[0].titles[0], results[0].classes[columns])]
    for result in results:
        if result.paired is not None:
            after = result.classes[[f"{column}_after" for column in columns]].set_axis(columns, axis=1)
            found.append((result.titles[1], after))
    return [(title, COLOURS[i % len(COLOURS)], frame) for i, (title, frame) in enumerate(found)]


def _label(name: str, width: int = 24) -> str:
    """A class name on an axis: its middle cut out, and no formula in it."""
    cut = name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"
    return cut.replace("$", r"\$")


def _intervals(axis: Axes, models: Models, names: Sequence[str]) -> None:
    """A line a class, first on top: accuracy and its interval under each model."""
    y = np.arange(len(names))[::-1]
    for i, (title, colour, frame) in enumerate(models):
        rows, at = frame.loc[names], y + 0.28 * ((len(models) - 1) / 2 - i) / max(1, len(models) - 1)
        axis.hlines(at, rows["low"], rows["high"], color=colour, alpha=0.45, lw=2.4)
        axis.plot(rows["accuracy"], at, "o", color=colour, ms=4.5, label=title)
    axis.set(yticks=y, yticklabels=[_label(name) for name in names], ylim=(-0.6, len(names) - 0.4))
    axis.set_xlabel("accuracy, 95 % interval")
    axis.xaxis.set_major_formatter(PERCENT)
    axis.grid(axis="y", visible=False)


@styled
def figure_classes(*results: Diagnosis) -> Figure:
    """All classes by name where they fit; else sorted accuracies, and the share of classes below each accuracy."""
    models, worst = _models(results), results[0].worst()
    if len(worst) <= NAMED_CLASSES:
        figure, axis = plt.subplots(figsize=(7.2, 0.9 + (0.18 + 0.07 * len(models)) * len(worst)))
        _intervals(axis, models, list(worst.index))
        if len(models) > 1:
            figure.legend(loc="outside upper center", ncols=min(3, len(models)))
        return figure
    figure, (curve, profile) = plt.subplots(1, 2, figsize=(9, 3.1), width_ratios=(1.5, 1))
    x = np.arange(1, len(worst) + 1)
    tail = tail_size(len(worst))
    for start, text in ((0.5, "worst 10 %"), (len(worst) - tail + 0.5, "best 10 %")):
        curve.axvspan(start, start + tail, color="#f0f0f0", lw=0)
        curve.text(start + tail / 2, 0.02, text, ha="center", va="bottom", fontsize=7, color="#555555", rotation=90)
    for title, colour, frame in models:
        rows = frame.sort_values("accuracy")
        curve.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.15, lw=0)
        curve.plot(x, rows["accuracy"], color=colour, label=title)
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
def figure_changes(result: Diagnosis) -> Figure:
    """Accuracy under the second model against the first, a point a class; beside it those that lost and won most."""
    classes = result.classes
    extremes = classes.sort_values("change", kind="stable")
    shown = [*extremes.index[:EXTREMES], *extremes.index[-EXTREMES:]]
    figure, (scatter, names) = plt.subplots(1, 2, figsize=(9, 4.4), width_ratios=(1, 0.9))
    scatter.axline((0, 0), slope=1, color="#9a9a9a", lw=1)
    for verdict, colour, text in VERDICTS:
        rows = classes[classes["verdict"] == verdict]
        scatter.scatter(rows["accuracy"], rows["accuracy_after"], s=14, color=colour, lw=0, alpha=0.8)
        scatter.scatter([], [], s=22, color=colour, label=f"{text} ({len(rows):,})")
    scatter.set(title="each class", aspect="equal")
    scatter.set(xlabel=f"accuracy {_label(result.titles[0])}", ylabel=f"accuracy {_label(result.titles[1])}")
    scatter.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    scatter.xaxis.set_major_formatter(PERCENT)
    scatter.yaxis.set_major_formatter(PERCENT)
    scatter.legend(loc="upper left")
    _intervals(names, _models([result]), shown)
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


def html(*results: Diagnosis, title: str = "Class by class", advice: Sequence[str] = ()) -> str:
    """One self-contained page on the models of results that share their first one."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    page = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page.filters |= {"percent": percent, "points": points, "p": p_value, "share": share}
    first, models = results[0], _models(results)
    both = first.paired is not None
    metrics = [first.fairness[["accuracy", "low", "high"]]]
    metrics += [r.fairness.filter(like="_after").set_axis(metrics[0].columns, axis=1) for r in results if both]
    profiles = [first.profile["accuracy"], *(r.profile["accuracy_after"] for r in results if both)]
    drawn = both and len(first.classes) > NAMED_CLASSES
    return page.get_template("diagnose.html").render(
        title=title,
        results=results,
        models=models,
        metrics=metrics,
        profiles=profiles,
        sentences=[sentences(result) for result in results],
        notes=list(dict.fromkeys(note for result in results for note in result.notes)),
        advice=advice,
        classes_figure=_embedded(figure_classes(*results)),
        changes_figures=[_embedded(figure_changes(result)) if drawn else "" for result in results],
        most=LISTED_ROWS,
        drawn=DRAWN_CLASSES,
        listed=MOST_CLASSES,
        test=TESTS[first.paired] if both else None,
    )


def write_html(*results: Diagnosis, path: Path | str, **options: Any) -> Path:
    path, text = Path(path), html(*results, **options)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClamkitError(f"cannot write the page {paths.shown(path)}: {error}. Choose another place.") from error
    return path


class Report(NamedTuple):
    """What a command says, and what it rests on."""

    results: list[Diagnosis]
    advice: list[str]
    text: str


def report(files: Sequence[Source], out: Path | None, titles: tuple[str, ...] | None = None) -> Report:
    """Diagnose one model, or several against the first; write the page to `out` where that is given."""
    models = [read(file) for file in files]
    names = titles or tuple(_distinct([model.title for model in models]))
    pairs = [(model, (names[0], name)) for model, name in zip(models[1:], names[1:], strict=True)]
    results = [diagnose(models[0], model, both) for model, both in pairs] or [diagnose(models[0], titles=names)]
    told = advice_on(results[-1], models[-1])
    lines = [line for result in results for line in sentences(result)]
    lines = [*dict.fromkeys(lines), *dict.fromkeys(note for result in results for note in result.notes)]
    lines += ["What next:", *(f"{i}. {line}" for i, line in enumerate(told, 1))]
    if out:
        page = write_html(*results, path=out, title=" · ".join(model.title for model in models), advice=told)
        lines.append(f"page: {paths.shown(page)}")
    return Report(results, told, "\n".join(lines))


def _distinct(titles: list[str]) -> list[str]:
    """Two files may have one name in two folders."""
    return [f"{t} ({titles[:i].count(t) + 1})" if titles.count(t) > 1 else t for i, t in enumerate(titles)]
