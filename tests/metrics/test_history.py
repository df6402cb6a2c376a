"""What a run's history says, against scipy and brute force over all pairs of classes."""

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
    got = metrics.fairness_over_epochs(history(acc, acc))
    ascending = np.sort(acc, axis=1)
    np.testing.assert_allclose(got["decile_range"], ascending[:, -100:].mean(axis=1) - ascending[:, :100].mean(axis=1))


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


# rest


def test_late_move_by_hand():
    """Five epochs of two classes, as distributions (.5 .5), (.6 .4), (.8 .2), (.7 .3), (.7 .3): moves .1 .2 .1 0."""
    weights = 2 * np.array([[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.7, 0.3], [0.7, 0.3]])
    assert metrics.late_move(history(weights)) == pytest.approx(0, abs=1e-15)  # the last of four moves
    assert metrics.late_move(history(weights), share=0.5) == pytest.approx(0.05)
    assert metrics.late_move(history(weights), share=1) == pytest.approx(0.1)
    assert metrics.late_move(history(50 * weights), share=1) == pytest.approx(0.1), "whatever the scale"
    assert metrics.late_move(history(weights[:2])) == pytest.approx(0.1)
    assert metrics.late_move(history([[2, 0, 0], [0, 0, 2]])) == 1, "all weight goes over to another class"
    assert np.isnan(metrics.late_move(history(weights[:1])))
    with pytest.raises(ClamkitError, match="share=2 is not allowed"):
        metrics.late_move(history(weights), share=2)
