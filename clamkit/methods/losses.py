"""Per-sample losses: (logits [B, n], labels [B]) -> [B]. Computed in float32 also under autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clamkit.errors import ClamkitError


def checked_labels(logits: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """The labels as int64 (uint8 would be read as a mask). Looks at types and shapes only: no device is waited for."""
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
    if logits.shape[1] != num_classes:
        raise ClamkitError(
            f"the model gives {logits.shape[1]} logits, the weights are for {num_classes} classes: "
            "build both with the same number."
        )
    return y.long()


def cross_entropy(logits: Tensor, y: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """−ln p_y."""
    return F.cross_entropy(logits.float(), y, reduction="none", label_smoothing=label_smoothing)


def focal(logits: Tensor, y: Tensor, *, gamma: float) -> Tensor:
    """−(1 − p_y)^γ ln p_y (Lin et al.; paper, appendix "Baselines")."""
    return performance_weighted(logits, y, gamma=gamma, theta=0.0)


def performance_weighted(logits: Tensor, y: Tensor, *, gamma: float, theta: float) -> Tensor:
    """−((1 − p_y)^γ + θ) ln p_y: the PW loss.

    1 − p comes from expm1 of the log-probability, exact also where p is near 1; it is kept off zero, where the
    gradient of a power below one would be infinite.
    """
    log_p = F.log_softmax(logits.float(), dim=1).gather(1, y[:, None]).squeeze(1)
    miss = (-torch.expm1(log_p)).clamp_min(torch.finfo(torch.float32).eps)
    return -(miss**gamma + theta) * log_p
