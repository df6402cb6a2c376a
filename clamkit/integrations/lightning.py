"""CLAM in Lightning: the module takes its loss from the callback.

from clamkit import CLAM
from clamkit.integrations.lightning import ClamCallback

clam = ClamCallback(CLAM(num_classes, projection="kl"))
module = MyModule(loss=clam.loss)  # its training_step returns self.loss(logits, y)
Trainer(callbacks=[clam]).fit(module, loader)
"""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from clamkit.errors import ClamkitError, not_installed
from clamkit.integrations import load_weighter_state, weighter_state
from clamkit.integrations.tensorboard import Curves, Folder, Names, step
from clamkit.methods.weighters import Weighter

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise not_installed("lightning", "integrations") from error


class Loss:
    """`clam.loss`, which may be one of a module's `save_hyperparameters()`.

    A checkpoint holds its name alone, which resuming (`weights_only`) may read; only the callback holds the weights.
    """

    def __init__(self, weighter: Weighter | None = None):
        self.weighter = weighter

    def __call__(self, logits: Any, y: Tensor, group: Tensor | None = None) -> Tensor:
        if self.weighter is None:
            raise ClamkitError(
                "this loss was read from a checkpoint, which does not hold its weights: give the module a new one, "
                "load_from_checkpoint(..., loss=clam.loss)."
            )
        return self.weighter(logits, y, group)

    def __reduce__(self) -> tuple:
        return Loss, ()

    def __deepcopy__(self, memo: dict) -> Loss:
        return Loss(copy.deepcopy(self.weighter, memo))


torch.serialization.add_safe_globals([Loss])
ForkingPickler.register(Loss, lambda loss: (Loss, (loss.weighter,)))  # whole to processes that Lightning starts


class ClamCallback(Callback):
    """Counts the training batches, moves the class weights after each epoch, keeps both in the checkpoints.

    The weights move with the epoch's last batch, before validation, so that a checkpoint written there has them.
    An epoch that max_steps cuts short makes no step. A new Trainer begins with the weights of the first one, unless it
    resumes. log_dir: a folder for TensorBoard curves of each class, named by class_names. Of several callbacks in one
    Trainer, as for two heads, each needs a name of its own.
    """

    def __init__(self, weighter: Weighter, log_dir: Folder = None, class_names: Names = None, *, name: str = ""):
        self.weighter, self.name = weighter, name
        self.curves = Curves(log_dir, class_names, weighter.num_classes) if log_dir else None
        self._first: dict[str, Tensor] | None = None  # the state with which the first training began

    @property
    def state_key(self) -> str:
        return f"{type(self).__qualname__} {self.name}".rstrip()

    @property
    def loss(self) -> Loss:
        """The loss of a batch. In training_step the batch is counted, in validation and test steps it is not."""
        return Loss(self.weighter)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if self._first is None:
            self._first = copy.deepcopy(self.weighter.state_dict())
        elif not trainer.global_step:
            self.weighter.load_state_dict(self._first)
        self.weighter.forget()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            step(self.weighter, self.curves)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weighter.eval()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weighter.train()

    def state_dict(self) -> dict[str, Any]:
        return weighter_state(self.weighter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load_weighter_state(self.weighter, state_dict)
