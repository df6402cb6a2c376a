"""One function for each figure, each returning a matplotlib Figure. One style, and one colour for each method."""

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
from matplotlib.ticker import MaxNLocator, PercentFormatter

from clamkit import paths
from clamkit.augment import ColourJitter, RandomResizedCrop
from clamkit.data import Dataset
from clamkit.errors import ClamkitError
from clamkit.methods import METHODS
from clamkit.runs import Run
from clamkit.simplex import LowerBounded, multiplicative_weights

STYLE = Path(__file__).with_name("clamkit.mplstyle")
COLOURS = {  # the paper's methods in Okabe and Ito's palette, told apart by colour-blind readers; kin get a shade
    "normal": "#4d4d4d",
    "focal": "#e69f00",
    "pw": "#b8860b",
    "tce": "#009e73",
    "ggf": "#cc79a7",
    "apstar": "#56b4e9",
    "apstar_mmpf": "#9ad4f5",
    "maxmin": "#8c2d04",
    "clam": "#0072b2",
    "clam_kl": "#d55e00",
    "clam_clip": "#5e3c99",
    "clam_ratio": "#1b7837",
    "clam_released": "#c51b7d",
}
MARKERS = dict(zip(COLOURS, "ox+vP<>XsDh^d", strict=True))
STRENGTH_NAMES = {"crop": "crop lower bound", "jitter": "jitter strength"}
PERCENT = PercentFormatter(1, decimals=0)


def styled(draw):
    """Draw in the kit's style without touching the caller's."""

    @wraps(draw)
    def wrapper(*args, **kwargs) -> Figure:
        with mpl.style.context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def save(figure: Figure, name: str, folder: Path | None = None) -> Path:
    """Write figures/<name>.png and return its path."""
    folder = folder or paths.figures()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    with mpl.style.context(STYLE):
        figure.savefig(path, metadata={"Software": None})
    return path


def label(method: str) -> str:
    return METHODS[method].label


@styled
def fairness_over_strength(frame: pd.DataFrame) -> Figure:
    """Average, spread and worst classes against the strength of augmentation: a line a method, a band over seeds."""
    kind = frame["augmentation"].iloc[0]
    panels = {
        "average": "average accuracy ↑",
        "std": "std over classes ↓",
        "range": "range, best − worst class ↓",
        "worst": "worst 10 % of classes ↑",
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(10, 2.7))
    for axis, (metric, title) in zip(axes, panels.items(), strict=True):
        for method, rows in frame.groupby("method", sort=False):
            by_strength = rows.groupby("strength")[metric]
            mean = by_strength.mean()
            axis.plot(mean.index, mean, color=COLOURS[method], marker=MARKERS[method], label=label(method))
            if rows["seed"].nunique() > 1:
                spread = by_strength.std()
                axis.fill_between(mean.index, mean - spread, mean + spread, color=COLOURS[method], alpha=0.15, lw=0)
        axis.set(title=title, xlabel=STRENGTH_NAMES[kind], xticks=sorted(frame["strength"].unique()))
        if kind == "crop":
            axis.invert_xaxis()  # stronger augmentation to the right
        axis.yaxis.set_major_formatter(PERCENT)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(COLOURS))
    return figure


@styled
def class_accuracies(runs: Sequence[Run], *, most: int = 20) -> Figure:
    """Test accuracy of each class under each run, worst class of the first run on top."""
    first = runs[0].test_accuracy.sort_values(ascending=False).tail(most)
    figure, axis = plt.subplots(figsize=(6.4, 1.1 + 0.27 * len(first)))
    y = np.arange(len(first))
    table = pd.DataFrame({i: run.test_accuracy[first.index] for i, run in enumerate(runs)})
    axis.hlines(y, table.min(axis=1), table.max(axis=1), color="#c8c8c8", lw=2, zorder=1)
    for i, run in enumerate(runs):
        method = run.config.method
        axis.scatter(table[i], y, s=34, color=COLOURS[method], marker=MARKERS[method], label=label(method), zorder=2)
    axis.set(yticks=y, yticklabels=first.index, xlabel="test accuracy")
    axis.xaxis.set_major_formatter(PERCENT)
    config = runs[0].config
    axis.set_title(f"Class by class, {STRENGTH_NAMES[config.augmentation]} {config.strength:g}")
    axis.legend(loc="lower left")
    return figure


@styled
def weight_evolution(run: Run, baseline: Run, classes: Sequence[str] | None = None) -> Figure:
    """The paper's 2×2 figure: weights, test accuracy, gap to the baseline over the epochs, and the final gap.

    classes: by name; default the three worst and the two best under the baseline.
    """
    if run.class_names != baseline.class_names:
        raise ClamkitError(f"{run} and {baseline} are of different datasets: their classes cannot be compared.")
    ranked = baseline.test_accuracy.sort_values().index
    classes = list(classes) if classes is not None else [*ranked[:3], *ranked[-2:]]
    weights, accuracy = run.wide("weight"), run.wide("test_accuracy")
    gap = accuracy - baseline.wide("test_accuracy")
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 5.2))
    name = label(run.config.method)
    panels = [
        (axes[0, 0], weights, f"{name}: class weights (mean 1)"),
        (axes[0, 1], accuracy, "test accuracy"),
        (axes[1, 0], gap, f"gap to {label(baseline.config.method)}"),
    ]
    for axis, frame, title in panels:
        for chosen in classes:
            axis.plot(frame.index, frame[chosen], label=chosen)
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if frame is not weights:
            axis.yaxis.set_major_formatter(PERCENT)
    axes[0, 0].axhline(1, color="#999999", lw=0.8, ls=":")
    axes[1, 0].axhline(0, color="#999999", lw=0.8)
    final = gap.iloc[-1][classes]
    colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    axes[1, 1].bar(classes, final, color=[colours[i % len(colours)] for i in range(len(classes))])
    axes[1, 1].axhline(0, color="#333333", lw=0.8)
    axes[1, 1].set_title("gap after the last epoch")
    axes[1, 1].yaxis.set_major_formatter(PERCENT)
    axes[1, 1].tick_params(axis="x", labelrotation=20)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(classes))
    return figure


@styled
def training_curves(run: Run) -> Figure:
    """Weights, training and test accuracy of every class over the epochs; at most ten classes are named."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.0))
    worst_first = run.test_accuracy.sort_values().index
    columns = {"weight": "class weight", "train_accuracy": "training accuracy", "test_accuracy": "test accuracy"}
    for axis, (column, title) in zip(axes, columns.items(), strict=True):
        frame = run.wide(column)[worst_first]
        if frame.shape[1] <= 10:
            for name in frame:
                axis.plot(frame.index, frame[name], label=name)
        else:
            axis.plot(frame.index, frame, color="#999999", lw=0.5, alpha=0.5)
            axis.plot(frame.index, frame.mean(axis=1), color="#000000", label="mean")
            axis.plot(frame.index, frame[worst_first[0]], color=COLOURS["clam_kl"], label=worst_first[0])
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if column != "weight":
            axis.yaxis.set_major_formatter(PERCENT)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", title="worst class first")
    return figure


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
    rows, columns, channels, height, width = images.shape
    sheet = images.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, channels).numpy()
    figure, axis = plt.subplots(figsize=(0.62 * columns + 1.2, 0.62 * rows))
    axis.imshow(sheet.squeeze(-1) if channels == 1 else sheet, interpolation="nearest", aspect="equal")
    axis.set(yticks=height * (np.arange(rows) + 0.5), xticks=[])
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


@styled
def fairness_training(history: pd.DataFrame) -> Figure:
    """std and COV of the test accuracies over the epochs, averaged over runs: the paper's figure 3."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    keys = ["method", "strength", "seed", "epoch"]
    spread = history.groupby(keys, sort=False)["test_accuracy"].agg(["mean", "std"]).reset_index()
    spread["cov"] = spread["std"] / spread["mean"]
    for axis, (column, title) in zip(axes, {"std": "std over classes ↓", "cov": "COV ↓"}.items(), strict=True):
        for method, rows in spread.groupby("method", sort=False):
            mean = rows.groupby("epoch")[column].mean()
            axis.plot(mean.index, mean, color=COLOURS[method], label=label(method))
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].yaxis.set_major_formatter(PERCENT)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


@styled
def worst_class_curves(classes: pd.DataFrame, most: int = 10) -> Figure:
    """Accuracy of the x-th worst class under each method, averaged over runs (the paper's appendix on worst classes).

    classes: columns method, strength, seed, class and test_accuracy.
    """
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    ranked = classes.assign(
        rank=classes.groupby(["method", "strength", "seed"])["test_accuracy"].rank(method="first").astype(int)
    )
    for method, rows in ranked[ranked["rank"] <= most].groupby("method", sort=False):
        mean = rows.groupby("rank")["test_accuracy"].mean()
        axis.plot(mean.index, mean, color=COLOURS[method], marker=MARKERS[method], label=label(method))
    axis.set(xlabel="x-th worst class", ylabel="test accuracy", title="The worst classes of each method")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_formatter(PERCENT)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right center")
    return figure


@styled
def class_curves(classes: pd.DataFrame, methods: Sequence[str], augmentation: str = "crop") -> Figure:
    """Accuracy of every class against the strength of augmentation, a panel for each method.

    classes: columns method, strength, seed, class_name and test_accuracy.
    """
    figure, axes = plt.subplots(1, len(methods), figsize=(4.2 * len(methods), 3.4), sharey=True, squeeze=False)
    for axis, method in zip(axes[0], methods, strict=True):
        table = classes[classes["method"] == method].pivot_table(
            index="strength", columns="class_name", values="test_accuracy", sort=False
        )
        for name in table:
            axis.plot(table.index.sort_values(), table[name].sort_index(), marker="o", ms=3, label=name)
        axis.set(title=label(method), xlabel=STRENGTH_NAMES[augmentation])
        axis.yaxis.set_major_formatter(PERCENT)
        if augmentation == "crop":
            axis.invert_xaxis()
    axes[0, 0].set_ylabel("test accuracy")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


@styled
def differences(tables: dict[str, pd.DataFrame], title: str) -> Figure:
    """Mean difference and its interval for each metric (a panel) and method (a row), from `metrics.compare`."""
    metrics = next(iter(tables.values())).index
    figure, axes = plt.subplots(
        1, len(metrics), figsize=(2.3 * len(metrics), 0.9 + 0.3 * len(tables)), sharey=True, squeeze=False
    )
    y = np.arange(len(tables))[::-1]
    for axis, metric in zip(axes[0], metrics, strict=True):
        for height, (method, table) in zip(y, tables.items(), strict=True):
            row = table.loc[metric]
            axis.plot([100 * row["ci_low"], 100 * row["ci_high"]], [height, height], color=COLOURS[method], lw=2)
            axis.plot(100 * row["mean_difference"], height, MARKERS[method], color=COLOURS[method])
        axis.axvline(0, color="#555555", lw=0.8)
        axis.set(title=metric.replace("_", " "), yticks=y)
    axes[0, 0].set_yticklabels([label(method) for method in tables])
    figure.supxlabel(title, fontsize=9)
    return figure
