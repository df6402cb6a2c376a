"""What `train(config, live=True)` shows in a notebook: the classes' weights and accuracies, redrawn in place."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

PANELS = {"weight": "class weight", "train_accuracy": "training accuracy", "test_accuracy": "test accuracy"}
NAMED = 10  # of more classes than this, all are grey lines and the worst alone has a name
History = Sequence[dict]  # for each epoch so far, the columns of a run's history by class


def live_view(class_names: Sequence[str]) -> Callable[[History], None] | None:
    """A function that redraws one picture in the notebook's output; None where nobody looks.

    That is without a kernel to show pictures, and with CLAMKIT_PROGRESS=0.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or os.environ.get("CLAMKIT_PROGRESS") == "0":
        return None
    from IPython.display import HTML, Image, display

    handle = display(HTML("<i>training the first epoch …</i>"), display_id=True)
    return lambda history: handle.update(Image(live_png(history, class_names)))


def live_png(history: History, class_names: Sequence[str]) -> bytes:
    """Weights, training and test accuracy of every class over the epochs so far."""
    import matplotlib as mpl  # here, because training itself needs no plots
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    values = {column: np.array([np.asarray(row[column]) for row in history]) for column in PANELS}
    epochs = np.arange(1, len(history) + 1)
    worst_first = np.argsort(values["test_accuracy"][-1], kind="stable")  # nan comes last
    with mpl.style.context(Path(__file__).with_name("clamkit.mplstyle")):
        figure = Figure((10, 3.0))
        for axis, (column, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            if len(class_names) > NAMED:
                axis.plot(epochs, values[column], color="#999999", lw=0.5, alpha=0.5)
            for i in worst_first[: NAMED if len(class_names) <= NAMED else 1]:
                axis.plot(epochs, values[column][:, i], "-o", ms=2.5, label=class_names[i])
            axis.set(title=title, xlabel="epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            if column != "weight":
                axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", title="worst class first")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
