"""Figures in one style. Each function returns a matplotlib Figure; `plots.save(figure, "name")` writes it."""

from clamkit.plots.images import augmented_images, sample_images
from clamkit.plots.runs import (
    class_accuracies,
    class_curves,
    differences,
    fairness_over_strength,
    live_view,
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

__all__ = [
    "COLOURS", "MARKERS", "PERCENT", "STYLE", "TITLES", "WIDTH", "augmented_images", "class_accuracies",
    "class_colours", "class_curves", "differences", "epoch_axis", "fairness_over_strength", "label", "live_view",
    "method_legend", "method_lines", "png", "sample_images", "save", "styled", "training_curves", "weight_evolution",
]  # fmt: skip
