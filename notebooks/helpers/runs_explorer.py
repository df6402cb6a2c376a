"""Finished runs in JupyterLab and voila: `runs_explorer()`. Its pictures are those of `helpers.run_view`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache, partial
from html import escape

import ipywidgets as widgets
import pandas as pd

from clamkit import paths
from clamkit.engine.config import STRENGTHS, WITHOUT_EFFECT, RunConfig
from clamkit.engine.store import Run, RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.lab import results
from clamkit.methods.specs import METHODS
from clamkit.plots.style import label
from helpers.class_names import readable
from helpers.downloads import link
from helpers.run_view import View, sentence_picture

SETTING = ("source", "dataset", "augmentation", "strength", "recipe", "seed")  # what the runs of a view share
COLUMNS = [*SETTING, "name", "open"]


def find_runs(root: str | os.PathLike | None = None) -> tuple[pd.DataFrame, list[str]]:
    """All runs at hand, a row each (SETTING, `name` of the method, `open` it), and what was left out, why.

    Those of the runs folder come first, then the committed results. No history is read before a run is opened.
    """
    store, left_out = RunStore(root), []
    found = store.frame(left_out)
    tables = []
    if found.empty:
        left_out.append(
            f"There are no finished runs in {paths.shown(store.root)} (as <dataset>/<method>/<augmentation>/<seed>): "
            "`make demo` trains nine in some minutes."
        )
    else:
        opening = [partial(RunFolder, folder) for folder in found["folder"]]
        tables.append(_table("runs folder", found, opening, left_out))
    for grid in results.grids():
        try:
            rows = results.rows_of(grid)
            opening = [partial(_committed, grid, rows, place) for place in range(len(rows))]
            tables.append(_table(f"committed: {grid}", rows, opening, left_out))
        except ClamkitError as error:
            left_out.append(str(error))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS), left_out


def _committed(grid: str, rows: pd.DataFrame, place: int) -> Run:
    row = rows.iloc[place].to_dict()
    return results.CommittedRun(lambda: row, lambda: results.histories_of(grid, [row["run"]]))


@lru_cache(maxsize=64)
def _opened(opening: Callable[[], Run]) -> Run:
    """A run once opened, so that what was read of it is not read again."""
    return opening()


def _table(source: str, rows: pd.DataFrame, opening: list[Callable[[], Run]], left_out: list[str]) -> pd.DataFrame:
    """Where runs belong; those that differ in their seeds alone are looked at once."""
    fields = [name for name in RunConfig.model_fields if name in rows and name not in {"seed", *WITHOUT_EFFECT}]
    kinds = rows.groupby(fields, dropna=False, sort=False).ngroup()
    looks, firsts = {}, ~kinds.duplicated()
    for kind, row in zip(kinds[firsts], rows[firsts].to_dict("records"), strict=True):
        try:
            looks[kind] = _look(results.config_of(row))
        except ClamkitError as error:
            left_out.append(str(error))
    table = pd.DataFrame.from_dict(looks, orient="index").reindex(kinds).reset_index(drop=True)
    table = table.assign(source=source, seed=rows["seed"].to_numpy(), open=opening)
    return table[kinds.isin(looks.keys()).to_numpy()].reindex(columns=COLUMNS)


def _look(config: RunConfig) -> dict[str, object]:
    """Where a run belongs. Its recipe is what it shares with the runs it may fairly be compared with."""
    identity, own = config.identity(), METHODS[config.method].settings
    method = ", ".join(f"{key} = {identity[key]}" for key in own if key in identity)
    kept = set(identity) - {"method", "dataset", "augmentation", "seed", *STRENGTHS.values(), *own}
    return {
        "dataset": config.dataset,
        "augmentation": config.augmentation,
        "strength": config.strength,
        "recipe": ", ".join(f"{key} = {identity[key]}" for key in sorted(kept)) or "standard",
        "name": f"{label(config.method)} ({method})" if method else label(config.method),
    }


def runs_explorer(root: str | os.PathLike | None = None) -> widgets.Widget:
    """Choose runs, classes and an epoch; six linked plots; export as PNG and CSV.

    root: the runs folder, default `paths.runs()`.
    """
    table, left_out = find_runs(root)
    narrow = {"layout": widgets.Layout(width="244px"), "style": {"description_width": "86px"}}  # four fit beside files
    boxes = {key: widgets.Dropdown(description=key, **narrow) for key in SETTING}
    methods = widgets.SelectMultiple(description="methods", rows=5, **narrow)
    classes = widgets.SelectMultiple(description="classes", rows=5, **narrow)
    epoch = widgets.IntSlider(1, 1, 1, description="epoch", **narrow)
    confused = widgets.Dropdown(description="confusions of", **narrow)
    export = widgets.Button(description="export this view", icon="download", layout=widgets.Layout(width="170px"))
    image, links = widgets.Image(format="png", layout=widgets.Layout(max_width="min(100%, 1100px)")), widgets.HTML()
    numbers = widgets.HTML()
    notes = widgets.HTML("".join(f"<div><i>{escape(line)}</i></div>" for line in left_out[:5]))
    moving, found = False, {}

    def chosen() -> dict[str, Run]:
        return {name: _opened(found[name]) for name in methods.value}

    def view() -> View:
        return View(chosen(), classes.value, epoch.value, confused.value)

    def redraw(change: object = None) -> None:
        if moving:
            return
        links.value = ""
        try:
            shown = view()
            image.value, numbers.value = shown.png(), _as_line(shown)
        except ClamkitError as error:
            image.value, numbers.value = sentence_picture(str(error)), ""

    def refill(change: object = None) -> None:
        """Every list offers what there is under the choices before it and keeps its choice if it still can."""
        nonlocal moving, found
        if moving:
            return
        moving = True
        rows = table
        for key, box in boxes.items():
            counts = rows[key].value_counts(sort=False)
            usual = counts.index[0] if key == "source" else counts.sort_index().idxmax()
            options = list(counts.index) if key == "source" else sorted(counts.index)
            keep = box.value if box.value in options else usual
            box.options, box.value = options, keep
            box.disabled = len(options) == 1
            rows = rows[rows[key] == keep]
        found = dict(zip(rows["name"], rows["open"], strict=True))
        names = [name for name in map(label, METHODS) if name in found]
        names += sorted(set(found) - set(names))
        kept = [name for name in methods.value if name in names]
        usual = [name for name in map(label, ("normal", "clam", "clam_kl")) if name in names]
        methods.options = names
        methods.value = kept or usual or names[:1]
        moving = False
        choose()

    def choose(change: object = None) -> None:
        """The methods changed: so may classes and epochs."""
        nonlocal moving
        if moving:
            return
        moving = True
        try:
            fresh = View(chosen(), ())
            kept = [name for name in classes.value if name in fresh.class_names]
            at_end = epoch.value == epoch.max
            offered = tuple((readable(name), name) for name in fresh.class_names)
            if tuple(classes.options) != offered:
                classes.options = offered
            classes.value = kept or fresh.usual()
            epoch.max = fresh.epochs
            epoch.value = fresh.epochs if at_end else min(epoch.value, fresh.epochs)
            confused.options = list(fresh.runs)
            confused.value = fresh.confused
        except ClamkitError:
            pass  # redraw says it
        moving = False
        redraw()

    def offer(button: widgets.Button) -> None:
        try:
            shown = view()
            links.value = " · ".join(
                (
                    link(shown.png(200), "clamkit_view.png", "save as PNG"),
                    link(shown.table().to_csv(index=False).encode(), "clamkit_view.csv", "save as CSV"),
                )
            )
        except ClamkitError as error:
            links.value = escape(str(error))

    if table.empty:
        image.value = sentence_picture(" ".join(left_out))
        return widgets.VBox([image])
    for box in boxes.values():
        box.observe(refill, "value")
    methods.observe(choose, "value")
    for control in (classes, epoch, confused):
        control.observe(redraw, "value")
    export.on_click(offer)
    refill()
    columns = (list(boxes.values())[:3], list(boxes.values())[3:], [methods], [classes])
    wrap = widgets.Layout(flex_flow="row wrap")
    rows = widgets.HBox([widgets.VBox(column) for column in columns], layout=wrap)
    below = widgets.HBox([epoch, confused, export, links], layout=wrap)
    return widgets.VBox([rows, below, numbers, image, notes])


def _as_line(view: View) -> str:
    parts = [
        f"<b>{escape(str(name))}</b> {100 * row['average']:.1f} / {100 * row['std']:.1f} / {100 * row['worst']:.1f}"
        for name, row in view.numbers().iterrows()
    ]
    return f"epoch {view.epoch}, average / std / worst 10 % of the classes in %: " + " · ".join(parts)
