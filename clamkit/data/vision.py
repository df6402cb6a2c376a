"""The one place that imports torchvision.

The stock torchvision wheel is built against CUDA. Beside a CPU-only torch its compiled part cannot be loaded, and
`import torchvision` stops at "operator torchvision::nms does not exist", although models, transforms and datasets
need none of it. Declaring the two missing operators first lets the import through; calling them still fails.
"""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

import torch


def _declare_missing_operators() -> torch.library.Library | None:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None  # the import below says so
    for compiled in Path(spec.origin).parent.glob("_C*"):
        with suppress(OSError):
            torch.ops.load_library(str(compiled))
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_library = _declare_missing_operators()  # kept alive: the declarations end with it

import torchvision  # noqa: E402
import torchvision.transforms.v2  # noqa: E402

__all__ = ["torchvision"]
