"""Intervals of spread and tails: how often they hold the truth, and what they are where that is known."""

import numpy as np
import pytest
from scipy.stats import beta

from clamkit.metrics import METRICS, bootstrap, fairness
from clamkit.metrics.bootstrap import fairness_intervals


def curve(a: float, b: float, classes: int) -> np.ndarray:
    """Accuracies at the quantiles of a beta distribution."""
    return beta(a, b).ppf((np.arange(classes) + 0.5) / classes)


CASES = {  # true accuracies, images of each class
    "a ladder of ten classes": (np.linspace(0.5, 0.95, 10), 50),
    "one bad class": (np.r_[0.4, np.full(9, 0.9)], 400),
    "all alike": (np.full(20, 0.8), 100),
    "a hundred classes": (curve(6, 2, 100), 50),
    "four classes, few images": (np.array([0.9, 0.8, 0.7, 0.5]), 30),
    # the rest came after the method; the range of one bad class of a hundred made CAUTION smaller
    "nearly nothing or nearly all right": (curve(0.6, 0.4, 25), 40),
    "two groups": (np.r_[np.full(25, 0.6), np.full(25, 0.9)], 80),
    "one bad class of a hundred": (np.r_[0.2, np.full(99, 0.85)], 50),
    "a hundred alike, ten images": (np.full(100, 0.7), 10),
    "the bad classes are rare": (curve(4, 2, 15), np.repeat([10, 50, 500], 5)),
    "the good classes are rare": (curve(4, 2, 15), np.repeat([500, 50, 10], 5)),
}


def coverage(v: np.ndarray, images: int | np.ndarray, times: int) -> dict[str, float]:
    true, generator, seen = fairness(v), np.random.default_rng(1), np.broadcast_to(images, v.shape)
    held = np.zeros((times, len(METRICS)))
    for i in range(times):
        found = fairness_intervals(generator.binomial(seen, v), seen, seed=i)
        held[i] = [found.loc[m, "low"] - 1e-9 <= true[m] <= found.loc[m, "high"] + 1e-9 for m in METRICS]
    return dict(zip(METRICS, held.mean(axis=0), strict=True))


NEAREST = "one bad class of a hundred"  # to the limit: in 100 samples, drawn as users draw them


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_the_truth_in_93_of_100_samples(name, monkeypatch):
    """Fewer draws and fewer values between them make an interval narrower, and so harder to hold: 60 samples will do.

    One that holds in 85 of 100 gets 56 of 60 with a probability of 4 % (93 of 100: 1 %), in one metric of six.
    """
    if name != NEAREST:
        monkeypatch.setattr(bootstrap, "DRAWS", (60, 100))
        monkeypatch.setattr(bootstrap, "BETWEEN", 10)
    found = coverage(*CASES[name], times=100 if name == NEAREST else 60)
    found.pop("average")  # below, in more samples
    assert {metric: share for metric, share in found.items() if share < 0.93} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one bad class", "four classes, few images", "the bad classes are rare"])
def test_the_average_is_held(name, monkeypatch):
    """Nothing is drawn for it; 4,000 samples of eight shapes gave 94.3 % or more."""
    monkeypatch.setattr(bootstrap, "DRAWS", (1, 1))
    monkeypatch.setattr(bootstrap, "BETWEEN", 1)
    assert coverage(*CASES[name], times=200)["average"] >= 0.93


@pytest.mark.slow
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


def test_classes_that_came_out_alike_need_not_be():
    """Five of five right in each class: one may be at 1/(1 + 1.96²/5) = 0.566, Wilson's limit, the others at 1."""
    found = fairness_intervals([5, 5, 5], [5, 5, 5])
    assert found.loc["std", "low"] == pytest.approx(0, abs=1e-9)
    assert found.loc["std", "high"] >= (1 - 0.566) / np.sqrt(3) - 1e-3
    assert found.loc["worst", "low"] == pytest.approx(0.566, abs=1e-3)


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
