import pytest
import torch

from clamkit._vision import torchvision
from clamkit.errors import ClamkitError
from clamkit.models import MODELS, build_model


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_any_channels_and_classes(name, channels, stem):
    model = build_model(name, 7, channels, stem).eval()
    assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


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
