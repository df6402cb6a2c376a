"""The same small training in a plain loop and in each library: the class weights must come out the same.

The libraries take seconds to import, so all that needs them is in this one file, and they are imported when used.
"""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clamkit import data
from clamkit.errors import ClamkitError
from clamkit.integrations import load_weighter_state, weighter_state
from clamkit.weighters import CLAM, APStar

IMAGES, BATCH, EPOCHS = 200, 20, 2


class Images(Dataset):
    """The first images of the embedded data, as (x, y) or, for the Trainer, as {x:, labels:}."""

    def __init__(self, named: bool = False, size: int = IMAGES):
        embedded = data.load("fashion_mnist_mini")
        self.x = torch.as_tensor(embedded.x_train[:size]).float().reshape(size, -1) / 255
        self.y = torch.as_tensor(embedded.y_train[:size]).long()
        self.named = named

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]} if self.named else (self.x[i], self.y[i])


class Model(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def loader() -> DataLoader:
    return DataLoader(Images(), BATCH)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def plain(accumulate: int = 1, bf16: bool = False) -> CLAM:
    """The reference: loss and count written out, nothing of `forward`."""
    model, weighter = Model(), CLAM(10)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(loader()):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                logits = model(x)
                loss = weighter.loss(logits, y)
            (loss / accumulate).backward()
            weighter.observe(logits, y)
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        weighter.step()
    assert weighter.weights.max() - weighter.weights.min() > 0.3, "the weights must have something to disagree about"
    return weighter


def assert_same(weighter, reference):
    assert weighter.epoch == reference.epoch == EPOCHS
    assert torch.allclose(weighter.weights, reference.weights, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------- criterion, timm


def test_criterion_in_a_timm_loop():
    """As timm's train.py does it: its optimizer, scaler and meters, a criterion of (output, target), validation."""
    from timm.optim import create_optimizer_v2
    from timm.utils import AverageMeter, NativeScaler, accuracy

    model, criterion = Model(), CLAM(10)
    optimizer = create_optimizer_v2(model, opt="momentum", lr=0.1, momentum=0.0, filter_bias_and_bn=False)
    scaler, top1 = NativeScaler(device="cpu"), AverageMeter()
    for _ in range(EPOCHS):
        model.train()
        for x, target in loader():
            loss = criterion(model(x), target)
            optimizer.zero_grad()
            scaler(loss, optimizer, parameters=model.parameters())
        model.eval()
        with torch.no_grad():
            for x, target in loader():
                output = model(x)
                criterion(output, target)
                top1.update(accuracy(output, target)[0].item())
        criterion.step()
    assert_same(criterion, plain())
    assert top1.avg > 20


def test_only_training_batches_are_counted_and_each_once():
    criterion, (x, y) = CLAM(10), next(iter(loader()))
    logits = Model()(x)
    loss = criterion(logits, y)
    assert criterion.seen.sum() == BATCH
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert criterion(logits, y) == loss
    criterion.eval()
    assert criterion(logits, y) == loss
    assert criterion.seen.sum() == BATCH
    criterion.train()
    criterion(logits, y).backward()
    assert criterion.seen.sum() == 2 * BATCH


def test_labels_of_any_whole_number_type_weigh_the_same():
    logits, y = torch.randn(10, 10, generator=torch.Generator().manual_seed(0)), torch.arange(10)
    clam = CLAM(10)
    clam.step(accuracy=np.linspace(0, 1, 10))
    for kind in (torch.uint8, torch.int16, torch.int32):
        assert clam(logits, y.to(kind)) == clam.loss(logits, y)  # as a mask, uint8 labels would pick other weights
    clam.forget()
    clam.observe(logits, y.to(torch.uint8))
    assert clam.seen.tolist() == [1] * 10


def test_mixup_labels_are_refused():
    from timm.data import Mixup

    x, y = next(iter(loader()))
    mixed, soft = Mixup(mixup_alpha=1.0, num_classes=10)(x.reshape(-1, 1, 28, 28), y)
    criterion = CLAM(10)
    with pytest.raises(ClamkitError, match="Soft labels .mixup"):
        criterion(Model()(mixed.flatten(1)), soft)
    assert criterion.seen.sum() == 0


# -------------------------------------------------------------------------------------------------- Hugging Face


class Named(Model):
    """A model as the Trainer wants it: named inputs, a dict of outputs."""

    def forward(self, x):
        return {"logits": super().forward(x)}


def hugging_face(folder, weighter, *, labels=None, train_data=None, **settings):
    from transformers import Trainer, TrainingArguments

    from clamkit.integrations.huggingface import ClamCallback

    clam, model = ClamCallback(weighter), Named()
    optimizer = sgd(model)
    settings = {"num_train_epochs": EPOCHS, "save_strategy": "no", "per_device_train_batch_size": BATCH} | settings
    settings = {"label_names": ["labels"]} | settings
    args = TrainingArguments(
        str(folder),
        train_sampling_strategy="sequential",
        max_grad_norm=0.0,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
        **settings,
    )
    images = train_data or Images(named=True)
    if labels is not None:
        images.y = labels
    return Trainer(
        model,
        args,
        train_dataset=images,
        eval_dataset=images,
        compute_loss_func=clam.loss,
        callbacks=[clam],
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)),
    )


@pytest.mark.parametrize(("accumulate", "bf16"), [(1, False), (2, False), (1, True)])
def test_hugging_face_with_evaluation(tmp_path, accumulate, bf16):
    weighter = CLAM(10)
    trainer = hugging_face(
        tmp_path,
        weighter,
        eval_strategy="steps",  # in the middle of epochs too
        eval_steps=3,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        bf16=bf16,
    )
    trainer.train()
    assert_same(weighter, plain(accumulate, bf16))


@pytest.mark.parametrize("step", [4, 10, 14])  # in an epoch, at the end of one, in the last one
def test_hugging_face_resume_keeps_the_weights(tmp_path, step):
    reference = plain()
    first = hugging_face(tmp_path / "first", CLAM(10), save_strategy="steps", save_steps=step, max_steps=step)
    first.train()
    weighter = CLAM(10)
    again = hugging_face(tmp_path / "elsewhere", weighter, save_strategy="steps", save_steps=step)
    again.train(resume_from_checkpoint=str(tmp_path / "first" / f"checkpoint-{step}"))
    assert_same(weighter, reference)


def test_hugging_face_streams_of_unknown_length(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            images = Images(named=True)
            return (images[i] for i in range(IMAGES))

    weighter = CLAM(10)
    hugging_face(tmp_path, weighter, train_data=Stream(), max_steps=2 * IMAGES // BATCH + 1).train()
    assert_same(weighter, plain())  # two passes, and a batch of a third


def test_hugging_face_tells_what_is_wrong(tmp_path):
    soft = torch.full((IMAGES, 10), 0.1)
    with pytest.raises(ClamkitError, match="Soft labels"):
        hugging_face(tmp_path, CLAM(10), labels=soft).train()
    with pytest.raises(ClamkitError, match="set label_names="):
        hugging_face(tmp_path, CLAM(10), label_names=[]).train()
    trainer = hugging_face(tmp_path, CLAM(10))
    trainer.compute_loss_func = None
    trainer.compute_loss = lambda model, inputs, **kw: model(inputs["x"])["logits"].mean()
    with pytest.raises(ClamkitError, match="no training batch was counted"):
        trainer.train()
    hugging_face(tmp_path, CLAM(10), save_strategy="steps", save_steps=4, max_steps=4).train()
    with pytest.raises(ClamkitError, match="not those of this CLAM for 12 classes"):
        hugging_face(tmp_path, CLAM(12)).train(resume_from_checkpoint=True)
    file = tmp_path / "checkpoint-4" / "trainer_state.json"
    state = json.loads(file.read_text())
    del state["stateful_callbacks"]["clamkit"]
    file.write_text(json.dumps(state))
    with pytest.warns(UserWarning, match="step 4 has no class weights"):
        hugging_face(tmp_path, CLAM(10)).train(resume_from_checkpoint=True)


# ------------------------------------------------------------------------------------------------------ Lightning


def lightning(folder, weighter, *, resume=None, checkpoint=None, validate=True, soft=False, **settings):
    import lightning.pytorch as pl

    from clamkit.integrations.lightning import ClamCallback

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


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*mid-epoch"),
]


@pytest.mark.parametrize(("accumulate", "precision"), [(1, "32-true"), (2, "32-true"), (1, "bf16-mixed")])
def test_lightning_with_validation(tmp_path, accumulate, precision):
    weighter = CLAM(10)
    lightning(
        tmp_path, weighter, accumulate_grad_batches=accumulate, precision=precision, val_check_interval=4
    )  # in the middle of epochs too
    assert_same(weighter, plain(accumulate, precision == "bf16-mixed"))


@pytest.mark.parametrize("validate", [True, False])
def test_lightning_resume_keeps_the_weights(tmp_path, validate):
    """With validation Lightning writes the checkpoint there, before the epoch's end; without, after it."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    first = CLAM(10)
    lightning(tmp_path, first, checkpoint=keep, validate=validate)
    weighter = CLAM(10)
    lightning(tmp_path, weighter, resume=tmp_path / "epoch=0.ckpt", validate=validate)
    assert_same(weighter, plain())
    assert_same(first, weighter)


def test_lightning_checkpoint_in_the_middle_of_an_epoch_has_its_counts(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

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


# ------------------------------------------------------------------------------------------------- state, manners


def test_state_survives_json_to_the_bit():
    first, second = (APStar(10) for _ in range(2))
    first.step(accuracy=np.linspace(0, 1, 10), loss=np.linspace(2, 1 / 3, 10))
    x, y = next(iter(loader()))
    first.observe(Model()(x), y)
    load_weighter_state(second, json.loads(json.dumps(weighter_state(first))))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    with pytest.raises(ClamkitError, match="not those of this CLAM"):
        load_weighter_state(CLAM(10), weighter_state(first))


def test_counts_of_all_ranks_survive_a_checkpoint(monkeypatch):
    """Two ranks halfway through an epoch, saved, resumed on two ranks; `test_weighters` has real processes."""
    batches, model = list(loader()), Model()
    ranks, resumed = [CLAM(10), CLAM(10)], [CLAM(10), CLAM(10)]

    def play(rank, group):
        """`all_reduce` adds what the other rank has."""
        other = group[1 - rank]
        counts = {torch.int64: torch.stack([other.correct, other.seen]), torch.float32: other.loss_sum}
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.add_(counts[tensor.dtype]))

    for i, (x, y) in enumerate(batches[:5]):
        ranks[i % 2](model(x), y)
    play(0, ranks)
    saved = weighter_state(ranks[0])
    assert sum(saved["seen"]) == 5 * BATCH
    for rank in (0, 1):
        play(rank, resumed)
        load_weighter_state(resumed[rank], saved)
    for i, (x, y) in enumerate(batches[5:]):
        resumed[i % 2](model(x), y)
    play(0, resumed)
    assert resumed[0].totals()[1].sum() == IMAGES
    resumed[0].step()
    monkeypatch.undo()
    alone = CLAM(10)
    for x, y in batches:
        alone(model(x), y)
    alone.step()
    assert torch.equal(resumed[0].weights, alone.weights)


@pytest.mark.parametrize(("module", "library"), [("huggingface", "transformers"), ("lightning", "lightning")])
def test_a_missing_library_names_the_extra(monkeypatch, module, library):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"clamkit.integrations.{module}", raising=False)
    with pytest.raises(ClamkitError, match=rf"{library} is not installed.*clamkit\[integrations\]"):
        importlib.import_module(f"clamkit.integrations.{module}")
