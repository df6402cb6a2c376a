"""Classifiers (the max player). Any number of input channels and classes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from clamkit.engine.config import MODELS
from clamkit.errors import ClamkitError, unknown

PATCH = {"imagenet": 16, "small": 4}  # by stem: pixels of a ViT's patch
VITS = {"tiny_vit": (4, 4, 64), "vit_small": (12, 6, 384), "vit_base": (12, 12, 768)}  # layers, heads, width


class _Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, 1×1 where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut.append(nn.Conv2d(channels_in, channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


def tiny_resnet(num_classes: int, channels: int = 1) -> nn.Module:
    """A 78 k-parameter ResNet for 28–64 px on a CPU: stride-2 stem, one block at each of 16, 32, 64 channels."""
    stem = (nn.Conv2d(channels, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
    blocks = (_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))
    return nn.Sequential(*stem, *blocks, *head)


def build_model(
    name: str, num_classes: int, channels: int = 3, stem: str = "imagenet", image_size: int = 224
) -> nn.Module:
    """A freshly initialised model.

    stem        "small" is for images of 28–64 px: ResNets begin with 3×3 stride 1 and no pooling, ViTs cut patches of
                4 pixels instead of 16
    image_size  needed by the ViTs alone
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if stem not in PATCH:
        raise unknown("stem", stem, PATCH)
    if name == "tiny_resnet":
        return tiny_resnet(num_classes, channels)
    from clamkit.data.vision import torchvision  # slow to import: only for models that need it

    if name in VITS:
        layers, heads, width = VITS[name]
        if image_size % PATCH[stem]:
            raise ClamkitError(f"{name} cuts patches of {PATCH[stem]} pixels: image_size={image_size} is no multiple.")
        model = torchvision.models.VisionTransformer(
            image_size, PATCH[stem], layers, heads, width, 4 * width, num_classes=num_classes
        )
        if channels != 3:
            model.conv_proj = nn.Conv2d(channels, width, PATCH[stem], PATCH[stem])
        return model
    model = getattr(torchvision.models, name)(num_classes=num_classes)
    if stem == "small":
        model.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return model


def orthogonal_init(model: nn.Module) -> None:
    """The released code's: orthogonal convolutions (ReLU gain) and linear layers, zero biases."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            gain = nn.init.calculate_gain("relu") if isinstance(module, nn.Conv2d) else 1.0
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
