"""Class accuracies and fairness against hand-worked cases."""

import os
import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clamkit import metrics
from clamkit.errors import ClamkitError

SHARED = Path(os.environ.get("CLAMKIT_SHARED") or Path(__file__).resolve().parents[3] / "shared")
IMAGENET_VAL = SHARED / "data" / "imagenet_val"

fixed = settings(derandomize=True, deadline=None, max_examples=50)
accuracy_vectors = arrays(np.float64, st.integers(2, 40), elements=st.floats(0, 1))


def test_class_accuracy_by_hand():
    acc = metrics.class_accuracy([0, 0, 0, 1, 1, 3], [0, 0, 1, 1, 0, 3], 4)
    np.testing.assert_allclose(acc, [2 / 3, 1 / 2, np.nan, 1])


@pytest.mark.parametrize(
    ("labels", "predictions", "says"),
    [
        ([0, 1], [0], "same length"),
        ([0, 3], [0, 1], "0..2"),
        ([-1, 1], [0, 1], "from -1 to 1"),
        ([0.0, 1.0], [0, 1], "labels are of type float64: give class numbers from 0 to 2"),
        (["cat"], ["cat"], "labels are of type <U3"),
    ],
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


@pytest.mark.parametrize(
    ("classes", "size"),
    [
        *((n, 1) for n in range(2, 15)),
        *((n, 10) for n in (95, 100, 104)),
        *((15, 2), (24, 2), (25, 3), (35, 4), (40, 4), (45, 5), (1000, 100), (8142, 814)),
    ],
)
def test_tail_size(classes, size):
    assert metrics.tail_size(classes) == size


def test_half_a_class_more_makes_the_tail_larger():
    """Against decimal arithmetic: 0.29 · 50 is 14.5 and not the 14.499… of floats."""
    for percent in range(1, 101):
        for classes in range(2, 200):
            exact = (Decimal(percent) / 100 * classes).quantize(Decimal(1), ROUND_HALF_UP)
            assert metrics.tail_size(classes, percent / 100) == max(1, int(exact))


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


# range difference


@pytest.mark.skipif(
    not (IMAGENET_VAL / "resnet50_top1.csv.gz").is_file(),
    reason=f"needs resnet50_top1.csv.gz in {IMAGENET_VAL}: set CLAMKIT_SHARED to the folder above data",
)
def test_fairness_of_a_real_resnet50_on_imagenet():
    frame = pd.read_csv(IMAGENET_VAL / "resnet50_top1.csv.gz")
    got = 100 * metrics.fairness(metrics.class_accuracy(frame["label"], frame["pred_resnet50"], 1000))
    assert got["average"] == pytest.approx(75.06, abs=0.005)  # 50 images of each class: top-1 is the class average
    assert got["std"] == pytest.approx(16.5, abs=0.05)
    assert got["decile_range"] == pytest.approx(55.1, abs=0.05)
    assert got["range"] == pytest.approx(90.0, abs=0.05)
