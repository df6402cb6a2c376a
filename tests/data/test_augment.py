"""Augmentation against torchvision: the same boxes in distribution, the same pixels for the same box."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from clamkit.data.augment import ColourJitter, RandomResizedCrop, crop_box, crop_boxes, jitter, normalise, resized_crop
from clamkit.data.vision import torchvision
from clamkit.errors import ClamkitError

functional = torchvision.transforms.v2.functional


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.integers(5, 40), st.integers(5, 40), st.integers(4, 48), st.integers(1, 3), st.booleans(), st.integers(0, 10_000)
)
def test_pixels_are_torchvisions(height, width, out, channels, flip, seed):
    x = torch.rand(4, channels, height, width, generator=generator(seed))
    boxes = crop_boxes(4, height, width, 0.1, generator(seed))
    ours = resized_crop(x, boxes, (out, out), torch.full((4,), flip))
    for image, box, result in zip(x, boxes.tolist(), ours, strict=True):
        expected = functional.resized_crop(image, *box, [out, out], antialias=False)
        expected = functional.horizontal_flip(expected) if flip else expected
        assert torch.allclose(result, expected, atol=1e-4)


def test_pixels_of_uint8_images():
    x = torch.randint(0, 256, (8, 3, 28, 28), dtype=torch.uint8, generator=generator())
    boxes = crop_boxes(8, 28, 28, 0.3, generator())
    ours = resized_crop(x, boxes, (28, 28))
    for image, box, result in zip(x, boxes.tolist(), ours, strict=True):
        expected = functional.resized_crop(image.float(), *box, [28, 28], antialias=False)
        assert (result - expected).abs().max() < 1e-4 * 255


@pytest.mark.parametrize(("height", "width", "bound"), [(28, 28, 0.3), (32, 48, 0.08), (64, 40, 0.6)])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_boxes_are_distributed_as_torchvisions(height, width, bound, one_by_one):
    count = 4000
    torch.manual_seed(0)
    image = torch.zeros(1, height, width)
    get = torchvision.transforms.RandomResizedCrop.get_params
    theirs = np.array([get(image, (bound, 1.0), (3 / 4, 4 / 3)) for _ in range(count)])
    rng = random.Random(0)
    ours = crop_boxes(count, height, width, bound, generator()).numpy()
    if one_by_one:
        ours = np.array([crop_box(height, width, bound, rng) for _ in range(count)])
    for column in range(4):  # top, left, height, width
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    assert ks_2samp(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3]).pvalue > 1e-3
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()


@pytest.mark.parametrize(("height", "width"), [(10, 100), (100, 10)])
def test_fallback_is_the_centre(height, width):
    """No box of 99 % of the area fits with an allowed ratio, so torchvision falls back to the centre as well."""
    torch.manual_seed(0)
    expected = torchvision.transforms.RandomResizedCrop.get_params(
        torch.zeros(1, height, width), (0.99, 1.0), (3 / 4, 4 / 3)
    )
    assert crop_boxes(3, height, width, 0.99, generator()).tolist() == [list(expected)] * 3
    assert crop_box(height, width, 0.99, random.Random(0)) == list(expected)
    assert crop_box(height, width, 1, random.Random(0)) == [0, 0, height, width]


def test_lower_bound_one_means_no_crop():
    x = torch.randint(0, 256, (6, 1, 28, 28), dtype=torch.uint8, generator=generator())
    assert torch.equal(RandomResizedCrop(1.0, flip=False)(x, generator()), x.float())
    flipped = RandomResizedCrop(1.0)(x, generator())
    for image, result in zip(x.float(), flipped, strict=True):
        assert torch.equal(result, image) or torch.equal(result, image.flip(2))
    resized = RandomResizedCrop(1.0, size=14, flip=False)(x, generator())
    assert torch.allclose(resized, functional.resize(x.float(), [14, 14], antialias=False), atol=1e-2)


def test_half_of_the_images_are_mirrored_and_the_generator_fixes_all():
    augment = RandomResizedCrop(0.3)
    flips, boxes = augment.draw(10_000, 28, 28, generator())
    assert 0.47 < flips.float().mean() < 0.53
    again = augment.draw(10_000, 28, 28, generator())
    assert torch.equal(flips, again[0])
    assert torch.equal(boxes, again[1])


@pytest.mark.parametrize("bound", [0, -0.1, 1.01, float("nan")])
def test_bad_bounds(bound):
    with pytest.raises(ClamkitError, match=r"must lie in \(0, 1\]"):
        RandomResizedCrop(bound)


def test_normalise_is_torchvisions():
    x = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8, generator=generator())
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = functional.normalize(x / 255, list(mean), list(std))
    assert torch.allclose(normalise(x, mean, std), expected, atol=1e-5)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.sampled_from([1, 3]), st.floats(0, 1), st.integers(0, 10_000))
def test_jitter_is_torchvisions_for_the_same_factors_and_order(channels, strength, seed):
    x = torch.rand(5, channels, 9, 7, generator=generator(seed))
    _, factors, order = ColourJitter(strength).draw(5, 9, 7, generator(seed))
    ours = jitter(x, factors, order, top=1.0)
    adjust = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation)
    for image, factor, kinds, result in zip(x, factors, order, ours, strict=True):
        for kind in kinds.tolist():
            image = adjust[kind](image, float(factor[kind]))
        assert torch.allclose(result, image, atol=1e-4)


def test_jitter_draws_as_torchvision_draws():
    _, factors, order = ColourJitter(0.4).draw(6000, 8, 8, generator())
    assert factors.min() >= 0.6
    assert factors.max() <= 1.4
    torch.manual_seed(0)
    theirs = torchvision.transforms.ColorJitter(0.4, 0.4, 0.4)
    drawn = [theirs.get_params(theirs.brightness, theirs.contrast, theirs.saturation, None) for _ in range(3000)]
    for kind in range(3):
        assert ks_2samp(factors[:, kind].numpy(), [d[1 + kind] for d in drawn]).pvalue > 1e-3
    orders, counts = np.unique(order.numpy(), axis=0, return_counts=True)
    assert len(orders) == 6, "every order occurs"
    assert counts.min() > 850
    assert counts.max() < 1150


def test_no_jitter_changes_nothing_but_the_side():
    x = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=generator())
    assert torch.equal(ColourJitter(0.0, flip=False)(x, generator()), x.float())
    assert ColourJitter(0.2, size=4)(x, generator()).shape == (6, 3, 4, 4)
    for strength in (-0.1, 1.5):
        with pytest.raises(ClamkitError, match=r"must lie in \[0, 1\]"):
            ColourJitter(strength)
