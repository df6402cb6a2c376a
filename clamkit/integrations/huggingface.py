"""CLAM in the Hugging Face Trainer:

from clamkit import CLAM
from clamkit.integrations.huggingface import ClamCallback

clam = ClamCallback(CLAM(num_classes, projection="kl"))
trainer = Trainer(model, args, train_dataset=data, compute_loss_func=clam.loss, callbacks=[clam])
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from clamkit.errors import ClamkitError
from clamkit.integrations import load_weighter_state, missing, weighter_state
from clamkit.methods.weighters import Weighter

try:
    from transformers import TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise missing("transformers") from error

KEY = "clamkit"  # where the class weights are in trainer_state.json


class ClamCallback(TrainerCallback):
    """Counts the training batches, moves the class weights after each epoch, keeps both in the checkpoints.

    The state goes into the checkpoint's trainer_state.json, so `trainer.train(resume_from_checkpoint=...)` goes on with
    the weights it had, also in the middle of an epoch. An epoch that max_steps cuts short makes no step.
    """

    def __init__(self, weighter: Weighter):
        self.weighter = weighter

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """For compute_loss_func: the mean over all samples of an accumulated batch, not over this part of it."""
        if labels is None:
            raise ClamkitError(
                "the batch has no labels. The Trainer drops columns that the model's forward does not take: set "
                "label_names=['labels'] in TrainingArguments, and name the column so."
            )
        loss = self.weighter(outputs["logits"] if isinstance(outputs, dict) else outputs[0], labels)
        return loss if num_items_in_batch is None else loss * len(labels) / num_items_in_batch

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weighter.forget()
        if KEY in state.stateful_callbacks:
            load_weighter_state(self.weighter, state.stateful_callbacks[KEY])
            if args.ignore_data_skip:  # the epoch begins anew
                self.weighter.forget()
        elif state.global_step:
            warnings.warn(
                f"the checkpoint of step {state.global_step} has no class weights: they go on from here as they are.",
                stacklevel=2,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if _epoch_is_over(state):  # before the checkpoint of the epoch's last step is written
            self._step(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not _epoch_is_over(state) and not control.should_training_stop:  # streamed data, whose length nobody knew
            self._step(state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.stateful_callbacks[KEY] = weighter_state(self.weighter)
        file = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", TRAINER_STATE_NAME)
        if args.should_save and file.exists():
            state.save_to_json(str(file))

    def _step(self, state: Any) -> None:
        self.weighter.step()
        state.stateful_callbacks[KEY] = weighter_state(self.weighter)


def _epoch_is_over(state: Any) -> bool:
    return float(state.epoch).is_integer()
