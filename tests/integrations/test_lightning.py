"""CLAM in Lightning ends with the weights of the plain loop."""

import pytest
import torch
from torch import nn

from clamkit import CLAM, ClamkitError

from .training import BATCH, EPOCHS, Model, assert_same, loader, plain, sgd, skip_without_bf16

pytest.importorskip("lightning", reason="lightning is not installed: pip install 'clamkit[integrations]'")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from clamkit.integrations.lightning import ClamCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*mid-epoch"),
]


def lightning(folder, weighter, *, resume=None, checkpoint=None, validate=True, soft=False, **settings):
    clam = ClamCallback(weighter)

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


def test_lightning_refuses_soft_labels(tmp_path):
    with pytest.raises(ClamkitError, match="Soft labels"):
        lightning(tmp_path, CLAM(10), soft=True)
