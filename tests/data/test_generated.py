"""Stand-ins made on the spot: the same every time, balanced or with a tail, and no easier than they say."""

import numpy as np
import pytest

from clamkit.data.datasets import load_data
from clamkit.data.generated import generate
from clamkit.errors import ClamkitError


def test_generated_stand_ins():
    ten, again, tail = load_data("generated-10"), load_data("generated-10"), load_data("generated-40-tail")
    assert ten.sha256 == again.sha256
    assert ten.x_train.shape == (400, 3, 32, 32)
    assert (ten.sizes == 40).all()
    assert (tail.sizes[0], tail.sizes[-1]) == (60, 4)
    assert (np.diff(tail.sizes) <= 0).all()
    assert tail.num_classes == 40
    assert tail.y_test.bincount().tolist() == [20] * 40, "the test set has no tail"


@pytest.mark.parametrize("name", ["generated-x", "generated-0", "generated-", "generated-10-tails", "generated-12345"])
def test_other_names_are_no_stand_ins(name):
    with pytest.raises(ClamkitError, match=f"unknown dataset '{name}'"):
        load_data(name)


def test_one_class_is_refused():
    with pytest.raises(ClamkitError, match="at least two"):
        load_data("generated-1")


def test_another_seed_gives_other_images_of_the_same_classes():
    one, other = generate(4), generate(4, seed=1)
    assert not np.array_equal(one["x_train"], other["x_train"])
    assert np.array_equal(one["y_train"], other["y_train"])


def test_classes_of_a_pair_are_near_and_pairs_are_far():
    """By mean colour alone the pairs can be told apart, the two classes of a pair cannot: they differ in stripes."""
    made = generate(10)
    colour = np.stack([made["x_train"][made["y_train"] == k].mean((0, 1, 2)) for k in range(10)]) / 255
    distance = np.linalg.norm(colour[:, None] - colour[None], axis=2)
    within = [distance[k, k + 1] for k in range(0, 10, 2)]
    between = [distance[i, j] for i in range(10) for j in range(10) if i // 2 != j // 2]
    assert max(within) < min(between)
