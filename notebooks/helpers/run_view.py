"""One view of several finished runs: six linked panels, their lines as a table, their metrics.

What cannot be shown (a damaged run, no predictions, too many classes) leaves a sentence in its panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from textwrap import fill, shorten

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from clamkit.data.dataset import Dataset
from clamkit.data.datasets import DATASETS
from clamkit.data.readers import Files
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import load_config_data
from clamkit.engine.store import COLUMNS, Run
from clamkit.errors import ClamkitError, unknown
from clamkit.metrics import fairness
from clamkit.plots import style

SIZE, DPI = (11, 6.7), 100  # inches, pixels per inch: fits a screen of 1280 pixels
FIXED = {"figure.constrained_layout.use": False}  # laying out anew would double the time of a redraw
LINES = ("-", "--", ":", "-.")  # of the methods, where colours are classes
MOST_CLASSES = 10  # that can be told apart as lines
USUAL, WORST, CONFUSED, TAKEN_FOR, EXAMPLES = 3, 10, 5, 6, 6  # classes chosen at first; rows and columns below


class View:
    """What is looked at: runs by name, of one setting; classes by name; an epoch; whose confusions.

    classes   default the three worst of Normal, else of the first run
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
        self.classes = tuple(self.worst(USUAL) if classes is None else classes)
        for name in self.classes:
            if name not in self.class_names:
                raise unknown("class", name, self.class_names)
        weighted = [name for name, run in runs.items() if run is not self.baseline]
        self.confused = confused if confused and confused in runs else (weighted or list(runs))[0]

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
                frames["gap_to_normal"] = _gap(run, self.baseline)
            stacked = {column: frame[list(self.classes)].stack() for column, frame in frames.items()}
            parts[name] = pd.concat(stacked, axis=1)
        return pd.concat(parts, names=["method", "epoch", "class"]).reset_index()

    def numbers(self) -> pd.DataFrame:
        """The fairness metrics of each method at the epoch."""
        return pd.DataFrame({name: fairness(self.accuracy(run).dropna()) for name, run in self.runs.items()}).T

    def png(self, dpi: int = DPI) -> bytes:
        return style.png(self.figure(), dpi, crop=False)

    def figure(self) -> Figure:
        with mpl.style.context([style.STYLE, FIXED]):
            figure = Figure(SIZE)
            axes = figure.subplots(2, 3, gridspec_kw={"wspace": 0.4, "hspace": 0.36}).flatten()
            figure.subplots_adjust(left=0.1, right=0.985, top=0.89, bottom=0.1)
            panels = (self._weights, self._accuracies, self._gaps, self._worst, self._confusions, self._examples)
            for axis, draw in zip(axes, panels, strict=True):
                try:
                    draw(axis)
                except ClamkitError as error:
                    _say(axis, str(error), 36)
            self._legend(figure)
        return figure

    # ------------------------------------------------------------------------------------------- panels

    def _legend(self, figure: Figure) -> None:
        if 0 < len(self.classes) <= MOST_CLASSES:
            colours = style.class_colours(self.class_names, self.classes)
            lines = zip(self.runs, LINES, strict=False)
            handles = [Line2D([], [], color=colours[name], label=_short(name)) for name in self.classes]
            handles += [Line2D([], [], color="#333333", ls=ls, label=name) for name, ls in lines]
            figure.legend(handles=handles, loc="upper center", ncols=min(len(handles), 8))

    def _lines(self, axis: Axes, frames: dict[str, pd.DataFrame], title: str) -> None:
        """A line for each class (its colour) and method (its dashes), the epoch marked."""
        if not self.classes:
            raise ClamkitError("No class is chosen: choose up to ten in the list (Ctrl and click for several).")
        if len(self.classes) > MOST_CLASSES:
            raise ClamkitError(f"{len(self.classes)} classes are too many lines: choose at most {MOST_CLASSES}.")
        colours = style.class_colours(self.class_names, self.classes)
        for name, line in zip(self.runs, LINES, strict=False):
            if name in frames:
                for chosen in self.classes:
                    axis.plot(frames[name].index, frames[name][chosen], ls=line, color=colours[chosen], lw=1.4)
        axis.axvline(self.epoch, color="#999999", lw=0.8)
        style.epoch_axis(axis, title)

    def _weights(self, axis: Axes) -> None:
        weighted = {name: run.wide("weight") for name, run in self.runs.items() if run is not self.baseline}
        if not weighted:
            raise ClamkitError("Normal training keeps all weights equal: choose a method with weights.")
        self._lines(axis, weighted, "class weights (mean 1)")
        axis.axhline(1, color="#999999", lw=0.8, ls=":")

    def _accuracies(self, axis: Axes) -> None:
        self._lines(axis, {name: run.wide("test_accuracy") for name, run in self.runs.items()}, "test accuracy")
        axis.yaxis.set_major_formatter(style.PERCENT)

    def _gaps(self, axis: Axes) -> None:
        if self.baseline is None or len(self.runs) == 1:
            raise ClamkitError(
                "The gap to Normal needs a Normal run of the same setting and another method: choose both."
            )
        gaps = {name: _gap(run, self.baseline) for name, run in self.runs.items() if run is not self.baseline}
        self._lines(axis, gaps, "gap to Normal")
        axis.axhline(0, color="#555555", lw=0.8)
        axis.yaxis.set_major_formatter(style.PERCENT)

    def _worst(self, axis: Axes) -> None:
        names = self.worst(WORST)[::-1]
        y = np.arange(len(names))
        table = pd.DataFrame({name: self.accuracy(run)[names] for name, run in self.runs.items()})
        axis.hlines(y, table.min(axis=1), table.max(axis=1), color="#c8c8c8", lw=2, zorder=1)
        for name, run in self.runs.items():
            colour, marker = style.COLOURS[run.config.method], style.MARKERS[run.config.method]
            axis.scatter(table[name], y, s=26, color=colour, marker=marker, label=name, zorder=2)
        axis.set_yticks(y, [_short(name) for name in names])
        axis.xaxis.set_major_formatter(style.PERCENT)
        axis.set_title(f"worst classes at epoch {self.epoch}")
        axis.legend(loc="lower left", handletextpad=0.2)

    def confusion_shares(self) -> pd.DataFrame:
        """Share of each true class (rows: the worst first) taken for each class (columns), under the final network."""
        run = self.runs[self.confused]
        found, n = run.predictions, len(self.class_names)
        if not {"label", "prediction"} <= set(found) or not found.isin(range(n)).to_numpy().all() or found.empty:
            raise ClamkitError(f"the predictions of {run.name} are of another layout.")
        shares = pd.crosstab(found["label"], found["prediction"], normalize="index")
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
        dataset = images_of(config)
        if dataset.sha256 != run.summary.get("data"):
            raise ClamkitError(f"{config.dataset} holds other images now than when the run was trained.")
        rows, names = [], []
        for true in map(int, shares.index):
            others = shares.loc[true].drop(true, errors="ignore")
            if others.max() > 0:  # else all are right
                taken = int(others.index.to_numpy()[others.to_numpy().argmax()])
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


def _gap(run: Run, baseline: Run) -> pd.DataFrame:
    return run.wide("test_accuracy") - baseline.wide("test_accuracy")


def _pixels(images: Tensor | Files, i: int) -> np.ndarray:
    try:
        image = images.read(int(i)) if isinstance(images, Files) else images[int(i)]
    except OSError as error:
        raise ClamkitError(f"a test image cannot be read: {error}.") from error
    return image.permute(1, 2, 0).numpy()


def _short(name: str, width: int = 16) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _say(axis: Axes, sentence: str, width: int) -> None:
    axis.clear()
    axis.axis("off")
    text = fill(shorten(sentence, 400), width)
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
        for column in COLUMNS:
            run.wide(column)
    except ClamkitError:
        raise
    except Exception as error:
        raise ClamkitError(f"the history of {run.name} is of another layout ({error}).") from error


@lru_cache(maxsize=2)
def images_of(config: RunConfig) -> Dataset:
    """The dataset of a run, if it is on this machine: looking at a run must not start a download."""
    known = DATASETS.get(config.dataset)
    if known and not known.find(Path(config.data_dir) if config.data_dir else None):
        raise ClamkitError(f"The images of {config.dataset} are not on this machine.")
    return load_config_data(config)
