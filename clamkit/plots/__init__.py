"""Figures: one style, one colour for each method. Each function returns a matplotlib Figure.

from clamkit import plots

plots.save(plots.training_curves(run), "curves")
"""

from clamkit.plots.images import augmented_images, sample_images
from clamkit.plots.live import live_view
from clamkit.plots.runs import (
    class_accuracies,
    class_curves,
    differences,
    fairness_over_strength,
    training_curves,
    weight_evolution,
)
from clamkit.plots.style import (
    COLOURS,
    MARKERS,
    PERCENT,
    STYLE,
    TITLES,
    WIDTH,
    class_colours,
    epoch_axis,
    label,
    method_legend,
    method_lines,
    png,
    save,
    styled,
)
from clamkit.plots.theory import MAPS, draw_triangle, game_picture, paths_on_the_simplex, vertices

__all__ = [
    "COLOURS",
    "MAPS",
    "MARKERS",
    "PERCENT",
    "STYLE",
    "TITLES",
    "WIDTH",
    "augmented_images",
    "class_accuracies",
    "class_colours",
    "class_curves",
    "differences",
    "draw_triangle",
    "epoch_axis",
    "fairness_over_strength",
    "game_picture",
    "label",
    "live_view",
    "method_legend",
    "method_lines",
    "paths_on_the_simplex",
    "png",
    "sample_images",
    "save",
    "styled",
    "training_curves",
    "vertices",
    "weight_evolution",
]
