"""Every formula against a hand-worked case or an independent computation (scipy, brute force)."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clamkit import metrics
from clamkit.errors import ClamkitError

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("CLAMKIT_SHARED") or ROOT.parent / "shared")
IMAGENET_VAL = SHARED / "data" / "imagenet_val"
INAT_SIZES = SHARED / "data" / "inat18" / "img_num_per_cls.txt"

fixed = settings(derandomize=True, deadline=None, max_examples=50)
accuracy_vectors = arrays(np.float64, st.integers(2, 40), elements=st.floats(0, 1))


def history(weights, accuracies=None) -> pd.DataFrame:
    """A run's history from epochs × classes, its rows in no particular order."""
    weights = np.asarray(weights, dtype=float)
    epochs, classes = weights.shape
    frame = pd.DataFrame(
        {
            "epoch": np.repeat(np.arange(1, epochs + 1), classes),
            "class": np.tile(np.arange(classes), epochs),
            "weight": weights.ravel(),
            "test_accuracy": 0.5 if accuracies is None else np.ravel(accuracies),
        }
    )
    return frame.sample(frac=1, random_state=0)


def runs(**columns) -> pd.DataFrame:
    """Rows as RunStore.frame() has them: 4 crop bounds × 2 seeds."""
    pairs = itertools.product((0.3, 0.5, 0.7, 1.0), (0, 1))
    return pd.DataFrame(pairs, columns=["crop_lower_bound", "seed"]).assign(**columns)


# ------------------------------------------------------------------------------------------------ accuracies


def test_class_accuracy_by_hand():
    acc = metrics.class_accuracy([0, 0, 0, 1, 1, 3], [0, 0, 1, 1, 0, 3], 4)
    np.testing.assert_allclose(acc, [2 / 3, 1 / 2, np.nan, 1])


@pytest.mark.parametrize(
    ("labels", "predictions", "says"),
    [([0, 1], [0], "same length"), ([0, 3], [0, 1], "0..2"), ([-1, 1], [0, 1], "from -1 to 1")],
)
def test_class_accuracy_refuses(labels, predictions, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.class_accuracy(labels, predictions, 3)


def test_fairness_by_hand_four_classes():
    got = metrics.fairness([0.8, 0.2, 0.6, 0.4])
    std = np.sqrt((0.3**2 + 0.1**2 + 0.1**2 + 0.3**2) / 3)
    expected = {
        "average": 0.5,
        "std": std,
        "cov": std / 0.5,
        "range": 0.6,
        "decile_range": 0.6,
        "worst": 0.2,
        "best": 0.8,
    }
    assert list(got.index) == list(metrics.METRICS)
    np.testing.assert_allclose(got, [expected[name] for name in got.index])


def test_fairness_by_hand_twenty_classes_has_tails_of_two():
    got = metrics.fairness(np.arange(20) * 0.05)  # 0, .05, …, .95
    assert got["worst"] == pytest.approx(0.025)
    assert got["best"] == pytest.approx(0.925)
    assert got["decile_range"] == pytest.approx(0.9)
    assert got["range"] == pytest.approx(0.95)
    assert metrics.fairness(np.arange(20) * 0.05, tail=0.25)["worst"] == pytest.approx(0.1)


def test_fairness_of_a_model_that_gets_nothing_right():
    got = metrics.fairness(np.zeros(10))
    assert np.isnan(got["cov"])
    assert (got.drop("cov") == 0).all()


@fixed
@given(accuracy_vectors, st.randoms(use_true_random=False))
def test_fairness_is_symmetric_and_ordered(acc, random):
    got = metrics.fairness(acc)
    shuffled = list(acc)
    random.shuffle(shuffled)
    pd.testing.assert_series_equal(metrics.fairness(shuffled), got)
    assert got["worst"] <= got["average"] + 1e-12
    assert got["average"] <= got["best"] + 1e-12
    assert got["decile_range"] <= got["range"] + 1e-12
    if acc.size <= 14:  # a tail of one class: both readings of range are one
        assert got["decile_range"] == got["range"]


@pytest.mark.parametrize(("classes", "size"), [(2, 1), (10, 1), (100, 10), (1000, 100), (8142, 814)])
def test_tail_size(classes, size):
    assert metrics.tail_size(classes) == size


@pytest.mark.parametrize("tail", [0, -0.1, 1.1, np.nan])
def test_empty_tail_is_refused(tail):
    with pytest.raises(ClamkitError, match="share of the classes"):
        metrics.fairness([0.1, 0.2], tail=tail)


@pytest.mark.parametrize(
    ("acc", "says"),
    [
        ([0.5, np.nan], "class 1 is nan"),
        ([0.5, 1.2, 0.3], "class 1 is 1.2"),
        ([-0.1, 0.5], "class 0 is -0.1"),
        ([93.0, 88.0], "2 of 2 are not; divide percentages by 100"),
        ([0.5], "at least two classes"),
        ([], "at least two classes"),
        ([[0.5, 0.6], [0.5, 0.6]], "shape (2, 2)"),
    ],
)
def test_bad_accuracies_are_refused(acc, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.fairness(acc)


# ------------------------------------------------------------------------------------------------ range difference


def test_range_difference_by_hand():
    without = [0.5, 0.7, 0.9]  # range .4
    with_aug = [[0.5, 0.7, 1.0], [0.6, 0.7, 0.8], [0.2, 0.5, 0.9]]  # ranges .5, .2, .7: differences .1, −.2, .3
    got = metrics.range_difference(with_aug, without)
    assert got["mean"] == pytest.approx(0.2 / 3)
    assert got["std"] == pytest.approx(np.std([0.1, -0.2, 0.3], ddof=1))
    assert got["n"] == 3
    pd.testing.assert_series_equal(metrics.range_difference(pd.DataFrame(with_aug), pd.Series(without)), got)


def test_range_difference_of_both_kinds_and_of_one_setting():
    without = np.linspace(0, 0.95, 20)  # range .95, decile range .9
    with_aug = [np.full(20, 0.5)]
    assert metrics.range_difference(with_aug, without)["mean"] == pytest.approx(-0.9)
    got = metrics.range_difference(with_aug, without, kind="range")
    assert got["mean"] == pytest.approx(-0.95)
    assert np.isnan(got["std"])


@pytest.mark.parametrize(
    ("with_aug", "kind", "says"),
    [
        ([[0.1, 0.2, 0.3]], "range", "setting 0 has shape (3,), not (2,)"),
        ([[0.1, 0.2], [0.1]], "range", "setting 1 has shape (1,)"),
        ([0.1, 0.2], "range", "give settings × classes"),
        ([], "range", "no augmented setting"),
        ([[0.1, 0.2]], "rnage", "Did you mean 'range'?"),
    ],
)
def test_range_difference_refuses(with_aug, kind, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.range_difference(with_aug, [0.1, 0.2], kind=kind)


# ------------------------------------------------------------------------------------------------ over epochs


def test_fairness_over_epochs_is_fairness_of_each():
    acc = np.random.default_rng(0).random((7, 25))
    got = metrics.fairness_over_epochs(history(acc, acc))
    assert list(got.index) == list(range(1, 8))
    for epoch, row in got.iterrows():
        np.testing.assert_allclose(row, metrics.fairness(acc[epoch - 1]))
    by_weight_column = metrics.fairness_over_epochs(history(acc, acc), column="weight", tail=0.2)
    np.testing.assert_allclose(by_weight_column.loc[3], metrics.fairness(acc[2], tail=0.2))


def test_a_thousand_classes_over_a_hundred_epochs_are_quick():
    acc = np.random.default_rng(0).random((100, 1000))
    frame = history(acc, acc)
    start = time.perf_counter()
    metrics.fairness_over_epochs(frame)
    metrics.settling_epoch(frame)
    assert time.perf_counter() - start < 2  # 0.05 s on two slow cores


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda h: h.assign(test_accuracy=np.where((h["epoch"] == 2) & (h["class"] == 1), np.nan, 0.5)),
            "class 1 in epoch 2",
        ),
        (lambda h: h[(h["epoch"] != 2) | (h["class"] != 1)], "epoch 2 lacks"),
        (lambda h: pd.concat([h, h]), "twice"),
        (lambda h: h.iloc[:0], "no rows"),
        (lambda h: h.rename(columns={"test_accuracy": "test_acc"}), "Did you mean 'test_acc'?"),
        (lambda h: h[h["class"] == 0], "at least two classes"),
    ],
)
def test_bad_histories_are_refused(change, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.fairness_over_epochs(change(history(np.ones((3, 4)))))


# ------------------------------------------------------------------------------------------------ order


def test_order_agreement_by_hand():
    assert metrics.order_agreement([1.6, 1.0, 0.4], [0.2, 0.5, 0.9]) == pytest.approx(-1)
    assert metrics.order_agreement([0.1, 0.2, 0.3], [0.2, 0.5, 0.9]) == pytest.approx(1)
    # ranks 1 2 3 4 and 2 1 4 3: 1 − 6 · 4 / (4 · 15)
    assert metrics.order_agreement([1, 2, 3, 4], [0.2, 0.1, 0.4, 0.3]) == pytest.approx(0.6)
    assert np.isnan(metrics.order_agreement([1, 1, 1], [0.2, 0.5, 0.9]))


def test_rounding_errors_make_no_order():
    noisy = [0.5 + 1e-16, 0.5, 0.5 - 1e-12, 2.5]
    exact = [0.5, 0.5, 0.5, 2.5]
    acc = [0.9, 0.8, 0.7, 0.3]
    assert metrics.order_agreement(noisy, acc) == pytest.approx(scipy.stats.spearmanr(exact, acc).statistic)


@fixed
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_order_agreement_is_spearman_with_ties(pairs):
    weights, acc = np.array(pairs, dtype=float).T / 5
    got = metrics.order_agreement(weights, acc)
    if np.ptp(weights) == 0 or np.ptp(acc) == 0:
        assert np.isnan(got)
    else:
        assert got == pytest.approx(scipy.stats.spearmanr(weights, acc).statistic)


@pytest.mark.parametrize(
    ("weights", "acc"), [([1, 2], [0.5]), ([1], [0.5]), ([1, np.nan], [0.5, 0.6]), ([1, 2], [0.5, np.inf])]
)
def test_order_agreement_refuses(weights, acc):
    with pytest.raises(ClamkitError):
        metrics.order_agreement(weights, acc)


@pytest.mark.parametrize(
    ("weights", "epoch"),
    [
        ([[1, 1, 1], [1, 1, 1]], 1),  # uniform: never any order
        ([[1, 1, 1], [0.5, 1, 1.5], [0.6, 0.9, 1.5]], 2),  # ordered from the second epoch on
        ([[1, 2, 3], [2, 1, 3], [1, 2, 3], [1, 2.5, 3]], 3),  # came back to its first order
        ([[1, 2, 3], [1, 2, 3], [2, 1, 3]], 3),  # still changing at the end
        ([[1, 2, 3], [1, 1, 3], [1, 1, 3]], 2),  # becoming tied is a change
        ([[1, 1 + 1e-12, 3], [1 + 1e-12, 1, 3]], 1),  # rounding errors are none
        ([[3, 2, 1]], 1),
    ],
)
def test_settling_epoch_by_hand(weights, epoch):
    assert metrics.settling_epoch(history(weights)) == epoch


def test_settling_epoch_of_some_classes_and_with_tolerance():
    frame = history([[1, 2, 3.0, 3.1], [1, 2, 3.1, 3.0]])
    assert metrics.settling_epoch(frame) == 2
    assert metrics.settling_epoch(frame[frame["class"] < 3]) == 1
    assert metrics.settling_epoch(frame, tolerance=0.2) == 1
    with pytest.raises(ClamkitError, match="0 or more"):
        metrics.settling_epoch(frame, tolerance=-1)


@fixed
@given(arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(2, 4)), elements=st.integers(0, 2)))
def test_settling_epoch_against_all_pairs(weights):
    signs = np.sign(weights[:, :, None] - weights[:, None, :])
    settled = [all((signs[t] == signs[-1]).all() for t in range(e, len(weights))) for e in range(len(weights))]
    assert metrics.settling_epoch(history(weights)) == settled.index(True) + 1


# ------------------------------------------------------------------------------------------------ compare


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
        assert verdict.startswith("too few pairs to conclude"), n
    assert "below 0.062" in verdict  # 2/2⁵
    six = metrics.compare(np.arange(1, 7), np.zeros(6), names=("CLAM", "Normal")).loc["value"]
    assert six["p"] == pytest.approx(2 / 2**6)
    assert six["verdict"] == "CLAM is higher than Normal (p = 0.031)"


def test_holm_raises_how_many_pairs_are_needed():
    a, b = runs(std=np.arange(1, 9), worst=np.arange(1, 9)).iloc[:6], runs(std=0, worst=0).iloc[:6]
    got = metrics.compare(a, b)
    assert (got["p"] < 0.05).all()
    np.testing.assert_allclose(got["p_holm"], 2 * 2 / 2**6)
    assert got["verdict"].str.contains("too few pairs to conclude: with 6 that differ, p cannot be below 0.062").all()


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
    assert list(got.columns) == ["n", "mean_difference", "ci_low", "ci_high", "p", "p_holm", "effect", "verdict"]
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


# ------------------------------------------------------------------------------------------------ ReaL labels

REAL = [[0], [], [0, 1], [2], [1], [2, 0]]


def test_real_accuracy_by_hand():
    original = [0, 0, 1, 1, 2, 2]
    pred = [0, 0, 0, 1, 2, 0]  # right, left out, right, wrong, wrong, right
    np.testing.assert_allclose(metrics.real_accuracy(pred, REAL, original), [1, 0.5, 0.5])
    np.testing.assert_allclose(metrics.real_accuracy(pred, REAL, original, num_classes=4), [1, 0.5, 0.5, np.nan])
    assert metrics.real_top1(pred, REAL) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("pred", "real", "original", "says"),
    [
        ([0] * 6, REAL[:5], [0] * 6, "5 ReaL label lists for predictions of shape (6,)"),
        ([0] * 6, REAL, [0] * 5, "6 predictions but original labels of shape (5,)"),
        ([0] * 6, [[]] * 6, [0] * 6, "no image has a ReaL label"),
        ([0] * 6, REAL, [0, 0, 0, 0, 0, 7], "0..2"),
    ],
)
def test_real_accuracy_refuses(pred, real, original, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.real_accuracy(pred, real, original, num_classes=3)


@pytest.mark.skipif(
    not (IMAGENET_VAL / "real.json").is_file(),
    reason=f"needs real.json and resnet50_top1.csv.gz in {IMAGENET_VAL}: set CLAMKIT_SHARED to the folder above data",
)
def test_a_real_resnet50_on_imagenet():
    real = json.loads((IMAGENET_VAL / "real.json").read_text())
    frame = pd.read_csv(IMAGENET_VAL / "resnet50_top1.csv.gz")
    acc = metrics.class_accuracy(frame["label"], frame["pred_resnet50"], 1000)
    got = 100 * metrics.fairness(acc)
    assert got["average"] == pytest.approx(75.06, abs=0.005)  # 50 images of each class: top-1 is the class average
    assert got["std"] == pytest.approx(16.5, abs=0.05)
    assert got["decile_range"] == pytest.approx(55.1, abs=0.05)
    assert got["range"] == pytest.approx(90.0, abs=0.05)
    assert 100 * metrics.real_top1(frame["pred_resnet50"], real) == pytest.approx(81.98, abs=0.005)
    per_class = metrics.real_accuracy(frame["pred_resnet50"], real, frame["label"])
    kept = np.array([len(labels) > 0 for labels in real])
    assert (~kept).sum() == 3163
    images = np.bincount(frame["label"][kept], minlength=1000)
    assert 100 * np.average(per_class, weights=images) == pytest.approx(81.98, abs=0.005)
    with pytest.raises(ClamkitError, match="49999 ReaL label lists"):
        metrics.real_accuracy(frame["pred_resnet50"], real[:-1], frame["label"])


# ------------------------------------------------------------------------------------------------ long tails


def test_shot_groups_at_the_bounds():
    groups = metrics.shot_groups([1000, 101, 100, 20, 19, 0])
    assert list(groups) == ["many", "many", "medium", "medium", "few", "few"]
    assert list(groups.categories) == ["many", "medium", "few"]
    assert list(metrics.shot_groups([31, 30, 10, 9], (10, 30))) == ["many", "medium", "medium", "few"]


@pytest.mark.parametrize(
    ("sizes", "bounds", "says"),
    [([], (20, 100), "training images"), ([-1, 3], (20, 100), "training images"), ([3], (100, 20), "bounds=(100, 20)")],
)
def test_shot_groups_refuses(sizes, bounds, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        metrics.shot_groups(sizes, bounds)


@pytest.mark.skipif(not INAT_SIZES.is_file(), reason=f"needs iNaturalist's class sizes in {INAT_SIZES}")
def test_shot_groups_of_inaturalist_2018():
    sizes = np.loadtxt(INAT_SIZES)
    found = pd.Series(metrics.shot_groups(sizes)).value_counts()
    assert (sizes.size, sizes.sum()) == (8142, 437513)
    assert found.to_dict() == {"many": 842, "medium": 4076, "few": 3224}


# -------------------------------------------------------------------------------------------------- verdicts


def a_and_b(gain, seeds, of=("a", "b")) -> pd.DataFrame:
    """a is better than b by `gain` in std and worst, in every setting, by a bit more for each seed."""
    rows = [
        {"method": method, "strength": 0.3, "seed": seed, "std": 0.2 - better, "worst": 0.5 + better}
        for method, sign in zip(of, (1, 0), strict=True)
        for seed in range(seeds)
        for better in [sign * gain * (1 + seed)]
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (a_and_b(0.01, 8), "holds: 2 of 2 metrics point that way over 8 pairs"),
        (a_and_b(-0.01, 8), "contradicted: significantly worse in std, worst"),
        (a_and_b(0.01, 3), "not decidable yet: 2 of 2 metrics point that way over 3 pairs"),
        (a_and_b(0.01, 3, ("a", "c")), "not decidable yet: no setting has finished under both a and b"),
        (
            a_and_b(0.01, 0).reindex(columns=["method", "strength", "seed", "std", "worst"]),
            "not decidable yet: no setting",
        ),
    ],
)
def test_rulings(frame, says):
    assert metrics.ruling(metrics.judge(frame, "a", "b", ["std", "worst"])).startswith(says)


def test_a_mixed_result_is_not_shown():
    frame = a_and_b(0.01, 8)
    frame.loc[(frame["method"] == "a") & (frame["seed"] % 2 == 0), "worst"] = 0.4
    assert metrics.ruling(metrics.judge(frame, "a", "b", ["std", "worst"])).startswith("not shown: 1 of 2")


def test_judge_takes_only_what_both_have():
    frame = a_and_b(0.01, 3)
    table = metrics.judge(frame.drop(index=0), "a", "b", ["std"])
    assert table.loc["std", "n"] == 2
    assert table.loc["std", "mean_difference"] == pytest.approx(-0.025)


# ------------------------------------------------------------------------------------------------ imports


@pytest.mark.parametrize("module", ["clamkit.metrics", "clamkit.paper"])
def test_import_is_light(module):
    code = f"import sys, {module}; print(*sorted({{'torch', 'matplotlib', 'scipy.stats'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
