"""Intervals of spread and tails: how often they hold the truth, and what they are where that is known."""

import numpy as np
import pytest
from scipy.stats import beta

from clamkit.metrics import METRICS, fairness
from clamkit.metrics.bootstrap import fairness_intervals

CASES = {  # true accuracies, images of each class
    "a ladder of ten classes": (np.linspace(0.5, 0.95, 10), 50),
    "one bad class": (np.r_[0.4, np.full(9, 0.9)], 400),
    "all alike": (np.full(20, 0.8), 100),
    "a hundred classes": (beta(6, 2).ppf((np.arange(100) + 0.5) / 100), 50),
    "four classes, few images": (np.array([0.9, 0.8, 0.7, 0.5]), 30),
}


def coverage(v: np.ndarray, images: int, times: int) -> dict[str, float]:
    true, generator = fairness(v), np.random.default_rng(1)
    held = np.zeros((times, len(METRICS)))
    for i in range(times):
        found = fairness_intervals(generator.binomial(images, v), np.full(len(v), images), seed=i)
        held[i] = [found.loc[m, "low"] - 1e-9 <= true[m] <= found.loc[m, "high"] + 1e-9 for m in METRICS]
    return dict(zip(METRICS, held.mean(axis=0), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_the_truth_in_93_of_100_samples(name):
    found = coverage(*CASES[name], times=300)
    assert {metric: share for metric, share in found.items() if share < 0.93} == {}


def test_a_ladder_is_held_in_a_few_samples():
    assert min(coverage(*CASES["a ladder of ten classes"], times=12).values()) >= 0.75


def test_many_images_leave_little_doubt():
    v = np.array([0.2, 0.5, 0.9])
    found, true = fairness_intervals(v * 1_000_000, np.full(3, 1_000_000)), fairness(v)
    np.testing.assert_allclose(found["low"], true, atol=0.004)
    np.testing.assert_allclose(found["high"], true, atol=0.004)


def test_the_interval_of_the_std_of_many_classes_is_narrow():
    """1,000 classes of 50 images: the std of the std is about std/√2000, that is 0.003."""
    v = beta(6, 2).ppf((np.arange(1000) + 0.5) / 1000)
    low, high = fairness_intervals(np.random.default_rng(0).binomial(50, v), np.full(1000, 50)).loc["std"]
    assert low < v.std(ddof=1) < high
    assert high - low < 0.025


def test_noise_alone_may_be_no_spread_at_all():
    """Twenty equal classes: the spread that is seen is noise, and 0 is in the interval though the estimate is not."""
    right = np.random.default_rng(0).binomial(50, 0.8, 20)
    found = fairness_intervals(right, np.full(20, 50))
    assert found.loc["std", "low"] == pytest.approx(0, abs=1e-9)
    assert fairness(right / 50)["std"] > 0.03


@pytest.mark.parametrize("right", [[5, 5, 5], [0, 0, 0], [5, 0, 5], [1, 0, 0]])
def test_odd_samples_give_intervals(right):
    for seen in (5, np.array([5, 7, 5])):
        found = fairness_intervals(right, np.broadcast_to(seen, 3))
        assert (found["low"] <= found["high"]).all()
        assert found.drop("cov").stack().between(0, 1).all()
