"""Per-sample losses: (logits [B, n, …], labels [B, …]) -> [B, …], computed in float32 also under autocast; and what a
model or a loader may give instead of logits and labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling

from clamkit.errors import ClamkitError

WHOLE = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}  # types of class numbers


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


def predicted(logits: Tensor) -> Tensor:
    """The class of the largest logit, of equals the first. On a CPU by numpy, ten times as fast as torch."""
    if not logits.is_cpu or is_compiling():
        return logits.argmax(1)
    return torch.from_numpy(logits.float().numpy().argmax(1))


def as_logits(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, an object or dict with `logits`, or a tuple that begins so."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        found = output.get("logits", output.get("out"))  # "out": torchvision's segmentation models
    else:
        found = getattr(output, "logits", output[0] if isinstance(output, tuple | list) and output else None)
    if not isinstance(found, Tensor):
        raise ClamkitError(f"no logits were found in the {type(output).__name__} of the model: give the tensor itself.")
    return found


def checked_labels(
    logits: Tensor, y: Any, num_classes: int | None, ignore_index: int = -100
) -> tuple[Tensor, Tensor | None]:
    """(labels as int64, which of them count), None: all. What is ignored gets label 0, which any loss can take.

    No device is waited for: values are looked at on CPUs only. num_classes None: as many as there are logits.
    """
    if not isinstance(y, Tensor):
        first = next(iter(y), None) if isinstance(y, list | tuple) or hasattr(y, "__array__") else y
        given = f"text (the first is {str(first)!r})" if isinstance(first, str) else f"of type {type(y).__name__}"
        raise ClamkitError(f"labels are {given}: give a tensor of class numbers, torch.as_tensor(numbers).")
    shape = logits.shape
    fits = y.dtype in WHOLE and len(shape) > 1 and shape[:1] + shape[2:] == y.shape
    if not fits or shape[1] != (num_classes or max(shape[1], 2)):
        raise _misfit(logits, y, num_classes)
    y = y.long()  # uint8 would be read as a mask
    if check_range(y, shape[1], "label", ignore_index):
        return y, None
    valid = y != ignore_index
    return y * valid, valid


def check_range(index: Tensor, size: int, name: str, ignore_index: int | None = None) -> bool:
    """Whether all are known to be numbers of classes (or groups) that count; wrong ones are refused.

    Known on CPUs alone: elsewhere it would be waited for, and torch itself stops at numbers out of range.
    """
    if not index.is_cpu or is_compiling():
        return False
    low, high = map(int, index.aminmax()) if index.numel() else (0, 0)
    if low >= 0 and high < size:
        return ignore_index is None or not 0 <= ignore_index < size
    bad, skipped = index[(index < 0) | (index >= size)], ""
    if ignore_index is not None:
        bad, skipped = bad[bad != ignore_index], f", or are {ignore_index} (ignored)"
    if bad.numel():
        raise ClamkitError(f"{name} {int(bad[0])} is out of range: {name}s run from 0 to {size - 1}{skipped}.")
    return False


def _misfit(logits: Tensor, y: Tensor, num_classes: int | None) -> ClamkitError:
    """Why labels cannot be counted. On the way to an error values may be read."""
    if y.dtype in WHOLE and y.shape != logits.shape and logits.shape[1:2] != (1,):
        if logits.ndim > 1 and logits.shape[:1] + logits.shape[2:] == y.shape:
            given = f"the model gives {logits.shape[1]} logits, the weights are for {num_classes} classes"
            return ClamkitError(f"{given}: build both with the same number.")
        why = "give [batch, classes] and [batch], or [batch, classes, …] and [batch, …]."
        if y.ndim > 1 and logits.shape[:-1] == y.shape:
            why = "the classes come last, as in models of tokens, and must come second: give logits.movedim(-1, 1)."
        return ClamkitError(f"logits of shape {tuple(logits.shape)} do not fit labels of shape {tuple(y.shape)}: {why}")
    if logits.shape[1:2] in ((), (1,)):
        given = f"logits of shape {tuple(logits.shape)} are one logit a sample (BCEWithLogitsLoss)"
        return ClamkitError(f"{given}: take two outputs for a binary task, and labels 0 and 1.")
    if y.shape != logits.shape:
        why = "class accuracies need one whole number for each sample. If they are whole, give labels.long()."
    elif y.is_floating_point() and bool(((y.sum(1) - 1).abs() < 1e-2).all()):
        why = (
            "Soft labels (mixup, cutmix, distillation) have no single class. Train with hard labels (one-hot ones by "
            "y.argmax(1)), or pass the accuracies yourself with step(accuracy=...)."
        )
    else:
        why = (
            "several classes for each sample (multi-label) leave no single one to count. Weigh the columns of a loss "
            "of your own by `weights`, and pass the accuracies with step(accuracy=...)."
        )
    return ClamkitError(f"labels of type {y.dtype} and shape {tuple(y.shape)} are not class numbers: {why}")
