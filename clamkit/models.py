"""Classifiers (the max player). Any number of input channels and classes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from clamkit.errors import unknown

MODELS = ("tiny_resnet", "resnet18", "resnet50")
STEMS = ("imagenet", "small")


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
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


def tiny_resnet(num_classes: int, channels: int = 1) -> nn.Module:
    """A 78 k-parameter ResNet for 28–64 px on a CPU: stride-2 stem, one block at each of 16, 32, 64 channels."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        _Block(16, 16, 1),
        _Block(16, 32, 2),
        _Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


def build_model(name: str, num_classes: int, channels: int = 3, stem: str = "imagenet") -> nn.Module:
    """A freshly initialised model. `stem="small"` (ResNets): 3×3 stride 1 without pooling, for images of 28–64 px."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    if name == "tiny_resnet":
        return tiny_resnet(num_classes, channels)
    from clamkit._vision import torchvision  # slow to import: only for models that need it

    model = getattr(torchvision.models, name)(num_classes=num_classes)
    if stem == "small":
        model.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
    return model
