"""Classifiers (the max player). Any number of input channels and classes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clamkit.engine.config import MODELS
from clamkit.errors import ClamkitError, check_known

PATCH = {"imagenet": 16, "small": 4}  # by stem: pixels of a ViT's patch
VITS = {"tiny_vit": (4, 4, 64), "vit_small": (12, 6, 384), "vit_base": (12, 12, 768)}  # layers, heads, width
FAST = {"fastnet_small": (32, 128, 128), "fastnet": (64, 256, 256), "fastnet_wide": (96, 384, 384)}  # channels
FILTERS = 12  # pairs of filters in the first layer of a fastnet, at most
NOISE = 5e-4  # added to the variances it divides by


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


class FastNet(nn.Module):
    """A plain convolutional network made to learn in few epochs, for images of 24–128 px.

    The first layer is fixed and whitens small patches of the training images (`whiten`); three groups of two
    convolutions follow, each of which begins as the identity, with batch norms that learn shifts only. Larger images
    are cut into larger patches, so that the groups always work on about 30×30 places.
    """

    def __init__(self, channels: int, widths: tuple[int, ...], num_classes: int, image_size: int):
        super().__init__()
        if not 24 <= image_size <= 128:
            raise ClamkitError(f"a fastnet takes images of 24 to 128 pixels, not {image_size}: set another image_size.")
        stride = math.ceil(image_size / 32)
        pairs = min(FILTERS, channels * (stride + 1) ** 2)
        self.patches = nn.Conv2d(channels, 2 * pairs, stride + 1, stride)
        self.patches.weight.requires_grad_(False)
        layers: list[nn.Module] = []
        for before, width in zip((2 * pairs, *widths), widths, strict=False):
            layers += [_identity_conv(before, width), nn.MaxPool2d(2), _shift_norm(width), nn.GELU()]
            layers += [_identity_conv(width, width), _shift_norm(width), nn.GELU()]
        self.groups = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.groups(F.gelu(self.patches(x))).amax((2, 3))) / 9

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the first layer's filters: ± the main directions of the images' patches, each with variance 1."""
        size, stride, pairs = self.patches.kernel_size[0], self.patches.stride[0], self.patches.out_channels // 2
        patches = F.unfold(images.float().cpu(), size, stride=stride).transpose(1, 2).flatten(0, 1)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T.double()))
        filters = (vectors / (values + NOISE).sqrt()).T.flip(0)[:pairs].reshape(pairs, -1, size, size)
        self.patches.weight.copy_(torch.cat([filters, -filters]).float())  # MPS has no float64
        self.patches.bias.zero_()  # type: ignore[union-attr]


def _identity_conv(before: int, after: int) -> nn.Conv2d:
    conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:before])
    return conv


def _shift_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, momentum=0.4)  # few epochs: statistics must follow quickly
    norm.weight.requires_grad_(False)
    return norm


def build_model(
    name: str, num_classes: int, channels: int = 3, stem: str = "imagenet", image_size: int = 224
) -> nn.Module:
    """A freshly initialised model.

    stem        "small", for 28–64 px: ResNets begin with 3×3, stride 1, no pooling; ViTs cut 4 pixels, not 16
    image_size  needed by the ViTs and fastnets alone
    """
    check_known("model", name, MODELS)
    check_known("stem", stem, PATCH)
    if name == "tiny_resnet":
        return tiny_resnet(num_classes, channels)
    if name in FAST:
        return FastNet(channels, FAST[name], num_classes, image_size)
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
