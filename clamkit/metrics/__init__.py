"""Class accuracies, what they say about equity, and how sure that is. numpy, scipy and pandas; no torch."""

from clamkit.metrics.accuracy import HIGHER_IS_BETTER, METRICS, TAIL, class_accuracy, fairness, tail_size
from clamkit.metrics.statistics import (
    FEWEST,
    LEVEL,
    POINT,
    by_seed,
    compare,
    compare_groups,
    decide,
    holm,
    seed_interval,
    seed_test,
)

__all__ = [
    "FEWEST", "HIGHER_IS_BETTER", "LEVEL", "METRICS", "POINT", "TAIL", "by_seed", "class_accuracy", "compare",
    "compare_groups", "decide", "fairness", "holm", "seed_interval", "seed_test", "tail_size",
]  # fmt: skip
