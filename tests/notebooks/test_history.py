"""Fairness over the epochs of a run: the same as of each epoch alone."""

import re

import numpy as np
import pandas as pd
import pytest

from clamkit import metrics
from clamkit.errors import ClamkitError
from helpers.run_measures import fairness_over_epochs


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
    got = fairness_over_epochs(history(acc, acc))
    assert list(got.index) == list(range(1, 8))
    for epoch, row in got.iterrows():
        np.testing.assert_allclose(row, metrics.fairness(acc[epoch - 1]))
    by_weight_column = fairness_over_epochs(history(acc, acc), column="weight", tail=0.2)
    np.testing.assert_allclose(by_weight_column.loc[3], metrics.fairness(acc[2], tail=0.2))


def test_a_thousand_classes_over_a_hundred_epochs():
    acc = np.random.default_rng(0).random((100, 1000))
    got = fairness_over_epochs(history(acc, acc))
    ascending = np.sort(acc, axis=1)
    np.testing.assert_allclose(got["decile_range"], ascending[:, -100:].mean(axis=1) - ascending[:, :100].mean(axis=1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda h: h.assign(test_accuracy=np.where((h["epoch"] == 2) & (h["class"] == 1), np.nan, 0.5)),
            "epoch 2: the accuracy of class 1",
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
        fairness_over_epochs(change(history(np.ones((3, 4)))))
