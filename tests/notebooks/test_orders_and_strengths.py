"""Orders of weights and accuracies, weights at rest, effects by strength: by hand, scipy and exact enumeration."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from clamkit.errors import ClamkitError
from helpers.run_measures import by_strength, late_move, order_agreement

fixed = settings(derandomize=True, deadline=None, max_examples=50)


def weights_over_epochs(weights) -> pd.DataFrame:
    """A run's history from epochs × classes, its rows in no particular order."""
    wide = pd.DataFrame(weights).rename_axis(index="epoch", columns="class")
    return wide.stack().rename("weight").reset_index().sample(frac=1, random_state=0)


# order


def test_order_agreement_by_hand():
    assert order_agreement([1.6, 1.0, 0.4], [0.2, 0.5, 0.9]) == pytest.approx(-1)
    assert order_agreement([0.1, 0.2, 0.3], [0.2, 0.5, 0.9]) == pytest.approx(1)
    # ranks 1 2 3 4 and 2 1 4 3: 1 − 6 · 4 / (4 · 15)
    assert order_agreement([1, 2, 3, 4], [0.2, 0.1, 0.4, 0.3]) == pytest.approx(0.6)
    assert np.isnan(order_agreement([1, 1, 1], [0.2, 0.5, 0.9]))


def test_rounding_errors_make_no_order():
    noisy = [0.5 + 1e-16, 0.5, 0.5 - 1e-12, 2.5]
    exact = [0.5, 0.5, 0.5, 2.5]
    acc = [0.9, 0.8, 0.7, 0.3]
    assert order_agreement(noisy, acc) == pytest.approx(scipy.stats.spearmanr(exact, acc).statistic)


@fixed
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_order_agreement_is_spearman_with_ties(pairs):
    weights, acc = np.array(pairs, dtype=float).T / 5
    got = order_agreement(weights, acc)
    if np.ptp(weights) == 0 or np.ptp(acc) == 0:
        assert np.isnan(got)
    else:
        assert got == pytest.approx(scipy.stats.spearmanr(weights, acc).statistic)


@pytest.mark.parametrize(
    ("weights", "acc"), [([1, 2], [0.5]), ([1], [0.5]), ([1, np.nan], [0.5, 0.6]), ([1, 2], [0.5, np.inf])]
)
def test_order_agreement_refuses(weights, acc):
    with pytest.raises(ClamkitError):
        order_agreement(weights, acc)


# rest


def test_late_move_by_hand():
    """Five epochs of two classes, as distributions (.5 .5), (.6 .4), (.8 .2), (.7 .3), (.7 .3): moves .1 .2 .1 0."""
    weights = 2 * np.array([[0.5, 0.5], [0.6, 0.4], [0.8, 0.2], [0.7, 0.3], [0.7, 0.3]])
    assert late_move(weights_over_epochs(weights)) == pytest.approx(0, abs=1e-15)  # the last of four moves
    assert late_move(weights_over_epochs(weights), share=0.5) == pytest.approx(0.05)
    assert late_move(weights_over_epochs(weights), share=1) == pytest.approx(0.1)
    assert late_move(weights_over_epochs(50 * weights), share=1) == pytest.approx(0.1), "whatever the scale"
    assert late_move(weights_over_epochs(weights[:2])) == pytest.approx(0.1)
    assert late_move(weights_over_epochs([[2, 0, 0], [0, 0, 2]])) == 1, "all weight goes over to another class"
    assert np.isnan(late_move(weights_over_epochs(weights[:1])))
    with pytest.raises(ClamkitError, match="share=2 is not allowed"):
        late_move(weights_over_epochs(weights), share=2)


# strength


def of_strengths(values: np.ndarray) -> pd.Series:
    wide = pd.DataFrame(values, columns=pd.Index([0.3, 0.6, 1.0], name="strength"))
    return wide.rename_axis("seed").stack()


def test_does_the_effect_depend_on_the_strength():
    turning = np.array([[-7.0, 0.1, 4.0], [-6.5, -0.2, 4.4], [-7.2, 0.3, 4.1], [-6.9, 0.0, 3.8]])
    found = by_strength(of_strengths(turning))
    assert found["mean"].tolist() == pytest.approx([-6.9, 0.05, 4.075])
    assert found.attrs["p"] <= 0.01
    assert found.attrs["changes_sign"]
    level = by_strength(of_strengths(turning * 0 + np.array([[1.0], [1.2], [0.8], [1.1]])))
    assert level.attrs["p"] == 1
    assert not level.attrs["changes_sign"]
    assert not by_strength(of_strengths(turning + 20)).attrs["changes_sign"], "all above 0"
    with pytest.raises(ClamkitError, match="no strength of the augmentation that all seeds"):
        by_strength(of_strengths(turning).iloc[[0, 4]])


def test_shuffling_strengths_is_the_exact_test():
    values = np.array([[1.0, 2.0, 4.0], [0.5, 3.0, 3.5]])
    spread = values.mean(axis=0).var()
    orders = itertools.product(itertools.permutations(values[0]), itertools.permutations(values[1]))
    exact = np.mean([np.mean(order, axis=0).var() >= spread - 1e-12 for order in orders])
    assert by_strength(of_strengths(values)).attrs["p"] == pytest.approx(exact, abs=0.02)
