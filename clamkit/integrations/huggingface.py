"""CLAM in the Hugging Face Trainer:

from clamkit import CLAM
from clamkit.integrations.huggingface import ClamCallback

clam = ClamCallback(CLAM(num_classes, projection="kl"))
trainer = Trainer(model, args, train_dataset=data, compute_loss_func=clam.loss, callbacks=[clam])
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from clamkit.errors import ClamkitError, not_installed
from clamkit.integrations import load_weighter_state, weighter_state
from clamkit.integrations.tensorboard import Curves, Folder, Names, step
from clamkit.methods.weighters import Weighter

try:
    from transformers import TrainerCallback
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise not_installed("transformers", "integrations") from error


class ClamCallback(TrainerCallback):
    """Counts the training batches, moves the class weights after each epoch, keeps both in the checkpoints.

    The state goes into the checkpoint's trainer_state.json, so `trainer.train(resume_from_checkpoint=...)` goes on with
    the weights it had, also in the middle of an epoch. Any other `train()`, such as a trial of a search, begins with
    the weights of the first one. An epoch that max_steps cuts short makes no step.
    log_dir: a folder for TensorBoard curves of each class, named by class_names. Of several callbacks in one Trainer,
    as for two heads, each needs a name of its own.
    """

    def __init__(self, weighter: Weighter, log_dir: Folder = None, class_names: Names = None, *, name: str = ""):
        if weighter.reduction != "mean":
            raise ClamkitError(f"the Trainer needs a mean, not reduction={weighter.reduction!r}: leave it out.")
        if weighter.ignore_index != -100:
            raise ClamkitError("the Trainer averages over labels that are not -100: use that, leave ignore_index out.")
        self.weighter, self.key = weighter, f"clamkit {name}".rstrip()  # where its weights are in trainer_state.json
        self.curves = Curves(log_dir, class_names, weighter.num_classes) if log_dir else None
        self._first: dict[str, Tensor] | None = None  # the state with which the first training began

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """For compute_loss_func: the mean over all samples of an accumulated batch, not over this part of it."""
        if labels is None:
            raise ClamkitError(
                "the batch has no labels. The Trainer drops columns that the model's forward does not take: set "
                "label_names=['labels'] in TrainingArguments, and name the column so."
            )
        loss = self.weighter(outputs, labels)
        if num_items_in_batch is None:
            return loss
        return loss * (labels != self.weighter.ignore_index).sum() / num_items_in_batch

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if vars(state).setdefault(self.key, self) is not self:
            raise ClamkitError("two ClamCallbacks keep their weights in the same place: give each a name=.")
        smoothing = args.label_smoothing_factor
        if smoothing and smoothing != self.weighter.label_smoothing:
            raise ClamkitError(
                f"label_smoothing_factor={smoothing} has no effect on a loss that the Trainer is given: build the "
                f"weighter with label_smoothing={smoothing}, or leave the factor out."
            )
        if self._first is None:
            self._first = copy.deepcopy(self.weighter.state_dict())
        elif not state.global_step:
            self.weighter.load_state_dict(self._first)
        self.weighter.forget()
        if self.key in state.stateful_callbacks:
            load_weighter_state(self.weighter, state.stateful_callbacks[self.key])
            if args.ignore_data_skip:  # the epoch begins anew
                self.weighter.forget()
        elif state.global_step:
            none = f"the checkpoint of step {state.global_step} has no class weights"
            warnings.warn(f"{none}: they go on from here as they are.", stacklevel=2)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if _epoch_is_over(state):  # before the checkpoint of the epoch's last step is written
            self._step(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not _epoch_is_over(state) and not control.should_training_stop:  # streamed data, whose length nobody knew
            self._step(state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.stateful_callbacks[self.key] = weighter_state(self.weighter)
        file = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", TRAINER_STATE_NAME)
        if args.should_save and file.exists():
            state.save_to_json(str(file))

    def _step(self, state: Any) -> None:
        step(self.weighter, self.curves)
        state.stateful_callbacks[self.key] = weighter_state(self.weighter)


def _epoch_is_over(state: Any) -> bool:
    return float(state.epoch).is_integer()
