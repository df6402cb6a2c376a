"""What every figure shares (style, colours, saving), and the figures that need no runs: images and the game."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from clamkit import paths
from clamkit.augment import ColourJitter, RandomResizedCrop
from clamkit.data import Dataset
from clamkit.methods import METHODS
from clamkit.simplex import LowerBounded, multiplicative_weights

STYLE = Path(__file__).with_name("clamkit.mplstyle")
COLOURS = {  # the paper's methods in Okabe and Ito's palette, told apart by colour-blind readers; kin get a shade
    "normal": "#4d4d4d",
    "focal": "#e69f00",
    "pw": "#b8860b",
    "tce": "#009e73",
    "ggf": "#cc79a7",
    "apstar": "#56b4e9",
    "apstar_mmpf": "#332288",
    "maxmin": "#8c2d04",
    "clam": "#0072b2",
    "clam_kl": "#d55e00",
    "clam_clip": "#5e3c99",
    "clam_ratio": "#1b7837",
    "clam_released": "#c51b7d",
}
MARKERS = dict(zip(COLOURS, "o^vPX<>psDh*d", strict=True))
WIDTH = 7.0  # inches, of figures as wide as the text


def styled(draw):
    """Draw in the kit's style without touching the caller's; where there is nothing to draw, a note that says so."""

    def nothing(value) -> bool:
        return value is None or (isinstance(value, pd.DataFrame | list | dict) and not len(value))

    @wraps(draw)
    def wrapper(*args, **kwargs) -> Figure:
        with mpl.style.context(STYLE):
            if any(map(nothing, args[:2])):
                figure = plt.figure(figsize=(WIDTH, 0.6))
                figure.text(0.5, 0.5, "no finished runs to draw yet", ha="center", va="center", color="#777777")
                return figure
            return draw(*args, **kwargs)

    return wrapper


def save(figure: Figure, name: str, folder: Path | None = None, *, pdf: bool = False) -> Path:
    """Write figures/<name>.png, with `pdf` a .pdf beside it, and return the path of the .png.

    Neither file holds a date or a version, so that the same figure gives the same bytes.
    """
    folder = folder or paths.figures()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    with mpl.style.context(STYLE):
        figure.savefig(path, metadata={"Software": None})
        if pdf:
            nothing = dict.fromkeys(("Creator", "Producer", "CreationDate"))
            figure.savefig(path.with_suffix(".pdf"), metadata=nothing)
    return path


def label(method: str) -> str:
    return METHODS[method].label


@styled
def sample_images(dataset: Dataset, *, per_class: int = 8, most: int = 10) -> Figure:
    """The first training images of the first classes, a row for each class."""
    rows = min(most, dataset.num_classes)
    images = torch.stack([dataset.x_train[dataset.y_train == row][:per_class] for row in range(rows)])
    return _image_grid(images, dataset.class_names[:rows])


@styled
def augmented_images(
    dataset: Dataset,
    strengths: Sequence[float] = (1.0, 0.6, 0.3),
    *,
    augmentation: str = "crop",
    label: int = 6,
    seed: int = 0,
) -> Figure:
    """The same images of one class under ever stronger augmentation, a row for each strength."""
    transform = {"crop": RandomResizedCrop, "jitter": ColourJitter}[augmentation]
    none = {"crop": 1.0, "jitter": 0.0}[augmentation]
    chosen = dataset.x_train[dataset.y_train == label][:8]
    rows = [transform(strength)(chosen, torch.Generator().manual_seed(seed)) for strength in strengths]
    sign = {"crop": "≥ ", "jitter": "±"}[augmentation]
    names = [
        f"{augmentation} {sign}{strength:g}" if strength != none else f"no {augmentation}" for strength in strengths
    ]
    return _image_grid(torch.stack(rows).round().clamp(0, 255).byte(), names)


def _image_grid(images: torch.Tensor, names: Sequence[str]) -> Figure:
    """images [rows, columns, C, H, W] uint8 as one picture with a name beside each row."""
    gap = max(1, images.shape[-1] // 16)  # white, so that each image can be seen to end
    images = torch.nn.functional.pad(images, (0, gap, 0, gap), value=255)
    rows, columns, channels, height, width = images.shape
    sheet = images.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels).numpy()
    figure, axis = plt.subplots(figsize=(0.62 * columns + 1.2, 0.62 * rows))
    axis.imshow(sheet.squeeze(-1) if channels == 1 else sheet, interpolation="nearest", aspect="equal")
    axis.set(yticks=height * (np.arange(rows) + 0.5) - gap / 2, xticks=[])
    axis.set_yticklabels(names)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    return figure


@styled
def game_picture(v: Sequence[float] = (0.55, 0.8, 0.95), *, tau: float = 1.0, rounds: int = 12) -> Figure:
    """The game in one picture: who does what in an epoch, and where the weights of three classes go."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.6), width_ratios=[1.25, 1])
    _draw_players(left)
    _draw_triangle(right, np.asarray(v, float), tau, rounds)
    return figure


def _draw_players(axis) -> None:
    axis.set(xlim=(0, 10), ylim=(0, 7))
    axis.axis("off")
    box = {"boxstyle": "round,pad=0.7", "lw": 1.5}
    texts = [
        (5, 5.9, "max player: the network θ\nraises  $\\sum_i w_i\\, v_i(\\theta)$  for one epoch", COLOURS["normal"]),
        (5, 1.1, "min player: the class weights w\n$w \\leftarrow \\pi\\,(w\\, e^{-\\tau v} / Z)$", COLOURS["clam"]),
    ]
    for x, y, text, colour in texts:
        axis.text(x, y, text, ha="center", va="center", bbox=box | {"fc": "white", "ec": colour}, fontsize=10)
    for start, end, x, text, side in (
        ((7.4, 4.7), (7.4, 2.2), 7.7, "accuracy $v_i$\nof each class", "left"),
        ((2.6, 2.2), (2.6, 4.7), 2.3, "weight $w_i$\nof each class", "right"),
    ):
        axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "lw": 1.8, "color": "#555555"})
        axis.text(x, 3.45, text, ha=side, va="center", color="#333333")


def _draw_triangle(axis, v: np.ndarray, tau: float, rounds: int) -> None:
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])
    allowed = LowerBounded(3, 1 / 6)
    path = [np.full(3, 1 / 3)]
    for _ in range(rounds):
        path.append(allowed.project(multiplicative_weights(path[-1], v, tau)))
    points = np.array(path) @ corners
    inner = np.array([allowed.argmin(-row) for row in np.eye(3)]) @ corners
    axis.fill(*corners.T, fc="#f5f5f5", ec="#555555", lw=1.2)
    axis.fill(*inner.T, fc="#d6e8f5", ec=COLOURS["clam"], lw=1.2)
    axis.plot(*points.T, "-o", color=COLOURS["clam_kl"], ms=4, lw=1.2)
    axis.annotate("start: equal weights", points[0], (0.62, 0.66), arrowprops={"arrowstyle": "-", "color": "#777777"})
    places = [((-0.02, -0.03), "right", "top"), ((1.02, -0.03), "left", "top"), ((0.5, 0.89), "center", "bottom")]
    for i, (place, side, height) in enumerate(places):
        axis.text(*place, f"all on class {i + 1}\n$v_{i + 1}$ = {v[i]:g}", ha=side, va=height)
    axis.text(
        *(inner.mean(axis=0) - [0, 0.17]), "$\\Delta^c$: each weight ≥ 1/(2n)", ha="center", color=COLOURS["clam"]
    )
    axis.set(xlim=(-0.35, 1.35), ylim=(-0.2, 1.05), aspect="equal")
    axis.axis("off")
