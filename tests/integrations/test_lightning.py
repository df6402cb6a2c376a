"""CLAM in Lightning ends with the weights of the plain loop."""

import copy
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn

from clamkit import CLAM, ClamkitError

from .training import BATCH, EPOCHS, Model, assert_same, loader, plain, sgd, skip_without_bf16

pytest.importorskip("lightning", reason="lightning is not installed: pip install 'clamkit[integrations]'")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from clamkit.integrations.lightning import ClamCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*mid-epoch"),
]


def lightning(
    folder, weighter, *, resume=None, checkpoint=None, validate=True, soft=False, log_dir=None, class_names=None,
    **settings,
):  # fmt: skip
    clam = ClamCallback(weighter, log_dir, class_names)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.loss = Model(), clam.loss

        def training_step(self, batch, _):
            x, y = batch
            return self.loss(self.model(x), nn.functional.one_hot(y, 10).float() if soft else y)

        def validation_step(self, batch, _):
            x, y = batch
            with torch.enable_grad():  # even so it is not training
                self.loss(self.model(x), y)

        def configure_optimizers(self):
            return sgd(self.model)

    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=[clam, *([checkpoint] if checkpoint else [])],
        logger=False,
        enable_checkpointing=checkpoint is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": EPOCHS} | settings,
    )
    trainer.fit(Module(), loader(), loader() if validate else None, ckpt_path=resume)


@pytest.mark.parametrize(
    ("accumulate", "precision"), [(1, "32-true"), (2, "32-true"), pytest.param(1, "bf16-mixed", marks=pytest.mark.slow)]
)
def test_lightning_with_validation(tmp_path, accumulate, precision):
    if precision == "bf16-mixed":
        skip_without_bf16()
    weighter = CLAM(10)
    lightning(
        tmp_path, weighter, accumulate_grad_batches=accumulate, precision=precision, val_check_interval=4
    )  # in the middle of epochs too
    assert_same(weighter, plain(accumulate, precision == "bf16-mixed"))


@pytest.mark.parametrize("validate", [True, False])
def test_lightning_resume_keeps_the_weights(tmp_path, validate):
    """With validation Lightning writes the checkpoint there, before the epoch's end; without, after it."""
    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    first = CLAM(10)
    lightning(tmp_path, first, checkpoint=keep, validate=validate)
    weighter = CLAM(10)
    lightning(tmp_path, weighter, resume=tmp_path / "epoch=0.ckpt", validate=validate)
    assert_same(weighter, plain())
    assert_same(first, weighter)


def test_lightning_checkpoint_in_the_middle_of_an_epoch_has_its_counts(tmp_path):
    weighter = CLAM(10)
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=14, save_top_k=-1)
    lightning(tmp_path, weighter, checkpoint=keep, max_steps=14)
    saved = torch.load(tmp_path / "step=14.ckpt", weights_only=True)["callbacks"]["ClamCallback"]
    assert sum(saved["seen"]) == 4 * BATCH
    assert saved["weights"] == weighter.weights.tolist()
    assert saved["epoch"] == 1


class Saved(pl.LightningModule):
    """A module with its loss among its hyperparameters."""

    def __init__(self, loss=None, width=16):
        super().__init__()
        self.save_hyperparameters()
        self.model, self.loss = Model(), loss

    def training_step(self, batch, _):
        x, y = batch
        return self.loss(self.model(x), y)

    def configure_optimizers(self):
        return sgd(self.model)


def fit(folder, clam, module, epochs=EPOCHS, resume=None):
    keep = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        callbacks=[clam, keep],
        logger=CSVLogger(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=epochs,
    )
    trainer.fit(module, loader(), ckpt_path=resume)


def test_the_loss_among_saved_hyperparameters_resumes(tmp_path):
    clam = ClamCallback(CLAM(10))
    fit(tmp_path, clam, Saved(clam.loss), epochs=1)
    again = ClamCallback(CLAM(10))
    fit(tmp_path, again, Saved(again.loss), resume=tmp_path / "epoch=0.ckpt")
    assert_same(again.weighter, plain())
    read = Saved.load_from_checkpoint(tmp_path / "epoch=0.ckpt", weights_only=True)
    with pytest.raises(ClamkitError, match="read from a checkpoint"):
        read.loss(torch.zeros(1, 10), torch.zeros(1, dtype=torch.long))
    given = Saved.load_from_checkpoint(tmp_path / "epoch=0.ckpt", loss=again.loss, weights_only=True)
    given.loss(torch.zeros(1, 10), torch.zeros(1, dtype=torch.long))


def test_the_loss_goes_whole_to_other_processes_and_into_copies():
    clam = ClamCallback(CLAM(10))
    clam.weighter.step(accuracy=[0.1] * 9 + [0.9])
    callback, loss = pickle.loads(ForkingPickler.dumps((clam, clam.loss)))
    assert loss.weighter is callback.weighter
    assert torch.equal(loss.weighter.weights, clam.weighter.weights)
    assert torch.equal(copy.deepcopy(clam.loss).weighter.weights, clam.weighter.weights)


class TwoHeads(Saved):
    def __init__(self, first, second):
        super().__init__(first.loss)
        self.second = second.loss

    def training_step(self, batch, _):
        x, y = batch
        logits = self.model(x)
        return self.loss(logits, y) + self.second(logits, (y + 3) % 10)


def test_two_weighters_in_one_trainer_resume_each_with_its_own_weights(tmp_path):
    def both(**resume):
        first, second = ClamCallback(CLAM(10)), ClamCallback(CLAM(10), name="second")
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
        keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        trainer = pl.Trainer(callbacks=[first, second, keep], max_epochs=EPOCHS, **quiet)
        trainer.fit(TwoHeads(first, second), loader(), **resume)
        return first.weighter.weights, second.weighter.weights

    whole, resumed = both(), both(ckpt_path=tmp_path / "epoch=0.ckpt", weights_only=False)
    assert not torch.allclose(*whole)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(resumed, whole, strict=True))


def test_a_new_trainer_begins_anew(tmp_path):
    clam = ClamCallback(CLAM(10))
    for _ in range(2):
        fit(tmp_path, clam, Saved(clam.loss))
        assert_same(clam.weighter, plain())


def test_the_weighter_may_be_a_part_of_the_module(tmp_path):
    weighter = CLAM(10)
    clam = ClamCallback(weighter)
    fit(tmp_path, clam, Saved(weighter), epochs=1)  # the criterion itself as loss
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=False)
    assert torch.equal(saved["state_dict"]["loss.weights"], weighter.weights)


def test_lightning_refuses_soft_labels(tmp_path):
    with pytest.raises(ClamkitError, match="Soft labels"):
        lightning(tmp_path, CLAM(10), soft=True)
