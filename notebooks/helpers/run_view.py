"""One view of several finished runs: six linked panels, their lines as a table, their metrics.

What cannot be shown (a damaged run, no predictions, too many classes) leaves a sentence in its panel.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from textwrap import fill, shorten

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.transforms import IdentityTransform
from PIL import Image
from torch import Tensor

from clamkit.data.dataset import Dataset
from clamkit.data.datasets import DATASETS
from clamkit.data.readers import NO_IMAGE, Files
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import load_config_data
from clamkit.engine.store import COLUMNS, Run
from clamkit.errors import ClamkitError, unknown
from clamkit.metrics import fairness
from clamkit.plots import style
from helpers.class_names import readable
from helpers.pasted_text import PastingCanvas

SIZE, DPI = (11, 6.7), 100  # inches, pixels per inch: fits a screen of 1280 pixels
FIXED = {  # a search for room would double a redraw's time; marks at the numbers add to it, and there is a grid
    "figure.constrained_layout.use": False,
    "axes.titley": 1.0,
    "xtick.bottom": False,
    "ytick.left": False,
}
LINES, SIGNS = ("-", "--", ":", "-."), ("o", "s", "^", "D")  # of the methods: colours are classes, in every panel
GREY = "#b5b5b5"  # classes that are not chosen and have no colour of their own
TICKS = 5  # along an axis, about: their numbers are what takes longest to draw
MOST_CLASSES = 10  # that can be told apart as lines
USUAL, WORST, CONFUSED, TAKEN_FOR, EXAMPLES = 3, 10, 5, 6, 6  # classes chosen at first; rows and columns below
PARTS = ("weights", "accuracies", "gaps", "worst", "confusions", "examples")  # panels, row by row
COLUMN_EDGES, ROW_EDGES = (0.0, 0.345, 0.672, 1.0), (0.0, 0.48, 0.925, 1.0)  # shares of the picture; the legend on top
UPPER = (0.555, 0.89)  # where the axes of the upper row begin and end
LABEL = -0.12  # how far below them "epoch" stands, in their heights
DATA = {"dataset", "data_dir", "image_size", "skip_bad_images", "per_class", "holdout"}  # what the images depend on
MOST_DRAWN = 300  # parts of pictures that are kept
_drawn: dict[tuple, tuple[np.ndarray, dict[int, int]]] = {}  # pixels of a part, and the column of each epoch in them


class View:
    """What is looked at: runs by name, of one setting; classes by name; an epoch; whose confusions.

    classes   default the three worst of Normal, else of the first run; and who loses most against Normal
    epoch     default the last
    confused  default the first run that is not Normal
    """

    def __init__(
        self,
        runs: Mapping[str, Run],
        classes: Sequence[str] | None = None,
        epoch: int | None = None,
        confused: str | None = None,
    ):
        if not runs:
            raise ClamkitError("No method is chosen: choose at least one (Ctrl and click for several).")
        if len(runs) > len(LINES):
            raise ClamkitError(f"{len(runs)} methods are chosen: {len(LINES)} at most can be told apart.")
        for run in runs.values():
            _check(run)
        names = {tuple(run.class_names) for run in runs.values()}
        if len(names) > 1:
            raise ClamkitError("These runs have different classes: they cannot be compared.")
        self.runs, (self.class_names,) = dict(runs), names
        self.baseline = next((run for run in runs.values() if run.config.method == "normal"), None)
        self.first = self.baseline or next(iter(runs.values()))
        self.epochs = int(max(run.history["epoch"].max() for run in runs.values()))
        self.epoch = min(epoch or self.epochs, self.epochs)
        self.classes = tuple(self.usual() if classes is None else classes)
        for name in self.classes:
            if name not in self.class_names:
                raise unknown("class", name, self.class_names)
        self.colours = style.class_colours(self.class_names, self.classes)
        weighted = [name for name, run in runs.items() if run is not self.baseline]
        self.confused = confused if confused and confused in runs else (weighted or list(runs))[0]

    def accuracy(self, run: Run) -> pd.Series:
        """Test accuracy of the classes at the epoch, or at a shorter run's last."""
        frame = _wide(run, "test_accuracy")
        return frame.loc[min(self.epoch, frame.index[-1])]

    def worst(self, count: int) -> list[str]:
        """The worst classes of the baseline (else of the first run) at the epoch, worst first."""
        return list(self.accuracy(self.first).nsmallest(count).index)

    def usual(self) -> list[str]:
        """The worst classes, and the one that loses most against Normal under any run."""
        chosen = self.worst(USUAL)
        if self.baseline and len(self.runs) > 1:
            losses = pd.DataFrame([self.accuracy(run) - self.accuracy(self.baseline) for run in self.runs.values()])
            chosen.append(str(losses.min().idxmin()))
        return list(dict.fromkeys(chosen))

    def table(self) -> pd.DataFrame:
        """The lines of the upper panels: a row for each method, epoch and class."""
        parts = {}
        for name, run in self.runs.items():
            frames = {column: _wide(run, column) for column in COLUMNS}
            if self.baseline:
                frames["gap_to_normal"] = _gap(run, self.baseline)
            stacked = {column: frame[list(self.classes)].stack() for column, frame in frames.items()}
            parts[name] = pd.concat(stacked, axis=1)
        return pd.concat(parts, names=["method", "epoch", "class"]).reset_index()

    def numbers(self) -> pd.DataFrame:
        """The fairness metrics of each method at the epoch."""
        return pd.DataFrame({name: fairness(self.accuracy(run).dropna()) for name, run in self.runs.items()}).T

    def png(self, dpi: int = DPI) -> bytes:
        """The picture. At the screen's resolution parts that were drawn before are not drawn again."""
        if dpi != DPI:
            return style.png(self.figure(), dpi, crop=False)
        keys = self._keys()
        if len(_drawn) > MOST_DRAWN:
            _drawn.clear()
        missing = [part for part, key in keys.items() if key not in _drawn]
        if missing:
            self._draw(keys, missing)
        sheet = np.full((round(DPI * SIZE[1]), round(DPI * SIZE[0]), 3), 255, np.uint8)
        for part, key in keys.items():
            top, bottom, left, right = _pixels_of(part)
            pixels, columns = _drawn[key]
            sheet[top:bottom, left:right] = pixels
            if self.epoch in columns:  # its line is painted, so that moving through the epochs draws no curve again
                column, (low, high) = columns[self.epoch], UPPER
                line = sheet[round((1 - high) * len(sheet)) : round((1 - low) * len(sheet)), column]
                line[:] = np.minimum(line, 0x99)
        buffer = io.BytesIO()
        Image.fromarray(sheet).save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    def _keys(self) -> dict[str, tuple]:
        """What each part of the picture depends on."""
        runs, of = tuple(self.runs.items()), (self.confused, self.runs[self.confused])
        keys = dict.fromkeys(("weights", "accuracies", "gaps"), (runs, self.classes))
        coloured = tuple(self.colours.items())
        keys |= {"legend": (tuple(self.runs), self.classes, coloured), "worst": (runs, coloured, self.epoch)}
        keys |= dict.fromkeys(("confusions", "examples"), of)
        return {part: (part, *key) for part, key in keys.items()}

    def _draw(self, keys: dict[str, tuple], parts: Sequence[str]) -> None:
        """Draw parts in axes that are kept, as making axes and ticks takes longer than drawing."""
        figure, axes = _kept_axes()
        with mpl.style.context([style.STYLE, FIXED]):
            for part, axis in axes.items():
                axis.set_visible(part in parts)
                if part in parts:
                    self._fill(part, axis)
            for legend in figure.legends[:]:
                legend.remove()
            if "legend" in parts:
                self._legend(figure)
            figure.canvas.draw()
        pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
        for part in parts:
            top, bottom, left, right = _pixels_of(part)
            axis, columns = axes.get(part), {}
            if part in ("weights", "accuracies", "gaps") and axis.axison:
                at = axis.transData.transform([(epoch, 0) for epoch in range(1, self.epochs + 1)])[:, 0]
                columns = {epoch: round(x) for epoch, x in enumerate(at, 1)}
            _drawn[keys[part]] = pixels[top:bottom, left:right].copy(), columns

    def figure(self) -> Figure:
        """All of it, with the line of the epoch."""
        figure, axes = _new_axes()
        with mpl.style.context([style.STYLE, FIXED]):
            for part, axis in axes.items():
                self._fill(part, axis)
                if part in ("weights", "accuracies", "gaps") and axis.axison:
                    axis.axvline(self.epoch, color="#999999", lw=0.8)
            self._legend(figure)
        return figure

    def _fill(self, part: str, axis: Axes) -> None:
        """Draw a panel, or say why it cannot be drawn."""
        _empty(axis)
        try:
            getattr(self, f"_{part}")(axis)
        except ClamkitError as error:
            _say(axis, str(error), 36)

    # ------------------------------------------------------------------------------------------- panels

    def _legend(self, figure: Figure) -> None:
        if 0 < len(self.classes) <= MOST_CLASSES:
            colours = self.colours
            looks = zip(self.runs, LINES, SIGNS, strict=False)
            handles = [Line2D([], [], color=colours[name], label=_short(name)) for name in self.classes]
            handles += [
                Line2D([], [], color="#333333", ls=line, marker=sign, ms=4, lw=1.2, label=style.short_name(name))
                for name, line, sign in looks
            ]
            figure.legend(handles=handles, loc="upper center", ncols=min(len(handles), 8))

    def _lines(self, axis: Axes, frames: dict[str, pd.DataFrame], title: str) -> None:
        """A line for each class (its colour) and method (its dashes), the epoch marked."""
        if not self.classes:
            raise ClamkitError("No class is chosen: choose up to ten in the list (Ctrl and click for several).")
        if len(self.classes) > MOST_CLASSES:
            raise ClamkitError(f"{len(self.classes)} classes are too many lines: choose at most {MOST_CLASSES}.")
        for name, line in zip(self.runs, LINES, strict=False):
            if name in frames:
                frame = frames[name]
                epochs, values = frame.index.to_numpy(), frame.to_numpy()[:, frame.columns.get_indexer(self.classes)]
                curves = [np.column_stack([epochs, curve]) for curve in values.T]
                look = {"colors": [self.colours[chosen] for chosen in self.classes], "linestyles": line}
                lines = LineCollection(curves, linewidths=1.4, joinstyle="round", **look)
                axis.add_collection(lines, autolim=False)  # it would look at every point of every line
                if np.isfinite(values).any():
                    axis.update_datalim([(epochs[0], np.nanmin(values)), (epochs[-1], np.nanmax(values))])
        style.epoch_axis(axis, title)
        axis.locator_params(nbins=TICKS)

    def _weights(self, axis: Axes) -> None:
        weighted = {name: _wide(run, "weight") for name, run in self.runs.items() if run is not self.baseline}
        if not weighted:
            raise ClamkitError("Normal training keeps all weights equal: choose a method with weights.")
        self._lines(axis, weighted, "class weights (mean 1)")
        axis.axhline(1, color="#999999", lw=0.8, ls=":")

    def _accuracies(self, axis: Axes) -> None:
        self._lines(axis, {name: _wide(run, "test_accuracy") for name, run in self.runs.items()}, "test accuracy")
        axis.yaxis.set_major_formatter(style.PERCENT)

    def _gaps(self, axis: Axes) -> None:
        if self.baseline is None or len(self.runs) == 1:
            raise ClamkitError(
                "The gap to Normal needs a Normal run of the same setting and another method: choose both."
            )
        gaps = {name: _gap(run, self.baseline) for name, run in self.runs.items() if run is not self.baseline}
        self._lines(axis, gaps, "gap to Normal, points")
        axis.axhline(0, color="#555555", lw=0.8)
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}".replace("-", "−"))

    def _worst(self, axis: Axes) -> None:
        names = self.worst(WORST)[::-1]
        y = np.arange(len(names))
        places = [self.class_names.index(name) for name in names]
        table = np.array([self.accuracy(run).to_numpy()[places] for run in self.runs.values()])
        axis.hlines(y, np.fmin.reduce(table), np.fmax.reduce(table), color="#c8c8c8", lw=2, zorder=1)
        look = {
            "color": [self.colours.get(name, GREY) for name in names],
            "offset_transform": axis.transData,
            "zorder": 2,
        }
        for values, sign in zip(
            table, map(MarkerStyle, SIGNS), strict=False
        ):  # `scatter` would take three times as long
            path = sign.get_path().transformed(sign.get_transform())
            points = PathCollection([path], [26], offsets=np.column_stack([values, y]), **look)
            points.set_transform(IdentityTransform())  # its size is in points, not in data
            axis.add_collection(points, autolim=False)
        axis.set_yticks(y, [_short(name) for name in names])
        axis.xaxis.set_major_formatter(style.PERCENT)
        axis.locator_params(axis="x", nbins=TICKS)
        axis.set_title(f"worst classes at epoch {self.epoch}")

    @lru_cache(maxsize=1)  # noqa: B019  for the two panels that show them; no more than one view is kept
    def confusion_shares(self) -> pd.DataFrame:
        """Share of each true class (rows: the worst first) taken for each class (columns), under the final network."""
        run = self.runs[self.confused]
        found, n = run.predictions, len(self.class_names)
        if not {"label", "prediction"} <= set(found) or not found.isin(range(n)).to_numpy().all() or found.empty:
            raise ClamkitError(f"the predictions of {run.name} are of another layout.")
        label, prediction = (found[name].to_numpy(int) for name in ("label", "prediction"))
        count = np.bincount(label, minlength=n)
        right = np.bincount(label[label == prediction], minlength=n)
        present = np.flatnonzero(count)
        worst = present[np.argsort(right[present] / count[present], kind="stable")[:CONFUSED]]
        taken = [np.bincount(prediction[label == true], minlength=n) / count[true] for true in worst]
        return pd.DataFrame(np.array(taken), index=worst)[np.unique(prediction)]

    def _confusions(self, axis: Axes) -> None:
        shares = self.confusion_shares()
        columns = shares.sum().nlargest(TAKEN_FOR).index.sort_values()
        shown = shares[columns].to_numpy()
        axis.imshow(shown, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in ((place, value) for place, value in np.ndenumerate(shown) if value):
            axis.text(
                column, row, f"{value:.0%}", ha="center", va="center", color="white" if value > 0.5 else "#222222"
            )
        names = self.class_names
        axis.set_yticks(range(len(shares)), [_short(names[i], 12) for i in shares.index])
        axis.set_xticks(range(len(columns)), [_short(names[i], 12) for i in columns], rotation=30, ha="right")
        axis.grid(False)
        axis.set_title(f"{self.confused}: worst classes, taken for …")

    def _examples(self, axis: Axes) -> None:
        """Test images of the worst classes, as what they are most often mistaken for."""
        try:
            shares = self.confusion_shares()
        except ClamkitError:  # the panel beside this one says why
            axis.set_axis_off()
            return
        run = self.runs[self.confused]
        config, (label, prediction) = run.config, run.predictions[["label", "prediction"]].to_numpy().T
        dataset = images_of(config)
        if dataset.sha256 != run.summary.get("data"):
            raise ClamkitError(f"{config.dataset} holds other images now than when the run was trained.")
        rows, names = [], []
        for true in map(int, shares.index):
            others = np.bincount(prediction[(label == true) & (prediction != true)])
            if others.any():  # else all are right
                taken = int(others.argmax())
                wrong = np.flatnonzero((label == true) & (prediction == taken))[:EXAMPLES]
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
        axis.grid(False)
        axis.spines[:].set_visible(False)
        axis.set_title("mistaken most often")


def _wide(run: Run, column: str) -> pd.DataFrame:
    return _laid_out(run)[column]


@lru_cache(maxsize=64)
def _laid_out(run: Run) -> dict[str, pd.DataFrame]:
    """Every column as epochs × class names, once and not at every move of a slider."""
    history, names = run.history.sort_values(["epoch", "class"]), run.class_names
    epochs = pd.Index(history["epoch"].unique(), name="epoch")
    if not np.array_equal(history["class"], np.tile(np.arange(len(names)), len(epochs))):
        raise ValueError("not every class once in every epoch")
    shape, columns = (len(epochs), len(names)), pd.Index(names)
    return {column: pd.DataFrame(history[column].to_numpy().reshape(shape), epochs, columns) for column in COLUMNS}


def _new_axes() -> tuple[Figure, dict[str, Axes]]:
    """A figure with empty axes for the panels."""
    with mpl.style.context([style.STYLE, FIXED]):
        figure = Figure(SIZE, dpi=DPI)
        PastingCanvas(figure)
        grid = figure.add_gridspec(2, 3, left=0.1, right=0.985, bottom=0.1, top=0.89, wspace=0.4, hspace=0.36)
        axes = {part: figure.add_subplot(grid[i]) for i, part in enumerate(PARTS)}
        for axis in axes.values():  # a search for the places of labels takes time
            axis.xaxis.set_label_coords(0.5, LABEL)
            axis.yaxis.set_label_coords(0, 0.5)
        return figure, axes


_kept_axes = lru_cache(_new_axes)


def _empty(axis: Axes) -> None:
    """As new, but for what every drawing of the panel sets itself: `Axes.clear` would make all ticks anew."""
    for artist in (*axis.lines, *axis.collections, *axis.images, *axis.texts):
        artist.remove()
    axis.set_axis_on()
    axis.set(title="", xlim=(0, 1), ylim=(0, 1))
    axis.relim()
    axis.autoscale()


def _pixels_of(part: str) -> tuple[int, int, int, int]:
    """Where a part lies in the picture: top, bottom, left, right."""
    width, height = (round(DPI * side) for side in SIZE)
    place = PARTS.index(part) if part in PARTS else None
    rows = ROW_EDGES[2:] if place is None else ROW_EDGES[1 - place // 3 : 3 - place // 3]
    columns = (0.0, 1.0) if place is None else COLUMN_EDGES[place % 3 : place % 3 + 2]
    top, bottom = (round(height * (1 - edge)) for edge in rows[::-1])
    return top, bottom, round(width * columns[0]), round(width * columns[1])


def _gap(run: Run, baseline: Run) -> pd.DataFrame:
    return _wide(run, "test_accuracy") - _wide(baseline, "test_accuracy")


def _pixels(images: Tensor | Files, i: int) -> np.ndarray:
    try:
        image = images.read(int(i)) if isinstance(images, Files) else images[int(i)]
    except NO_IMAGE as error:
        raise ClamkitError(f"a test image cannot be read: {error}.") from error
    return image.permute(1, 2, 0).numpy()


def _short(name: str, width: int = 16) -> str:
    return style.short_name(readable(name), width)


def _say(axis: Axes, sentence: str, width: int) -> None:
    _empty(axis)
    axis.set_axis_off()
    text = fill(shorten(sentence[:1].upper() + sentence[1:], 400), width)
    axis.text(0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, color="#555555", style="italic")


def sentence_picture(sentence: str) -> bytes:
    """The sentence as a picture, where there is nothing else to show."""
    with mpl.style.context([style.STYLE, FIXED]):
        figure = Figure((SIZE[0], 2))
        _say(figure.subplots(), sentence, 100)
    return style.png(figure, DPI, crop=False)


def _check(run: Run) -> None:
    """A history that cannot be laid out as epochs × classes is named, whatever is wrong with it."""
    try:
        _laid_out(run)
    except ClamkitError:
        raise
    except Exception as error:
        raise ClamkitError(f"the history of {run.name} is of another layout ({error}).") from error


def images_of(config: RunConfig) -> Dataset:
    """The dataset of a run, if it is on this machine: looking at a run must not start a download."""
    return _images(RunConfig(**config.model_dump(include=DATA)))


@lru_cache(maxsize=2)
def _images(config: RunConfig) -> Dataset:
    known = DATASETS.get(config.dataset)
    if known and not known.find(Path(config.data_dir) if config.data_dir else None):
        raise ClamkitError(f"The images of {config.dataset} are not on this machine.")
    return load_config_data(config)
