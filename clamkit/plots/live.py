"""What a notebook shows while it trains: the classes' weights and accuracies so far, redrawn in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from clamkit.plots.runs import PANELS, class_panels
from clamkit.plots.style import png

DPI = 140
History = Sequence[Mapping[str, Sequence[float]]]  # for each epoch so far, the columns of a run's history by class


def live_view() -> Callable[[History, Sequence[str]], None] | None:
    """A function that redraws one picture in the notebook's output, for `train(config, watch=live_view())`.

    None where nobody looks: without a kernel to show pictures, and with CLAMKIT_PROGRESS=0.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or os.environ.get("CLAMKIT_PROGRESS") == "0":
        return None
    from IPython.display import Image, display

    handle = None

    def watch(history: History, class_names: Sequence[str]) -> None:
        nonlocal handle
        picture = Image(live_png(history, class_names))
        if handle is None or len(history) == 1:  # another training has begun
            handle = display(picture, display_id=True)
        else:
            handle.update(picture)

    return watch


def live_png(history: History, class_names: Sequence[str]) -> bytes:
    """`training_curves` of an unfinished run."""
    epochs = pd.RangeIndex(1, len(history) + 1, name="epoch")
    frames = {
        column: pd.DataFrame(np.stack([np.asarray(row[column]) for row in history]), epochs, list(class_names))
        for column in PANELS
    }
    figure = class_panels(frames)
    try:
        return png(figure, DPI)
    finally:
        plt.close(figure)  # or the notebook would show it a second time
