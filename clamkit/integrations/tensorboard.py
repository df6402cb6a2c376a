"""Curves of each class in TensorBoard.

from clamkit.integrations.tensorboard import Curves

train(config, watch=Curves("logs/first"))  # `clamkit train --log-dir logs` on the command line
ClamCallback(CLAM(10), log_dir="logs")  # in the Trainer and in Lightning
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from numpy.typing import ArrayLike

from clamkit.engine.store import COLUMNS, Run
from clamkit.errors import ClamkitError, not_installed
from clamkit.methods.weighters import Weighter
from clamkit.metrics import fairness

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Folder, Names = str | os.PathLike | None, Sequence[str] | None
MOST_CURVES = 100  # classes that get a curve each; of more there is the histogram, which is always there


class Curves:
    """Writes weights and accuracies of the classes to `log_dir`, one step an epoch; only the first process does.

    Tags: weight/shirt, train_accuracy/shirt, train_loss/shirt and test_accuracy/shirt for each class; the metrics of
    `fairness` as train_equity/worst and test_equity/worst; a histogram over the classes of each column.
    What a later epoch of an earlier training left in the same folder is hidden from the first epoch written on.
    """

    def __init__(self, log_dir: str | os.PathLike, class_names: Names = None, num_classes: int | None = None):
        if num_classes and class_names is not None and len(class_names) != num_classes:
            raise ClamkitError(f"{len(class_names)} class_names for {num_classes} classes: give one for each.")
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:  # now, not after the first epoch
            raise not_installed("tensorboard", "integrations") from error
        self.log_dir, self.class_names = os.fspath(log_dir), class_names
        self.epoch = 0  # the last one written
        self._writer: SummaryWriter | None = None

    def __call__(self, history: Sequence[Mapping[str, ArrayLike]], class_names: Sequence[str]) -> None:
        """For `train(watch=…)`: the epochs that have not been written."""
        self.class_names = class_names
        for epoch in range(self.epoch + 1, len(history) + 1):
            self.log(epoch, history[epoch - 1])

    def of_run(self, run: Run) -> None:
        """All epochs of a finished run."""
        self([part[list(COLUMNS)].to_dict("list") for _, part in run.history.groupby("epoch")], run.class_names)

    def log(self, epoch: int, columns: Mapping[str, ArrayLike]) -> None:
        """Columns with a number for each class; nan: nothing to say of it."""
        if epoch <= self.epoch:  # another training
            self.close()
        self.epoch = epoch
        if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            try:
                self._writer = SummaryWriter(self.log_dir, purge_step=epoch)
            except OSError as error:
                raise ClamkitError(f"cannot write to log_dir={self.log_dir!r}: {error}. Choose another.") from error
        for column, given in columns.items():
            values = np.asarray(given, dtype=np.float64)
            names = self.class_names or [f"class {i}" for i in range(len(values))]
            known = np.flatnonzero(np.isfinite(values))
            for i in known if len(values) <= MOST_CURVES else ():
                self._writer.add_scalar(f"{column}/{names[i]}", values[i], epoch)
            if known.size:
                self._writer.add_histogram(column, values[known], epoch)
            if column.endswith("_accuracy") and known.size > 1:
                for metric, value in fairness(values[known]).items():
                    self._writer.add_scalar(f"{column.removesuffix('accuracy')}equity/{metric}", value, epoch)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_writer": None}  # to another process, or copied: a file of its own


def step(weighter: Weighter, curves: Curves | None) -> None:
    """Move the class weights; the curves get the weights of the epoch that is over, and what was counted in it."""
    if curves is None:
        return weighter.step()
    weights, (accuracy, loss) = weighter.weights.clone(), weighter.counted()
    weighter.step()
    curves.log(int(weighter.epoch), {"weight": weights, "train_accuracy": accuracy, "train_loss": loss})
