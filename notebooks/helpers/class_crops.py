"""Crops with a bound for each class: what the area of a view tells of the label, and what a network makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from clamkit.data.augment import RandomResizedCrop, normalise, resized_crop
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import forward, load_config_data, set_up
from clamkit.engine.store import RunFolder
from clamkit.plots.style import PERCENT, WIDTH, styled

SIDE = 28  # of the embedded images
BINS = 20  # of the area
LOOKS = {"own bounds": ("#d55e00", "s"), "own bounds, half whole": ("#0072b2", "o")}


def setting(config: RunConfig) -> str:
    """What a run of the grid is called here."""
    kind = {type(None): "one bound for all", tuple: "own bounds", str: "bounds by the weights"}[
        type(config.crop_bounds)
    ]
    return kind + (", half whole" if config.whole_views else "")


def views(bounds: Sequence[float], whole_views: float = 0.0, count: int = 100_000) -> pd.DataFrame:
    """Label and area (1: whole) of views as training draws them, as many of each class."""
    labels = torch.arange(count) % len(bounds)
    crop, generator = RandomResizedCrop(min(bounds), whole_views=whole_views), torch.Generator().manual_seed(0)
    _, boxes = crop.draw(count, SIDE, SIDE, generator, torch.tensor(bounds, dtype=torch.float64)[labels])
    return pd.DataFrame({"label": labels, "area": (boxes[:, 2] * boxes[:, 3]).numpy() / SIDE**2})


def labels_by_area(frame: pd.DataFrame) -> pd.DataFrame:
    """P(label | area), a row for each of 20 steps of the area by its upper end."""
    steps = np.ceil(frame["area"] * BINS) / BINS
    return pd.crosstab(steps, frame["label"], normalize="index")


def told_by_area(frame: pd.DataFrame) -> float:
    """How often the best guess from the area alone, learned on the first half of the views, is right on the others."""
    half = len(frame) // 2
    guess = labels_by_area(frame[:half]).idxmax(axis=1)
    steps = np.ceil(frame["area"][half:] * BINS) / BINS
    return float((steps.map(guess) == frame["label"][half:]).mean())


@torch.inference_mode()
def predicted_by_area(run: RunFolder, areas: Sequence[float], every: int = 4) -> pd.DataFrame:
    """Share of every 4th test image that is taken for each class, cut to the middle with these areas (1: whole)."""
    state = set_up(run.config, load_config_data(run.config), torch.device("cpu"))
    state.load(run.load_checkpoint())
    state.model.eval()
    x, rows = state.dataset.x_test[::every], []
    for area in areas:
        side = round(SIDE * area**0.5)
        box = torch.tensor([(SIDE - side) // 2, (SIDE - side) // 2, side, side]).repeat(len(x), 1)
        images = normalise(resized_crop(x, box, (SIDE, SIDE)), state.dataset.mean, state.dataset.std)
        found = torch.cat([forward(state, part).argmax(1) for part in images.split(500)])
        rows.append(found.bincount(minlength=state.dataset.num_classes).numpy() / len(x))
    return pd.DataFrame(rows, index=pd.Index(areas, name="area"), columns=state.dataset.class_names)


@styled
def figure(by_area: dict[str, pd.Series], predicted: dict[str, pd.Series], name: str) -> Figure:
    """Left P(class | area) in training, right how often test images of that area are taken for the class."""
    drawn, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.8), sharey=True)
    for axis, lines in ((left, by_area), (right, predicted)):
        for label, line in lines.items():
            colour, marker = LOOKS[label]
            axis.plot(line.index, line, color=colour, marker=marker, label=label)
        axis.axhline(0.1, color="#777777", linestyle=":", label="chance")
        axis.yaxis.set_major_formatter(PERCENT)
    left.set(title=f"Training: views that are {name}", xlabel="area of the view", ylim=(0, None))
    right.set(title=f"Test images taken for {name}", xlabel="area of the middle that is shown")
    left.legend()
    return drawn
