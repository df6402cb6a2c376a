"""Samples drawn by class weights: how many of each class, which images, in which order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clamkit.data.augment import RandomResizedCrop
from clamkit.data.batches import Batches, weighted_order
from clamkit.data.datasets import load_data
from clamkit.errors import ClamkitError

PLAIN = ((0.0,), (1 / 255,))  # leaves pixel values as they are
UNEVEN = torch.tensor([0] * 4 + [1] * 8 + [2] * 12)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(y, weights, seed=0):
    """Images and their copies' numbers."""
    samples = weighted_order(y, torch.tensor(weights, dtype=torch.float64), generator(seed))
    return samples % len(y), samples // len(y)


def test_whole_numbers_are_met_exactly():
    """w·n = 8, 4 and 12, which is N already: class 0 twice, half of class 1, class 2 as it is."""
    for seed in range(20):
        images, copies = drawn(UNEVEN, [2.0, 0.5, 1.0], seed)
        times = images.bincount(minlength=24)
        assert times[:4].tolist() == [2] * 4
        assert sorted(times[4:12].tolist()) == [0] * 4 + [1] * 4
        assert times[12:].tolist() == [1] * 12
        assert sorted(copies[UNEVEN[images] == 0].tolist()) == [0] * 4 + [1] * 4
        assert not copies[UNEVEN[images] > 0].any()


def test_weights_count_by_their_ratio():
    """w·n = 4·3, 8·1, 12·1/3 = 12, 8, 4, which sum to N too, in another scale."""
    images, copies = drawn(UNEVEN, [30.0, 10.0, 10 / 3])
    assert UNEVEN[images].bincount().tolist() == [12, 8, 4]
    assert images.bincount()[:4].tolist() == [3] * 4
    assert copies.max() == 2


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.0, 5.0)), min_size=2, max_size=6).filter(
        lambda classes: sum(w for _, w in classes) > 0.1
    ),
    st.integers(0, 2**32),
)
def test_any_weights(classes, seed):
    """As many samples as images; each class's number next to w·n·N/Σw·n; its images as evenly as can be."""
    sizes, weights = (np.array(part, dtype=float) for part in zip(*classes, strict=True))
    y = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes.astype(int)))
    images, copies = drawn(y, weights.tolist(), seed)
    assert len(images) == len(y)
    wanted = weights * sizes * len(y) / (weights * sizes).sum()
    counts = np.bincount(y[images], minlength=len(sizes))
    assert (np.abs(counts - wanted) < 1 + 1e-9).all()
    times = images.bincount(minlength=len(y))
    for label in range(len(sizes)):
        assert np.ptp(times[y == label].numpy()) <= 1
    pairs = set(zip(images.tolist(), copies.tolist(), strict=True))
    assert pairs == {(i, k) for i, count in enumerate(times.tolist()) for k in range(count)}, "copies are numbered"


@pytest.mark.parametrize("epochs", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_fractions_are_rounded_without_bias_and_no_image_is_preferred(epochs):
    """Many epochs of w·n = 4.5, 4.2, 2.3 (sum 11): the mean counts, and the mean count of each image."""
    y = torch.tensor([0] * 3 + [1] * 6 + [2] * 2)
    times = torch.stack([drawn(y, [1.5, 0.7, 1.15], seed)[0].bincount(minlength=11) for seed in range(epochs)]).double()
    by_class = torch.stack([times[:, y == label].sum(1) for label in range(3)])
    allowed = 5 * 0.5 / epochs**0.5  # 5 standard errors
    assert by_class.mean(1).tolist() == pytest.approx([4.5, 4.2, 2.3], abs=allowed)
    assert times.mean(0).tolist() == pytest.approx([1.5] * 3 + [0.7] * 6 + [1.15] * 2, abs=allowed)


def test_no_class_is_early_or_late_in_the_epoch():
    """The mean place of the samples of each class, and of their copies, over 100 epochs of 24: the middle."""
    places, firsts = [[], [], []], []
    for seed in range(100):
        images, copies = drawn(UNEVEN, [2.5, 0.5, 0.8], seed)
        for label in range(3):
            places[label] += torch.nonzero(UNEVEN[images] == label)[:, 0].tolist()
        firsts += torch.nonzero(copies > 0)[:, 0].tolist()
    for found in (*places, firsts):
        assert np.mean(found) == pytest.approx(11.5, abs=5 * 6.9 / len(found) ** 0.5)  # 5 standard errors


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3])
def test_equal_weights_are_a_plain_epoch_and_leave_the_generator_alone(weight):
    one, other = generator(5), generator(5)
    assert torch.equal(
        weighted_order(UNEVEN, torch.full((3,), weight).double(), one), torch.randperm(24, generator=other)
    )
    assert torch.equal(one.get_state(), other.get_state())


def test_epochs_of_one_generator_differ():
    one, weights = generator(), torch.tensor([2.0, 0.5, 1.0])
    chosen = [set((weighted_order(UNEVEN, weights, one) % 24).tolist()) for _ in range(5)]
    assert len(set(map(frozenset, chosen))) > 1


# ------------------------------------------------------------------------------------------------------ as batches


def test_images_in_memory_follow_the_weights():
    x = torch.arange(24, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    weights = torch.tensor([2.0, 0.5, 1.0])
    batches = list(Batches(RandomResizedCrop(0.5), *PLAIN, "cpu").training(x, UNEVEN, 10, generator(), weights))
    assert [len(labels) for _, labels in batches] == [8, 8, 8]
    seen = torch.cat([images[:, 0, 0, 0] for images, _ in batches]).round().long()
    labels = torch.cat([labels for _, labels in batches])
    assert torch.equal(labels, UNEVEN[seen]), "labels go with their images"
    assert labels.bincount().tolist() == [8, 4, 12]
    shares = [
        list(
            Batches(RandomResizedCrop(0.5), *PLAIN, "cpu", rank=r, world=3).training(
                x, UNEVEN, 10, generator(), weights
            )
        )
        for r in range(3)
    ]
    for i, (images, _) in enumerate(batches):
        together = torch.empty_like(images)
        for rank, share in enumerate(shares):
            together[rank::3] = share[i][0]
        assert torch.equal(together, images), "three processes draw what one draws"


def test_image_files_follow_the_weights(imagenet, monkeypatch):
    """Class 1 has w·n = 1.5·4 samples of 4 files: the second copy of a file has a crop of its own."""
    monkeypatch.setattr("clamkit.data.batches.WORKERS", 0)  # files read in this process
    dataset = load_data("imagenet", data_dir=imagenet, image_size=16)
    batches = Batches(RandomResizedCrop(0.3, flip=False), *PLAIN, "cpu")

    def epoch(weights):
        made = batches.training(dataset.x_train, dataset.y_train, 3, generator(), weights)
        images, labels = (torch.cat(part) for part in zip(*made, strict=True))
        return images, labels

    plain, equal, again, weighted = map(epoch, (None, torch.ones(2), torch.ones(2), torch.tensor([0.5, 1.5])))
    assert torch.equal(plain[0], equal[0])
    assert torch.equal(equal[0], again[0])
    assert torch.equal(plain[1], equal[1])
    assert weighted[1].bincount().tolist() == [2, 6]
    assert len({image.numpy().tobytes() for image in weighted[0]}) == 8, "no two views are the same"
    first = {image.numpy().tobytes() for image in plain[0]}
    assert sum(image.numpy().tobytes() in first for image in weighted[0]) == 6, "first copies are cut as ever"


def test_a_bad_file_drawn_twice_is_named_once(imagenet):
    for i in range(4):
        (imagenet / "train" / "n01443537" / f"n01443537_{i}.JPEG").write_bytes(b"broken")
    dataset = load_data("imagenet", data_dir=imagenet, image_size=16)
    batches = Batches(RandomResizedCrop(0.5), *PLAIN, "cpu")
    with pytest.raises(ClamkitError, match="4 of 8 image files do not decode"):
        list(batches.training(dataset.x_train, dataset.y_train, 8, generator(), torch.tensor([0.0, 2.0])))
