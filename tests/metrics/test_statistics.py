"""Comparisons, corrections and intervals against scipy, brute force and hand-worked cases."""

import itertools
import re
from math import comb

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from clamkit import metrics
from clamkit.errors import ClamkitError

fixed = settings(derandomize=True, deadline=None, max_examples=50)


def runs(**columns) -> pd.DataFrame:
    """Rows as RunStore.frame() has them: 4 crop bounds × 2 seeds."""
    pairs = itertools.product((0.3, 0.5, 0.7, 1.0), (0, 1))
    return pd.DataFrame(pairs, columns=["crop_lower_bound", "seed"]).assign(**columns)


def test_compare_signs_by_hand():
    got = metrics.compare([1, 2, 3, 0], [0, 0, 0, 4]).loc["value"]  # differences 1, 2, 3, −4
    assert got["n"] == 4
    assert got["mean_difference"] == 0.5
    assert got["effect"] == pytest.approx((6 - 4) / 10)  # W₊ = 1 + 2 + 3, W₋ = 4
    assert got["p"] == pytest.approx(2 * 7 / 16)  # 7 of the 16 subsets of {1, 2, 3, 4} sum to 4 or less
    swapped = metrics.compare([0, 0, 0, 4], [1, 2, 3, 0]).loc["value"]
    assert swapped["effect"] == -got["effect"]
    assert swapped["p"] == got["p"]


@fixed
@given(st.lists(st.integers(-100, 100).filter(bool), min_size=1, max_size=20, unique_by=abs))
def test_compare_is_scipys_wilcoxon(d):
    d = np.array(d) / 100
    got = metrics.compare(d, np.zeros_like(d), resamples=10).loc["value"]
    reference = scipy.stats.wilcoxon(d)
    assert got["p"] == pytest.approx(reference.pvalue)
    ranks = scipy.stats.rankdata(np.abs(d))
    assert got["effect"] == pytest.approx((ranks[d > 0].sum() - ranks[d < 0].sum()) / ranks.sum())
    assert min(ranks[d > 0].sum(), ranks[d < 0].sum()) == reference.statistic


def test_compare_with_ties_and_zeros_is_exact():
    d = np.array([0.1, 0.1, 0.2, -0.2, 0.3, 0.1, 0.0, 0.0, 0.4])
    kept = d[d != 0]
    ranks = scipy.stats.rankdata(np.round(np.abs(kept), 9))
    observed = abs(np.sum(np.sign(kept) * ranks))
    flips = [abs(np.dot(signs, ranks)) >= observed - 1e-9 for signs in itertools.product((1, -1), repeat=kept.size)]
    got = metrics.compare(0.3 + d, np.full(9, 0.3)).loc["value"]  # 0.3 + 0.1 − 0.3 is not 0.1 in floating point
    assert got["n"] == 9
    assert got["p"] == pytest.approx(np.mean(flips))


def test_compare_says_when_pairs_are_too_few():
    for n in range(1, 6):
        verdict = metrics.compare(np.arange(1, n + 1), np.zeros(n)).loc["value", "verdict"]
        assert verdict == f"not decidable: with {n} pairs that differ, p cannot be below {2 / 2**n:.2g}"
    assert "below 0.062" in verdict  # 2/2⁵
    six = metrics.compare(np.arange(1, 7), np.zeros(6), names=("CLAM", "Normal")).loc["value"]
    assert six["p"] == pytest.approx(2 / 2**6)
    assert six["verdict"] == "CLAM is higher than Normal (p = 0.031)"


def test_holm_raises_how_many_pairs_are_needed():
    a, b = runs(std=np.arange(1, 9), worst=np.arange(1, 9)).iloc[:6], runs(std=0, worst=0).iloc[:6]
    got = metrics.compare(a, b)
    assert (got["p"] < 0.05).all()
    np.testing.assert_allclose(got["p_holm"], 2 * 2 / 2**6)
    assert (got["verdict"] == "not decidable: with 6 pairs that differ, p cannot be below 0.062").all()


def test_holm_by_hand():
    # sorted .01 .03 .04 → ×3 ×2 ×1 = .03 .06 .04, and none below the one before it
    np.testing.assert_allclose(metrics.holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(metrics.holm(np.array([0.6, 0.5])), [1, 1])


def test_compare_equal_runs():
    got = metrics.compare(runs(std=0.1, worst=0.5), runs(std=0.1, worst=0.5), names=("x", "y"))
    assert (got["p"] == 1).all()
    assert (got[["mean_difference", "ci_low", "ci_high", "effect"]] == 0).all(axis=None)
    assert (got["verdict"] == "x and y are equal in every pair").all()


def test_compare_frames_pairs_by_bound_and_seed():
    rng = np.random.default_rng(1)
    a = runs(method="clam", std=rng.random(8), worst=rng.random(8), note="x")
    b = runs(method="normal", std=a["std"] + 0.1 + 0.01 * rng.random(8), worst=rng.random(8), note="y")
    got = metrics.compare(a, b, names=("CLAM", "Normal"))
    assert list(got.index) == ["std", "worst"]
    measures = ["n", "mean_difference", "ci_low", "ci_high", "p", "p_holm", "effect", "smallest_p"]
    assert list(got.columns) == [*measures, "verdict"]
    assert got.loc["std", "p"] == pytest.approx(2 / 2**8)
    assert got.loc["std", "p_holm"] == pytest.approx(2 * 2 / 2**8)
    assert got.loc["std", "verdict"] == "CLAM is lower than Normal (p = 0.016)"
    assert got.loc["worst", "verdict"].startswith("no difference shown")
    pd.testing.assert_frame_equal(metrics.compare(a, b.sample(frac=1, random_state=3), names=("CLAM", "Normal")), got)
    only = metrics.compare(a, b, metrics="std", on=["seed", "crop_lower_bound"]).loc["std"]
    assert only["p_holm"] == only["p"] == got.loc["std", "p"]
    series = metrics.compare(
        a.set_index(["crop_lower_bound", "seed"])["std"], b.set_index(["crop_lower_bound", "seed"])["std"]
    )
    assert series.loc["std", "p"] == got.loc["std", "p"]


def test_bootstrap_interval_is_fixed_and_agrees_with_scipy():
    d = np.random.default_rng(2).normal(0.3, 1, 30)
    got = metrics.compare(d, np.zeros(30)).loc["value"]
    again = metrics.compare(d, np.zeros(30)).loc["value"]
    assert (got == again).all()
    reference = scipy.stats.bootstrap((d,), np.mean, method="percentile", n_resamples=10_000, rng=0).confidence_interval
    width = reference.high - reference.low
    assert abs(got["ci_low"] - reference.low) < 0.05 * width
    assert abs(got["ci_high"] - reference.high) < 0.05 * width
    narrower = metrics.compare(d, np.zeros(30), confidence=0.5).loc["value"]
    assert got["ci_low"] < narrower["ci_low"] < d.mean() < narrower["ci_high"] < got["ci_high"]
    assert np.isnan(metrics.compare([1.0], [0.0]).loc["value", "ci_low"])  # one pair has no spread


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


# one class at a time


@fixed
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_is_scipys(right_seen, confidence):
    right, seen = right_seen
    expected = binomtest(right, seen).proportion_ci(confidence, method="wilson")
    low, high = metrics.wilson([right], [seen], confidence)
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def brute_force_corrections(p):
    """Holm and Benjamini–Hochberg by their definition: the smallest level at which a class is rejected."""
    order, k = np.argsort(p, kind="stable"), len(p)
    holm, bh = np.empty(k), np.empty(k)
    for place, i in enumerate(order):
        holm[i] = min(1, max(p[order[j]] * (k - j) for j in range(place + 1)))
        bh[i] = min(1, min(p[order[j]] * k / (j + 1) for j in range(place, k)))
    return holm, bh


counts = st.lists(st.tuples(*[st.integers(0, 12)] * 4), min_size=2, max_size=12)


@fixed
@given(counts)
def test_paired_changes_are_exact_mcnemar_with_corrections(rows):
    both, lost, won, none = np.array(rows).T
    none = none + 1
    seen = both + lost + won + none
    found = metrics.class_changes(both + lost, seen, both + won, seen, lost, won)
    expected = [binomtest(int(b), int(b + c)).pvalue if b + c else 1.0 for b, c in zip(lost, won, strict=True)]
    np.testing.assert_allclose(found["p"], expected, atol=1e-12)
    np.testing.assert_allclose(found["change"], (won - lost) / seen, atol=1e-12)
    holm, bh = brute_force_corrections(found["p"].to_numpy())
    np.testing.assert_allclose(found["p_holm"], holm, atol=1e-12)
    np.testing.assert_allclose(found["q"], bh, atol=1e-12)


@settings(fixed, max_examples=20)
@given(counts)
def test_unpaired_changes_are_fisher(rows):
    """All tables with the same margins that are no likelier than the one found."""
    right, wrong, right_after, wrong_after = np.array(rows).T
    wrong, wrong_after = wrong + 1, wrong_after + 1
    found = metrics.class_changes(right, right + wrong, right_after, right_after + wrong_after)
    for p, a, b, c, d in zip(found["p"], right, wrong, right_after, wrong_after, strict=True):
        chances = np.array(
            [comb(a + b, k) * comb(c + d, a + c - k) / comb(a + b + c + d, a + c) for k in range(a + c + 1)]
        )
        assert p == pytest.approx(chances[chances <= chances[a] * (1 + 1e-7)].sum())


def test_sampling_std_is_what_a_simulation_gives():
    rng = np.random.default_rng(0)
    drawn = rng.binomial(50, 0.8, size=(2000, 40))
    assert metrics.sampling_std(drawn[0], np.full(40, 50)) == pytest.approx(
        (drawn / 50).std(axis=1, ddof=1).mean(), rel=0.1
    )


@pytest.mark.parametrize("images", [2, 3, 10])
def test_sampling_std_is_unbiased_however_few_images_there_are(images):
    """Over all counts, each with its probability, the variance it reports is that of the accuracy: p(1 − p)/n."""
    p = 0.7
    chances = [comb(images, k) * p**k * (1 - p) ** (images - k) for k in range(images + 1)]
    found = sum(chance * metrics.sampling_std([k], [images]) ** 2 for k, chance in enumerate(chances))
    assert found == pytest.approx(p * (1 - p) / images)


def test_sampling_std_with_one_image_a_class_is_the_std_there_is():
    right = np.random.default_rng(0).random(500) < 0.8
    found = metrics.sampling_std(right, np.ones(500, dtype=int))
    assert found == pytest.approx(right.std(), abs=1e-12)
    assert metrics.sampling_std([1, 0, 8], [1, 1, 10]) == pytest.approx(
        np.sqrt((2 * 0.6 * 0.4 + 0.8 * 0.2 / 9) / 3)  # the mean accuracy is 0.6
    )
