"""What a run computes on, and in which precision; whether a person looks on."""

from __future__ import annotations

import os
import sys

import torch

from clamkit.errors import ClamkitError, unknown


def find_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" takes CUDA, then MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    kind = name.split(":")[0]
    if kind not in available:
        raise unknown("device", name, ["auto", *available])
    if not available[kind]:
        raise ClamkitError(f"device {name!r} is not available here: use device='auto' or 'cpu'.")
    return torch.device(name)


def mixed_precision(device: torch.device) -> torch.dtype:
    """bfloat16, which needs no scaling of the loss; float16 on GPUs that are older than it."""
    old = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if old else torch.bfloat16


def show_progress(progress: bool | None = None) -> bool:
    """Bars are for people: a terminal or a notebook, unless CLAMKIT_PROGRESS=0."""
    if progress is not None:
        return progress
    return os.environ.get("CLAMKIT_PROGRESS") != "0" and (sys.stderr.isatty() or "ipykernel" in sys.modules)
