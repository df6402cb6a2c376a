"""What a run's history says, against scipy and brute force over all pairs of classes."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clamkit import metrics
from clamkit.errors import ClamkitError

fixed = settings(derandomize=True, deadline=None, max_examples=50)


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


def test_fairness_over_epochs_is_fairness_of_each():
    acc = np.random.default_rng(0).random((7, 25))
    got = metrics.fairness_over_epochs(history(acc, acc))
    assert list(got.index) == list(range(1, 8))
    for epoch, row in got.iterrows():
        np.testing.assert_allclose(row, metrics.fairness(acc[epoch - 1]))
    by_weight_column = metrics.fairness_over_epochs(history(acc, acc), column="weight", tail=0.2)
    np.testing.assert_allclose(by_weight_column.loc[3], metrics.fairness(acc[2], tail=0.2))


def test_a_thousand_classes_over_a_hundred_epochs():
    acc = np.random.default_rng(0).random((100, 1000))
    frame = history(acc, acc)
    got = metrics.fairness_over_epochs(frame)
    ascending = np.sort(acc, axis=1)
    np.testing.assert_allclose(got["decile_range"], ascending[:, -100:].mean(axis=1) - ascending[:, :100].mean(axis=1))
    assert metrics.settling_epoch(frame) == 100


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


# order


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
