"""CLAM in Lightning: the module takes its loss from the callback.

from clamkit import CLAM
from clamkit.integrations.lightning import ClamCallback

clam = ClamCallback(CLAM(num_classes, projection="kl"))
module = MyModule(loss=clam.loss)  # its training_step returns self.loss(logits, y)
Trainer(callbacks=[clam]).fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from clamkit.errors import ClamkitError
from clamkit.integrations import load_weighter_state, missing, weighter_state
from clamkit.methods.weighters import Weighter

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise missing("lightning") from error


class ClamCallback(Callback):
    """Counts the training batches, moves the class weights after each epoch, keeps both in the checkpoints.

    The weights move with the epoch's last batch, before validation, so that a checkpoint written there has them.
    An epoch that max_steps cuts short makes no step.
    """

    def __init__(self, weighter: Weighter):
        self.weighter = weighter

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch. In training_step the batch is counted, in validation and test steps it is not."""
        return self.weighter(logits, y)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.world_size > 1 and self.weighter in pl_module.modules():
            raise ClamkitError(
                "the weighter is a part of the module, where DistributedDataParallel overwrites its counts: give the "
                "module clam.loss instead."
            )
        if stage == "fit":
            self.weighter.forget()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch:
            self.weighter.step()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weighter.eval()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.weighter.train()

    def state_dict(self) -> dict[str, Any]:
        return weighter_state(self.weighter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load_weighter_state(self.weighter, state_dict)
