"""The numbers of single notebooks: by hand, by brute force over all pairs of classes, by published class sizes."""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clamkit.errors import ClamkitError
from helpers.run_measures import paper_table, settling_epoch, shot_groups

SHARED = Path(os.environ.get("CLAMKIT_SHARED") or Path(__file__).resolve().parents[3] / "shared")
INAT_SIZES = SHARED / "data" / "inat18" / "img_num_per_cls.txt"


def history(weights) -> pd.DataFrame:
    """A run's history from epochs × classes, its rows in no particular order."""
    wide = pd.DataFrame(np.asarray(weights, dtype=float)).rename_axis(index="epoch", columns="class")
    wide.index += 1
    return wide.stack().rename("weight").reset_index().sample(frac=1, random_state=0)


# when the order of the weights is found


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
    assert settling_epoch(history(weights)) == epoch


def test_settling_epoch_of_some_classes_and_with_tolerance():
    frame = history([[1, 2, 3.0, 3.1], [1, 2, 3.1, 3.0]])
    assert settling_epoch(frame) == 2
    assert settling_epoch(frame[frame["class"] < 3]) == 1
    assert settling_epoch(frame, tolerance=0.2) == 1
    with pytest.raises(ClamkitError, match="0 or more"):
        settling_epoch(frame, tolerance=-1)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(2, 4)), elements=st.integers(0, 2)))
def test_settling_epoch_against_all_pairs(weights):
    signs = np.sign(weights[:, :, None] - weights[:, None, :])
    settled = [all((signs[t] == signs[-1]).all() for t in range(e, len(weights))) for e in range(len(weights))]
    assert settling_epoch(history(weights)) == settled.index(True) + 1


def test_settling_epoch_of_a_thousand_classes_over_a_hundred_epochs():
    assert settling_epoch(history(np.random.default_rng(0).random((100, 1000)))) == 100


# long tails


def test_shot_groups_at_the_bounds():
    groups = shot_groups([1000, 101, 100, 20, 19, 0])
    assert list(groups) == ["many", "many", "medium", "medium", "few", "few"]
    assert list(groups.categories) == ["many", "medium", "few"]
    assert list(shot_groups([31, 30, 10, 9], (10, 30))) == ["many", "medium", "medium", "few"]


@pytest.mark.parametrize(
    ("sizes", "bounds", "says"),
    [([], (20, 100), "training images"), ([-1, 3], (20, 100), "training images"), ([3], (100, 20), "bounds=(100, 20)")],
)
def test_shot_groups_refuses(sizes, bounds, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        shot_groups(sizes, bounds)


@pytest.mark.skipif(not INAT_SIZES.is_file(), reason=f"needs iNaturalist's class sizes in {INAT_SIZES}")
def test_shot_groups_of_inaturalist_2018():
    sizes = np.loadtxt(INAT_SIZES)
    found = pd.Series(shot_groups(sizes)).value_counts()
    assert (sizes.size, sizes.sum()) == (8142, 437513)
    assert found.to_dict() == {"many": 842, "medium": 4076, "few": 3224}


def test_the_papers_table_has_the_shape_of_ours():
    printed = paper_table("fashion_mnist")
    assert printed.loc["CLAM", "std %"] == 5.44
    assert printed.loc["Normal", "decile range %"] == 18.3
    assert list(printed.index) == ["Normal", "Focal", "PW", "TCE", "GGF", "CLAM"]
