"""Per-sample losses: (logits [B, n], labels [B]) -> [B]. Computed in float32 also under autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clamkit.errors import ClamkitError


def check_labels(logits: Tensor, y: Tensor) -> None:
    """Refuse soft labels and wrong shapes. Looks at types and shapes only: no device is waited for."""
    if y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise ClamkitError(
            f"labels of type {y.dtype} and shape {tuple(y.shape)} are not class numbers: class accuracies need one "
            "whole number for each sample. Soft labels (mixup, cutmix, distillation) have no single class: train with "
            "hard labels, or pass the accuracies yourself with step(accuracy=...)."
        )
    if logits.ndim != 2 or logits.shape[0] != y.shape[0]:
        raise ClamkitError(
            f"logits of shape {tuple(logits.shape)} do not fit labels of shape {tuple(y.shape)}: "
            "give [batch, classes] and [batch]."
        )


def cross_entropy(logits: Tensor, y: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """−ln p_y."""
    return F.cross_entropy(logits.float(), y, reduction="none", label_smoothing=label_smoothing)
