"""How even the classes are, as a torchmetrics metric.

from clamkit.integrations.torchmetrics import ClassEquity

equity = ClassEquity(num_classes=10)
equity.update(logits, y)  # each validation batch
equity.compute()  # {"average": …, "worst": …, "std": …, "range": …, …}
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from clamkit.errors import ClamkitError, not_installed
from clamkit.methods.losses import WHOLE, check_range
from clamkit.metrics import METRICS, TAIL, fairness, tail_size

try:
    from torchmetrics import Metric
except ImportError as error:
    raise not_installed("torchmetrics", "integrations") from error


class ClassEquity(Metric):
    """Counts each class; `compute` gives the metrics of `clamkit.fairness`, and `lowest`, the worst class.

    tail          share of the classes that `worst` and `best` are means of
    ignore_index  a label that is not counted

    The counts of several processes are summed. Classes that have not been seen are left out; while fewer than two have
    been seen, all values are nan. `accuracy` has the classes one by one.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    right: Tensor
    seen: Tensor

    def __init__(self, num_classes: int, *, tail: float = TAIL, ignore_index: int | None = None, **options: Any):
        super().__init__(**options)
        if num_classes < 2:
            raise ClamkitError(f"num_classes={num_classes}: comparing classes needs at least two.")
        tail_size(num_classes, tail)  # refuses what is no share
        self.num_classes, self.tail, self.ignore_index = num_classes, tail, ignore_index
        for name in ("right", "seen"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """preds: class numbers [B, …], or logits or probabilities [B, num_classes, …]; target: class numbers [B, …]"""
        if preds.ndim == target.ndim + 1:
            if preds.shape[1] != self.num_classes:
                raise ClamkitError(
                    f"scores of shape {tuple(preds.shape)} are not of {self.num_classes} classes: give "
                    "[batch, num_classes, …]."
                )
            preds = preds.argmax(dim=1)
        if preds.shape != target.shape or preds.dtype not in WHOLE or target.dtype not in WHOLE:
            raise ClamkitError(
                f"predictions {tuple(preds.shape)} of type {preds.dtype} do not fit labels {tuple(target.shape)} of "
                f"type {target.dtype}: give class numbers, or scores with a column for each class."
            )
        preds, target = preds.flatten(), target.flatten().long()
        if self.ignore_index is not None:
            preds, target = preds[target != self.ignore_index], target[target != self.ignore_index]
        check_range(target, self.num_classes, "label")
        self.seen += torch.bincount(target, minlength=self.num_classes)
        self.right += torch.bincount(target[preds == target], minlength=self.num_classes)

    @property
    def accuracy(self) -> Tensor:
        """Of each class, of this process; nan where it has not been seen."""
        return self.right / self.seen

    def compute(self) -> dict[str, Tensor]:
        v = (self.right / self.seen).double().cpu().numpy()
        v = v[~np.isnan(v)]
        found = dict.fromkeys((*METRICS, "lowest"), np.nan)
        if len(v) > 1:
            found = {**fairness(v, self.tail), "lowest": v.min()}
        return {
            str(name): torch.tensor(value, dtype=torch.float32, device=self.device) for name, value in found.items()
        }
