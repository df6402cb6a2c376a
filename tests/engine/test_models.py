"""Classifiers: any channels and classes, torchvision's shapes, the released initialisation."""

import itertools

import pytest
import torch

from clamkit.data.vision import torchvision
from clamkit.engine.config import MODELS
from clamkit.engine.models import build_model, orthogonal_init
from clamkit.errors import ClamkitError

LARGE = ("resnet50", "vit_small", "vit_base")
CASES = [
    pytest.param(*case, marks=pytest.mark.slow if case[0] in LARGE else (), id="-".join(map(str, case)))
    for case in itertools.product(MODELS, (1, 3, 4), ("imagenet", "small"))
    if case[0] != "vit_base" or case[1] == 3  # 86 million parameters: once is enough
]


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "channels", "stem"), CASES)
def test_any_channels_and_classes(name, channels, stem):
    model = build_model(name, 7, channels, stem, image_size=32).eval()
    assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("size", [24, 28, 32, 64, 84, 128])
def test_fastnets_work_on_about_thirty_places_a_side(size):
    model, seen = build_model("fastnet_small", 10, 3, image_size=size).eval(), []
    model.patches.register_forward_hook(lambda module, args, out: seen.append(out.shape[-1]))
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 10)
    assert 20 <= seen[0] <= 31


@pytest.mark.parametrize("size", [23, 129, 224])
def test_fastnets_are_for_small_images(size):
    with pytest.raises(ClamkitError, match=f"24 to 128 pixels, not {size}"):
        build_model("fastnet", 10, 3, image_size=size)


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 64)])
def test_the_first_layer_of_a_fastnet_whitens(channels, size):
    """On the images it is set by, its filters give uncorrelated outputs of variance near 1, in pairs of either sign."""
    torch.manual_seed(0)
    blurred = torch.nn.functional.avg_pool2d(torch.randn(64, channels, size + 4, size + 4), 5, 1)  # neighbours alike
    images = 5 * blurred + 3 * blurred.mean(1, keepdim=True)
    model = build_model("fastnet_small", 10, channels, image_size=size)
    model.whiten(images)
    with torch.no_grad():
        found = model.patches(images).transpose(0, 1).flatten(1)
    half = len(found) // 2
    assert torch.allclose(found[:half], -found[half:], atol=1e-4)
    assert torch.allclose(torch.cov(found[:half]), torch.eye(half), atol=0.02)


def test_the_convolutions_of_a_fastnet_begin_as_the_identity():
    conv = build_model("fastnet_small", 10, 1, image_size=28).groups[4]
    x = torch.randn(2, conv.in_channels, 5, 5)
    assert torch.allclose(conv(x)[:, : conv.in_channels], x, atol=1e-6)


def test_tiny_resnet_is_tiny():
    assert 70_000 < parameters(build_model("tiny_resnet", 10, 1)) < 90_000


def test_imagenet_stem_is_torchvisions_model():
    ours, theirs = build_model("resnet18", 10, 3), torchvision.models.resnet18(num_classes=10)
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]


def test_small_stem_keeps_the_resolution():
    model = build_model("resnet18", 10, 3, "small")
    seen = []
    model.layer1.register_forward_hook(lambda module, args, out: seen.append(out.shape[-1]))
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert seen == [32]


def test_unknown_names():
    with pytest.raises(ClamkitError, match=r"unknown model 'resnet19'.*Did you mean"):
        build_model("resnet19", 10)
    with pytest.raises(ClamkitError, match="unknown stem"):
        build_model("resnet18", 10, 3, "medium")


def test_patches_must_fit():
    with pytest.raises(ClamkitError, match="image_size=30 is no multiple"):
        build_model("tiny_vit", 10, 1, "small", 30)


@pytest.mark.slow
def test_vit_base_is_torchvisions():
    theirs = torchvision.models.vit_b_16(num_classes=10)
    assert parameters(build_model("vit_base", 10)) == parameters(theirs)


def test_orthogonal_init():
    model = build_model("tiny_resnet", 10, 1)
    orthogonal_init(model)
    weight = model[-1].weight
    assert torch.allclose(weight @ weight.T, torch.eye(10), atol=1e-5)
    assert (model[-1].bias == 0).all()
    kernel = model[3].conv1.weight.flatten(1)
    assert torch.allclose(kernel @ kernel.T, 2 * torch.eye(16), atol=1e-5), "ReLU gain √2"
