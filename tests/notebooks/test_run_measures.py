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
from clamkit.lab.tables import final_classes
from helpers.run_measures import (
    by_rank,
    crop_changes,
    paper_table,
    settling_epoch,
    shot_groups,
    simulate,
    steadiness,
    weight_moves,
    weight_orders,
)

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


# measures of runs


def test_ranks_and_changes_by_the_crop(memory_run):
    made = [memory_run(values, method="clam", crop_lower_bound=bound, seed=seed)
            for bound, values in ((1.0, [0.9, 0.5, 0.7]), (0.3, [0.6, 0.55, 0.7]))
            for seed in (0, 1)]  # fmt: skip
    classes = final_classes(made)
    ranked = by_rank(classes).sort_values(["strength", "seed", "class"])
    assert ranked["rank"].tolist() == [2, 1, 3] * 2 + [3, 1, 2] * 2
    change = crop_changes(classes)
    assert change.loc["clam"].to_numpy() == pytest.approx(np.array([[-30, 5, 0]] * 2))
    assert crop_changes(classes[classes["strength"] == 1]).empty
    assert crop_changes(final_classes([])).empty


def test_how_weights_end(memory_run):
    weights = [[1, 1, 1], [1.6, 0.8, 0.6], [1.5, 0.9, 0.6], [1.5, 0.9, 0.6], [1.2, 1.2, 0.6]]
    run = memory_run([[0.4, 0.6, 0.8]] * 4 + [[0.5, 0.6, 0.8]], weights, method="clam", epochs=5)
    normal = memory_run([[0.4, 0.6, 0.8]] * 5, method="normal", epochs=5)
    (orders,) = weight_orders([run]).to_dict("records")
    assert orders["settled"] == 5, "the first two are tied in the last epoch"
    assert orders["late_move"] == pytest.approx(10), "0.3 of 3 in the one move of the last quarter"
    assert weight_moves([run])["move"].tolist() == pytest.approx([0.2, 0.1 / 3, 0, 0.1])
    (steady,) = steadiness([run], [normal]).to_dict("records")
    assert steady["weights"] == pytest.approx(0.1)
    assert steady["tests"] == pytest.approx(0.1 / 3)
    assert steady["hard"] == pytest.approx(1.2 / 3), "class 0 is the hardest under Normal"
    assert np.isnan(steadiness([run])["hard"]).all()
    assert steadiness([]).empty
    assert weight_moves([]).empty


def test_a_simulated_rule_moves_weight_between_classes():
    normal, clam = (simulate(method, 10, 0, epochs=3) for method in ("normal", "clam"))
    assert (normal["move"] == 0).all()
    assert normal["hard"].tolist() == pytest.approx([0.1] * 3)
    assert (clam["move"] > 0).all()
    assert clam["hard"].iloc[-1] > 0.1, "the hardest class gains weight"
