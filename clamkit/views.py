"""One view of several finished runs: six linked panels, their lines as a table, their metrics.

What cannot be shown (a damaged run, no predictions, too many classes) leaves a sentence in its panel.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import fill, shorten

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from clamkit import data, paths
from clamkit.errors import ClamkitError, unknown
from clamkit.metrics import fairness
from clamkit.plots import COLOURS, MARKERS, PERCENT, STYLE
from clamkit.results import Recorded
from clamkit.runs import COLUMNS, Run

SIZE, DPI = (11, 6.7), 100  # inches, pixels per inch: fits a screen of 1280 pixels
LINES = ("-", "--", ":", "-.")  # of the methods, where colours are classes
MOST_CLASSES = 10  # that can be told apart as lines
USUAL, WORST, CONFUSED, TAKEN_FOR, EXAMPLES = 3, 10, 5, 6, 6  # classes chosen at first; rows and columns below


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
        if isinstance(run, Recorded):
            raise ClamkitError(
                "Committed results carry no predictions: train the run here (`make demo`) to see its confusions."
            )
        found, n = run.predictions, len(self.class_names)
        if not {"label", "prediction"} <= set(found) or not found.isin(range(n)).to_numpy().all() or found.empty:
            raise ClamkitError(f"the predictions of {paths.shown(run.folder)} are of another layout.")
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
    try:
        image = images.read(int(i)) if hasattr(images, "read") else images[int(i)]
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


def _png(figure: Figure, dpi: int = DPI) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches=figure.bbox_inches)
    return buffer.getvalue()


def sentence_picture(sentence: str) -> bytes:
    """The sentence as a picture, where there is nothing else to show."""
    with mpl.style.context(STYLE):
        figure = Figure((SIZE[0], 2), layout="none")
        _say(figure.subplots(), sentence, 100)
        return _png(figure)


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
    if name in data.KNOWN and not data.KNOWN[name].find(
        data_dir and Path(data_dir)
    ):  # looking at a run must not start a download
        raise ClamkitError(f"The images of {name} are not on this machine.")
    return data.load(name, data_dir=data_dir, image_size=image_size, skip_bad_images=skip_bad)
