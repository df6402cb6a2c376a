"""Finished runs side by side: `runs_explorer()` for JupyterLab and voila; `View(...)` draws and exports without.

Whatever cannot be shown (no runs, a damaged one, no predictions, too many classes) leaves a sentence in its place.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from textwrap import fill, shorten

import ipywidgets as widgets
import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from clamkit import data, paths, results
from clamkit.config import STRENGTHS
from clamkit.errors import ClamkitError, unknown
from clamkit.methods import METHODS
from clamkit.metrics import fairness
from clamkit.plots import COLOURS, MARKERS, PERCENT, STYLE, label
from clamkit.runs import COLUMNS, Run, RunStore

SIZE, DPI = (11, 6.7), 100  # inches, pixels per inch: fits a screen of 1280 pixels
LINES = ("-", "--", ":", "-.")  # of the methods, where colours are classes
MOST_CLASSES = 10  # that can be told apart as lines
USUAL, WORST, CONFUSED, TAKEN_FOR, EXAMPLES = 3, 10, 5, 6, 6  # classes chosen at first; rows and columns below
SETTING = ("source", "dataset", "augmentation", "strength", "recipe", "seed")  # what the runs of a view share


def find_runs(root=None) -> tuple[pd.DataFrame, list[str]]:
    """All runs at hand, a row each (the columns of SETTING, `name` of the method, `run`), and what was left out, why.

    Those of the runs folder come first, then the committed results.
    """
    store = RunStore(root)
    rows, left_out = [], []
    grids = sorted(path.stem for path in results.folder().glob("*.parquet"))
    for source, runs in [("runs folder", store.runs()), *((f"committed: {grid}", _committed(grid)) for grid in grids)]:
        try:
            for run in runs:
                try:
                    rows.append(_row(source, run))
                except ClamkitError as error:
                    left_out.append(str(error))
        except ClamkitError as error:
            left_out.append(str(error))
    if not any(row["source"] == "runs folder" for row in rows):
        left_out.append(
            f"There are no finished runs in {paths.shown(store.root)} (as <dataset>/<method>/<augmentation>/<seed>): "
            "`make demo` trains nine in some minutes."
        )
    return pd.DataFrame(rows, columns=[*SETTING, "name", "run"]), left_out


def _committed(grid: str) -> Iterator[Run]:
    histories = dict(list(results.histories_of(grid).groupby("run", sort=False)))
    for row in results.rows_of(grid).to_dict("records"):
        if row["run"] in histories:
            yield results.Recorded(row, histories[row["run"]])


def _row(source: str, run: Run) -> dict:
    """Where a run belongs. Its recipe is what it shares with the runs it may fairly be compared with."""
    config, own = run.config, METHODS[run.config.method].takes
    if not isinstance(run.summary, dict) or not run.summary.get("class_names"):
        raise ClamkitError(f"{paths.shown(run.folder)} names no classes: it is of another layout.")
    identity = config.identity()
    method = ", ".join(f"{key} = {identity[key]}" for key in own if key in identity)
    kept = set(identity) - {"method", "dataset", "augmentation", "seed", *STRENGTHS.values(), *own}
    return {
        "source": source,
        "dataset": config.dataset,
        "augmentation": config.augmentation,
        "strength": config.strength,
        "recipe": ", ".join(f"{key} = {identity[key]}" for key in sorted(kept)) or "standard",
        "seed": config.seed,
        "name": f"{label(config.method)} ({method})" if method else label(config.method),
        "run": run,
    }


def _check(run: Run) -> None:
    """A history that cannot be laid out as epochs × classes is named, whatever is wrong with it."""
    try:
        for column in COLUMNS:
            run.wide(column)
    except ClamkitError:
        raise
    except Exception as error:
        raise ClamkitError(f"the history of {paths.shown(run.folder)} is of another layout ({error}).") from error


@lru_cache(maxsize=2)
def _dataset(name: str, data_dir: str | None, image_size: int | None, skip_bad: bool) -> data.Dataset:
    if name in data.KNOWN and not data.KNOWN[name].find(data_dir):  # looking at a run must not start a download
        raise ClamkitError(f"The images of {name} are not on this machine.")
    return data.load(name, data_dir=data_dir, image_size=image_size, skip_bad_images=skip_bad)


@dataclass
class View:
    """What is looked at: runs by name, on the same ground; classes by name; an epoch; whose confusions.

    classes: default the three worst of Normal, else of the first run.
    """

    runs: dict[str, Run]
    classes: tuple[str, ...] | None = None
    epoch: int | None = None
    confused: str | None = None

    def __post_init__(self):
        if not self.runs:
            raise ClamkitError("No method is chosen: choose at least one (Ctrl and click for several).")
        if len(self.runs) > len(LINES):
            raise ClamkitError(f"{len(self.runs)} methods are chosen: {len(LINES)} at most can be told apart.")
        for run in self.runs.values():
            _check(run)
        names = {tuple(run.class_names) for run in self.runs.values()}
        if len(names) > 1:
            raise ClamkitError("These runs have different classes: they cannot be compared.")
        (self.class_names,) = names
        self.baseline = next((run for run in self.runs.values() if run.config.method == "normal"), None)
        self.first = self.baseline or next(iter(self.runs.values()))
        self.epochs = int(max(run.history["epoch"].max() for run in self.runs.values()))
        self.epoch = min(self.epoch or self.epochs, self.epochs)
        self.classes = tuple(self.worst(USUAL) if self.classes is None else self.classes)
        for name in self.classes:
            if name not in self.class_names:
                raise unknown("class", name, self.class_names)
        weighted = [name for name, run in self.runs.items() if run is not self.baseline]
        self.confused = self.confused if self.confused in self.runs else (weighted or list(self.runs))[0]

    def accuracy(self, run: Run) -> pd.Series:
        """Test accuracy of the classes at the epoch, or at a shorter run's last."""
        frame = run.wide("test_accuracy")
        return frame.loc[min(self.epoch, frame.index[-1])]

    def worst(self, count: int) -> list[str]:
        """The worst classes of the baseline (else of the first run) at the epoch, worst first."""
        return list(self.accuracy(self.first).nsmallest(count).index)

    def table(self) -> pd.DataFrame:
        """The lines of the upper panels: a row for each method, epoch and class."""
        parts = {}
        for name, run in self.runs.items():
            frames = {column: run.wide(column) for column in COLUMNS}
            if self.baseline:
                frames["gap_to_normal"] = self.gap(run)
            stacked = {column: frame[list(self.classes)].stack() for column, frame in frames.items()}
            parts[name] = pd.concat(stacked, axis=1)
        return pd.concat(parts, names=["method", "epoch", "class"]).reset_index()

    def numbers(self) -> pd.DataFrame:
        """The fairness metrics of each method at the epoch."""
        return pd.DataFrame({name: fairness(self.accuracy(run).dropna()) for name, run in self.runs.items()}).T

    def gap(self, run: Run) -> pd.DataFrame:
        return run.wide("test_accuracy") - self.baseline.wide("test_accuracy")

    def png(self, dpi: int = DPI) -> bytes:
        with mpl.style.context(STYLE):
            figure = Figure(SIZE, layout="none")  # fixed margins: laying out anew would double the time of a redraw
            axes = figure.subplots(2, 3, gridspec_kw={"wspace": 0.4, "hspace": 0.36}).flatten()
            figure.subplots_adjust(left=0.1, right=0.985, top=0.89, bottom=0.1)
            panels = (self._weights, self._accuracies, self._gaps, self._worst, self._confusions, self._examples)
            for axis, draw in zip(axes, panels, strict=True):
                try:
                    draw(axis)
                except ClamkitError as error:
                    _say(axis, str(error), 36)
            self._legend(figure)
            return _png(figure, dpi)

    # ------------------------------------------------------------------------------------------- panels

    def _legend(self, figure: Figure) -> None:
        if 0 < len(self.classes) <= MOST_CLASSES:
            colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
            handles = [Line2D([], [], color=c, label=_short(n)) for c, n in zip(colours, self.classes, strict=False)]
            handles += [
                Line2D([], [], color="#333333", ls=ls, label=n) for ls, n in zip(LINES, self.runs, strict=False)
            ]
            figure.legend(handles=handles, loc="upper center", ncols=min(len(handles), 8))

    def _lines(self, axis: Axes, frames: dict[str, pd.DataFrame]) -> None:
        """A line for each class (its colour) and method (its dashes), the epoch marked."""
        if not self.classes:
            raise ClamkitError("No class is chosen: choose up to ten in the list (Ctrl and click for several).")
        if len(self.classes) > MOST_CLASSES:
            raise ClamkitError(f"{len(self.classes)} classes are too many lines: choose at most {MOST_CLASSES}.")
        styles = dict(zip(self.runs, LINES, strict=False))
        for name, frame in frames.items():
            for chosen, colour in zip(self.classes, mpl.rcParams["axes.prop_cycle"].by_key()["color"], strict=False):
                axis.plot(frame.index, frame[chosen], ls=styles[name], color=colour, lw=1.4)
        axis.axvline(self.epoch, color="#999999", lw=0.8)
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))

    def _weights(self, axis: Axes) -> None:
        weighted = {name: run.wide("weight") for name, run in self.runs.items() if run is not self.baseline}
        if not weighted:
            raise ClamkitError("Normal training keeps all weights equal: choose a method with weights.")
        self._lines(axis, weighted)
        axis.axhline(1, color="#999999", lw=0.8, ls=":")
        axis.set_title("class weights (mean 1)")

    def _accuracies(self, axis: Axes) -> None:
        self._lines(axis, {name: run.wide("test_accuracy") for name, run in self.runs.items()})
        axis.yaxis.set_major_formatter(PERCENT)
        axis.set_title("test accuracy")

    def _gaps(self, axis: Axes) -> None:
        if self.baseline is None or len(self.runs) == 1:
            raise ClamkitError(
                "The gap to Normal needs a Normal run of the same setting and another method: choose both."
            )
        self._lines(axis, {name: self.gap(run) for name, run in self.runs.items() if run is not self.baseline})
        axis.axhline(0, color="#555555", lw=0.8)
        axis.yaxis.set_major_formatter(PERCENT)
        axis.set_title("gap to Normal")

    def _worst(self, axis: Axes) -> None:
        names = self.worst(WORST)[::-1]
        y = np.arange(len(names))
        table = pd.DataFrame({name: self.accuracy(run)[names] for name, run in self.runs.items()})
        axis.hlines(y, table.min(axis=1), table.max(axis=1), color="#c8c8c8", lw=2, zorder=1)
        for name, run in self.runs.items():
            method = run.config.method
            axis.scatter(table[name], y, s=26, color=COLOURS[method], marker=MARKERS[method], label=name, zorder=2)
        axis.set_yticks(y, [_short(name) for name in names])
        axis.xaxis.set_major_formatter(PERCENT)
        axis.set_title(f"worst classes at epoch {self.epoch}")
        axis.legend(loc="lower left", handletextpad=0.2)

    def confusion_shares(self) -> pd.DataFrame:
        """Share of each true class (rows: the worst first) taken for each class (columns), under the final network."""
        run = self.runs[self.confused]
        if isinstance(run, results.Recorded):
            raise ClamkitError(
                "Committed results carry no predictions: train the run here (`make demo`) to see its confusions."
            )
        if not {"label", "prediction"} <= set(run.predictions) or run.predictions.to_numpy().max() >= len(
            self.class_names
        ):
            raise ClamkitError(f"the predictions of {paths.shown(run.folder)} are of another layout.")
        shares = pd.crosstab(run.predictions["label"], run.predictions["prediction"], normalize="index")
        right = pd.Series({i: shares.at[i, i] if i in shares.columns else 0.0 for i in shares.index})
        return shares.loc[right.nsmallest(CONFUSED).index]

    def _confusions(self, axis: Axes) -> None:
        shares = self.confusion_shares()
        columns = shares.sum().nlargest(TAKEN_FOR).index.sort_values()
        shown = shares[columns].to_numpy()
        axis.imshow(shown, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(shown):
            axis.text(
                column, row, f"{value:.0%}", ha="center", va="center", color="white" if value > 0.5 else "#222222"
            )
        names = self.class_names
        axis.set_yticks(range(len(shares)), [_short(names[i]) for i in shares.index])
        axis.set_xticks(range(len(columns)), [_short(names[i]) for i in columns], rotation=30, ha="right")
        axis.grid(False)
        axis.set_title(f"{self.confused}: worst classes, taken for …")

    def _examples(self, axis: Axes) -> None:
        """Test images of the worst classes, as what they are most often mistaken for."""
        run, shares = self.runs[self.confused], self.confusion_shares()
        config, found = run.config, run.predictions
        dataset = _dataset(config.dataset, config.data_dir, config.image_size, config.skip_bad_images)
        if dataset.sha256 != run.summary.get("data"):
            raise ClamkitError(f"{config.dataset} holds other images now than when the run was trained.")
        rows, names = [], []
        for true, row in shares.iterrows():
            others = row.drop(true, errors="ignore")
            if others.max() > 0:  # else all are right
                taken = others.idxmax()
                wrong = np.flatnonzero((found["label"] == true) & (found["prediction"] == taken))[:EXAMPLES]
                rows.append([_pixels(dataset.x_test, i) for i in wrong])
                names.append(f"{_short(self.class_names[true], 14)}\n→ {_short(self.class_names[taken], 12)}")
        if not rows:
            raise ClamkitError("No test image is mistaken.")
        height, width, channels = rows[0][0].shape
        sheet = np.full((len(rows) * height, EXAMPLES * width, channels), 255, np.uint8)
        for i, images in enumerate(rows):
            for j, image in enumerate(images):
                sheet[i * height : (i + 1) * height, j * width : (j + 1) * width] = image
        axis.imshow(sheet.squeeze(-1) if channels == 1 else sheet, interpolation="nearest")
        axis.set_yticks(height * (np.arange(len(rows)) + 0.5), names)
        axis.set_xticks([])
        axis.tick_params(length=0)
        axis.grid(False)
        axis.spines[:].set_visible(False)
        axis.set_title("mistaken most often")


def _pixels(images, i: int) -> np.ndarray:
    image = images.read(int(i)) if hasattr(images, "read") else images[int(i)]
    return image.permute(1, 2, 0).numpy()


def _short(name: str, width: int = 16) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _say(axis: Axes, sentence: str, width: int) -> None:
    axis.clear()
    axis.axis("off")
    text = fill(shorten(sentence, 400), width)
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, color="#555555", style="italic")


def _png(figure: Figure, dpi: int = DPI) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches=figure.bbox_inches)
    return buffer.getvalue()


def _sentence(sentence: str) -> bytes:
    """The sentence as a picture, where there is nothing else to show."""
    with mpl.style.context(STYLE):
        figure = Figure((SIZE[0], 2), layout="none")
        _say(figure.subplots(), sentence, 100)
        return _png(figure)


# ------------------------------------------------------------------------------------------------ widgets


def runs_explorer(root=None) -> widgets.Widget:
    """Choose runs, classes and an epoch; six linked plots; export as PNG and CSV.

    root: the runs folder, default `paths.runs()`.
    """
    table, left_out = find_runs(root)
    narrow = {"layout": widgets.Layout(width="266px"), "style": {"description_width": "92px"}}
    boxes = {key: widgets.Dropdown(description=key, **narrow) for key in SETTING}
    methods = widgets.SelectMultiple(description="methods", rows=5, **narrow)
    classes = widgets.SelectMultiple(description="classes", rows=5, **narrow)
    epoch = widgets.IntSlider(1, 1, 1, description="epoch", **narrow)
    confused = widgets.Dropdown(description="confusions of", **narrow)
    export = widgets.Button(description="export this view", icon="download", layout=widgets.Layout(width="170px"))
    image, links = widgets.Image(format="png", layout=widgets.Layout(max_width="100%")), widgets.HTML()
    numbers = widgets.HTML()
    notes = widgets.HTML("".join(f"<div><i>{escape(line)}</i></div>" for line in left_out[:5]))
    moving = False

    def chosen() -> dict[str, Run]:
        rows = table
        for key, box in boxes.items():
            rows = rows[rows[key] == box.value]
        return {name: rows.set_index("name").at[name, "run"] for name in methods.value}

    def view() -> View:
        return View(chosen(), classes.value, epoch.value, confused.value)

    def redraw(change=None) -> None:
        if moving:
            return
        links.value = ""
        try:
            shown = view()
            image.value, numbers.value = shown.png(), _as_line(shown)
        except ClamkitError as error:
            image.value, numbers.value = _sentence(str(error)), ""

    def refill(change=None) -> None:
        """Every list offers what there is under the choices before it and keeps its choice if it still can."""
        nonlocal moving
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
        names = [name for name in map(label, METHODS) if name in set(rows["name"])]
        names += sorted(set(rows["name"]) - set(names))
        kept = [name for name in methods.value if name in names]
        usual = [name for name in map(label, ("normal", "clam", "clam_kl")) if name in names]
        methods.options = names
        methods.value = kept or usual or names[:1]
        moving = False
        choose()

    def choose(change=None) -> None:
        """The methods changed: so may classes and epochs."""
        nonlocal moving
        if moving:
            return
        moving = True
        try:
            fresh = View(chosen())
            kept = [name for name in classes.value if name in fresh.class_names]
            at_end = epoch.value == epoch.max
            if tuple(classes.options) != fresh.class_names:
                classes.options = fresh.class_names
            classes.value = kept or fresh.classes
            epoch.max = fresh.epochs
            epoch.value = fresh.epochs if at_end else min(epoch.value, fresh.epochs)
            confused.options = list(fresh.runs)
            confused.value = fresh.confused
        except ClamkitError:
            pass  # redraw says it
        moving = False
        redraw()

    def offer(button) -> None:
        try:
            shown = view()
            links.value = " · ".join(
                (_link(shown.png(200), "png"), _link(shown.table().to_csv(index=False).encode(), "csv"))
            )
        except ClamkitError as error:
            links.value = escape(str(error))

    if table.empty:
        image.value = _sentence(" ".join(left_out))
        return widgets.VBox([image])
    for box in boxes.values():
        box.observe(refill, "value")
    methods.observe(choose, "value")
    for control in (classes, epoch, confused):
        control.observe(redraw, "value")
    export.on_click(offer)
    refill()
    columns = (list(boxes.values())[:3], list(boxes.values())[3:], [methods], [classes])
    rows = widgets.HBox([widgets.VBox(column) for column in columns])
    below = widgets.HBox([epoch, confused, export, links])
    return widgets.VBox([rows, below, numbers, image, notes])


def _as_line(view: View) -> str:
    parts = [
        f"<b>{escape(name)}</b> {100 * row['average']:.1f} / {100 * row['std']:.1f} / {100 * row['worst']:.1f}"
        for name, row in view.numbers().iterrows()
    ]
    return f"epoch {view.epoch}, average / std / worst 10 % of the classes in %: " + " · ".join(parts)


def _link(content: bytes, kind: str) -> str:
    """A link that saves `content` from the browser, wherever the kernel runs."""
    mime = {"png": "image/png", "csv": "text/csv"}[kind]
    encoded = base64.b64encode(content).decode()
    return f'<a download="clamkit_view.{kind}" href="data:{mime};base64,{encoded}">save as {kind.upper()}</a>'
