"""Comparisons, corrections and intervals against scipy, brute force and hand-worked cases."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from clamkit import metrics
from clamkit.errors import ClamkitError

fixed = settings(derandomize=True, deadline=None, max_examples=50)


def runs(**columns) -> pd.DataFrame:
    """Rows as RunStore.frame() has them: 4 crop bounds × 2 seeds."""
    pairs = itertools.product((0.3, 0.5, 0.7, 1.0), (0, 1))
    return pd.DataFrame(pairs, columns=["crop_lower_bound", "seed"]).assign(**columns)


def test_compare_by_hand():
    got = metrics.compare([1, 2, 3, 0], [0, 0, 0, 4], margin=3).loc["value"]  # differences 1, 2, 3, −4
    assert (got["n"], got["pairs"], got["mean_difference"]) == (4, 4, 0.5)
    error = np.sqrt((0.5**2 + 1.5**2 + 2.5**2 + 4.5**2) / 3) / 2
    assert got["ci_high"] - 0.5 == pytest.approx(3.182446 * error)  # Student's t of 3 degrees of freedom, from a table
    swapped = metrics.compare([0, 0, 0, 4], [1, 2, 3, 0], margin=3).loc["value"]
    assert swapped["mean_difference"] == -0.5
    assert (swapped[["p", "p_equal"]] == got[["p", "p_equal"]]).all()


@fixed
@given(st.lists(st.integers(-100, 100), min_size=3, max_size=12).filter(lambda d: len(set(d)) > 1))
def test_compare_is_scipys_t_test(d):
    d = np.array(d) / 1000
    got = metrics.compare(d, np.zeros_like(d)).loc["value"]
    reference = scipy.stats.ttest_1samp(d, 0)
    assert got["p"] == pytest.approx(reference.pvalue, abs=1e-12)
    low, high = reference.confidence_interval(0.95)
    assert (got["ci_low"], got["ci_high"]) == (pytest.approx(low), pytest.approx(high))
    sides = ((-0.01, "greater"), (0.01, "less"))
    outside = [scipy.stats.ttest_1samp(d, at, alternative=side).pvalue for at, side in sides]
    assert got["p_equal"] == pytest.approx(max(outside), abs=1e-12)


def test_fewer_than_three_seeds_decide_nothing():
    for n in (1, 2):
        got = metrics.compare([0.5, 0.6][:n], np.zeros(n)).loc["value"]
        assert got["verdict"] == f"not decided: {n} of at least 3 seeds"
        assert got["p"] == got["p_equal"] == 1
    three = metrics.compare([0.5, 0.6, 0.7], np.zeros(3), names=("CLAM", "Normal")).loc["value"]
    assert three["verdict"] == "CLAM is higher than Normal (p = 0.0091)"


def test_bounds_of_one_seed_are_one_unit():
    """Two seeds at four bounds are two numbers, however well the eight pairs agree."""
    got = metrics.compare(runs(std=np.arange(1, 9)), runs(std=0)).loc["std"]
    assert (got["n"], got["pairs"]) == (2, 8)
    assert got["verdict"].startswith("not decided: 2 of at least 3 seeds")


def test_settings_that_some_seed_lacks_are_left_out():
    index = pd.MultiIndex.from_tuples([(0.3, 0), (0.3, 1), (1.0, 0)], names=["strength", "seed"])
    assert metrics.by_seed(pd.Series([1.0, 2.0, 50.0], index=index)).tolist() == [1, 2]
    apart = pd.Series([1.0, 50.0], index=index[1:])  # no setting in common
    assert metrics.by_seed(apart).tolist() == [50, 1]
    assert metrics.by_seed(pd.Series([3.0, 4.0])).tolist() == [3, 4], "without seeds each value is a unit"


def test_holm_by_hand():
    # sorted .01 .03 .04 → ×3 ×2 ×1 = .03 .06 .04, and none below the one before it
    np.testing.assert_allclose(metrics.holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(metrics.holm(np.array([0.6, 0.5])), [1, 1])


def test_compare_equal_runs():
    three = [runs(std=0.1, worst=0.5).assign(seed=lambda rows, k=k: rows["seed"] + k) for k in (0, 2)]
    same = pd.concat(three)
    got = metrics.compare(same, same)
    assert (got["p"] == 1).all()
    assert (got[["mean_difference", "ci_low", "ci_high", "p_equal"]] == 0).all(axis=None)
    assert (got["verdict"] == "no difference of 0.01 or more (p = 0)").all()


def test_compare_frames_pairs_by_bound_and_seed():
    rng = np.random.default_rng(1)
    keys = pd.DataFrame(itertools.product((0.3, 1.0), range(4)), columns=["crop_lower_bound", "seed"])
    a = keys.assign(method="clam", std=rng.random(8), worst=rng.random(8), note="x")
    b = keys.assign(method="normal", std=a["std"] + 0.1 + 0.01 * rng.random(8), worst=rng.random(8), note="y")
    got = metrics.compare(a, b, names=("CLAM", "Normal"))
    assert list(got.index) == ["std", "worst"]
    measures = ["n", "pairs", "mean_difference", "ci_low", "ci_high", "p", "p_holm", "p_equal"]
    assert list(got.columns) == [*measures, "verdict"]
    each = [(a["std"] - b["std"])[a["seed"] == seed].mean() for seed in range(4)]
    assert got.loc["std", "p"] == pytest.approx(scipy.stats.ttest_1samp(each, 0).pvalue)
    assert got.loc["std", "p_holm"] == pytest.approx(2 * got.loc["std", "p"])
    assert got.loc["std", "verdict"].startswith("CLAM is lower than Normal (p = ")
    assert got.loc["worst", "verdict"].startswith("not decided: the interval is [")
    pd.testing.assert_frame_equal(metrics.compare(a, b.sample(frac=1, random_state=3), names=("CLAM", "Normal")), got)
    only = metrics.compare(a, b, metrics="std", on=["seed", "crop_lower_bound"]).loc["std"]
    assert only["p_holm"] == only["p"] == got.loc["std", "p"]
    series = metrics.compare(
        a.set_index(["crop_lower_bound", "seed"])["std"], b.set_index(["crop_lower_bound", "seed"])["std"]
    )
    assert series.loc["std", "p"] == got.loc["std", "p"]
    narrower = metrics.compare(a, b, confidence=0.5)
    assert (narrower["ci_low"] > got["ci_low"]).all()
    assert (narrower["ci_high"] < got["ci_high"]).all()
    assert np.isnan(metrics.compare([1.0], [0.0]).loc["value", "ci_low"])  # one pair has no spread


# how sure "95 %" is, by simulation: 20,000 experiments, columns of one array


def simulated(seeds: int, bounds: int = 4, *, draw=np.random.Generator.standard_normal) -> np.ndarray:
    """Differences [seed, bound, experiment] of mean 0: luck of the seed, and as much of each run."""
    rng = np.random.default_rng(seeds)
    return draw(rng, (seeds, 1, 20_000)) + draw(rng, (seeds, bounds, 20_000))


def coverage(effects: np.ndarray) -> float:
    low, high = metrics.seed_interval(effects)
    return float(np.mean((low <= 0) & (0 <= high)))


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_intervals_cover_what_they_say(seeds):
    differences = simulated(seeds)
    assert 0.94 < coverage(differences.mean(axis=1)) < 0.96
    flat = simulated(seeds, draw=lambda rng, size: rng.uniform(-1, 1, size))
    assert 0.93 < coverage(flat.mean(axis=1)) < 0.96, "also where the differences are not normal"
    assert coverage(differences.reshape(-1, 20_000)) < 0.85, "pairs as units would be far too sure"


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_false_alarms_are_as_rare_as_said(seeds):
    effects = simulated(seeds).mean(axis=1)
    p, _ = metrics.seed_test(effects)
    assert 0.04 < np.mean(p <= 0.05) < 0.06
    _, p_equal = metrics.seed_test(effects + 5.0, margin=5.0)  # just as large as matters
    assert np.mean(p_equal <= 0.05) < 0.06
    _, p_equal = metrics.seed_test(effects / 1000, margin=5.0)
    assert np.mean(p_equal <= 0.05) > 0.99


@pytest.mark.parametrize(
    ("a", "b", "options", "says"),
    [
        (runs(std=0.1), runs(std=0.2).iloc[:-1], {}, "rows of a without a partner: crop_lower_bound 1.0, seed 1."),
        (runs(std=0.1).iloc[1:], runs(std=0.2), {}, "rows of b without a partner: crop_lower_bound 0.3, seed 0."),
        (pd.concat([runs(std=0.1)] * 2), runs(std=0.2), {}, "a has more than one row for crop_lower_bound 0.3, seed 0"),
        (
            runs(std=0.1),
            runs(std=[0.2] * 7 + [np.nan]),
            {},
            "std is not a finite number in crop_lower_bound 1.0, seed 1",
        ),
        (runs(std=0.1), runs(std=0.2), {"metrics": ["sdt"]}, "Did you mean 'std'?"),
        (runs(std=0.1), runs(std=0.2), {"on": "sede"}, "Did you mean 'seed'?"),
        (runs(other=0.1), runs(other=0.2), {}, "share no metric"),
        (runs(std=0.1).iloc[:0], runs(std=0.1).iloc[:0], {}, "no pairs to compare"),
        (runs(std=0.1), np.zeros(8), {}, "two frames, two Series or two vectors"),
        ([1, 2, 3], [1, 2], {}, "shape (3,) and b (2,)"),
        ([1, np.nan], [1, 2], {}, "value is not a finite number in pair 1"),
        ([1, 2], [1, 3], {"confidence": 95}, "confidence=95"),
    ],
)
def test_compare_refuses(a, b, options, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.compare(a, b, **options)
