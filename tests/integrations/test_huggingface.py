"""CLAM in the Hugging Face Trainer ends with the weights of the plain loop."""

import json
from types import SimpleNamespace

import pytest
import torch

from clamkit import CLAM, ClamkitError

from .training import BATCH, EPOCHS, IMAGES, Images, Model, assert_same, plain, sgd, skip_without_bf16

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'clamkit[integrations]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'clamkit[integrations]'")

from transformers import Trainer, TrainerCallback, TrainingArguments

from clamkit.integrations.huggingface import ClamCallback


class Named(Model):
    """A model as the Trainer wants it: named inputs, a dict of outputs."""

    def forward(self, x):
        return {"logits": super().forward(x)}


def hugging_face(folder, weighter, *, labels=None, train_data=None, log_dir=None, class_names=None, **settings):
    clam, model = ClamCallback(weighter, log_dir, class_names), Named()
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


@pytest.mark.parametrize(
    ("accumulate", "bf16"), [(1, False), (2, False), pytest.param(1, True, marks=pytest.mark.slow)]
)
def test_hugging_face_with_evaluation(tmp_path, accumulate, bf16):
    if bf16:
        skip_without_bf16()
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


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 10, 14])  # in an epoch, at the end of one, in the last one
def test_hugging_face_resume_keeps_the_weights(tmp_path, step):
    reference = plain()
    first = hugging_face(tmp_path / "first", CLAM(10), save_strategy="steps", save_steps=step, max_steps=step)
    first.train()
    weighter = CLAM(10)
    again = hugging_face(tmp_path / "elsewhere", weighter, save_strategy="steps", save_steps=step)
    again.train(resume_from_checkpoint=str(tmp_path / "first" / f"checkpoint-{step}"))
    assert_same(weighter, reference)


@pytest.mark.slow
def test_hugging_face_streams_of_unknown_length(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            images = Images(named=True)
            return (images[i] for i in range(IMAGES))

    weighter = CLAM(10)
    hugging_face(tmp_path, weighter, train_data=Stream(), max_steps=2 * IMAGES // BATCH + 1).train()
    assert_same(weighter, plain())  # two passes, and a batch of a third


@pytest.mark.slow
def test_a_second_training_and_a_search_begin_anew(tmp_path):
    """Else a trial would begin with the class weights that the one before it ended with."""
    weighter = CLAM(10)
    trainer = hugging_face(tmp_path, weighter)
    trainer.train()
    assert_same(weighter, plain())
    trainer.model_init = lambda trial=None: Named()
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, {"lr": 0.1})
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.args.lr_scheduler_type = "constant"
    trainer.train()
    assert_same(weighter, plain())


@pytest.mark.slow
def test_each_trial_of_a_search_begins_anew(tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install optuna")
    weighter, begun, ended = CLAM(10), [], []

    class Look(TrainerCallback):
        """After the weighter's own callback: the weights that a trial begins and ends with."""

        def on_train_begin(self, *args, **kwargs):
            begun.append((int(weighter.epoch), weighter.weights.tolist()))

        def on_train_end(self, *args, **kwargs):
            ended.append(weighter.weights.clone())

    trainer = hugging_face(tmp_path, weighter)
    trainer.add_callback(Look())
    trainer.model_init = lambda trial=None: Named()
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, {"lr": 0.1})
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.args.lr_scheduler_type = "constant"
    trainer.hyperparameter_search(lambda trial: {"seed": trial.suggest_int("seed", 0, 9)}, n_trials=3)
    assert begun == [(0, [1.0] * 10)] * 3
    assert all(torch.allclose(weights, plain().weights, rtol=0, atol=1e-12) for weights in ended)


def two_heads(folder, names, **settings):
    """Two weighters in one Trainer, which see other labels: the class weights that each ends with."""
    first, second = (ClamCallback(CLAM(10), name=name) for name in names)
    trainer = hugging_face(folder, first.weighter, **settings)
    trainer.callback_handler.pop_callback(ClamCallback)
    for callback in (first, second):
        trainer.add_callback(callback)
    trainer.compute_loss_func = lambda outputs, y, **given: (
        first.loss(outputs, y, **given) + second.loss(outputs, (y + 3) % 10, **given)
    )
    trainer.train(resume_from_checkpoint=settings.get("save_strategy") == "no" or None)
    return first.weighter.weights, second.weighter.weights


def test_two_weighters_in_one_trainer_resume_each_with_its_own_weights(tmp_path):
    keep = {"save_strategy": "steps", "save_steps": 10}
    with pytest.raises(ClamkitError, match="give each a name="):  # else the second would overwrite the first
        two_heads(tmp_path, ["", ""], **keep)
    whole = two_heads(tmp_path / "whole", ["", "other"], **keep)
    assert not torch.allclose(*whole)
    two_heads(tmp_path / "half", ["", "other"], max_steps=10, **keep)
    resumed = two_heads(tmp_path / "half", ["", "other"], save_strategy="no")
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(resumed, whole, strict=True))


def test_evaluation_loss_is_unweighted(tmp_path):
    trainer = hugging_face(tmp_path, CLAM(10))
    trainer.train()
    images = Images()
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(trainer.model(images.x)["logits"], images.y).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_label_smoothing_is_honoured_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Named, "config", SimpleNamespace(), raising=False)  # with smoothing the Trainer looks at it
    with pytest.raises(ClamkitError, match="build the weighter with label_smoothing=0.1"):
        hugging_face(tmp_path, CLAM(10), label_smoothing_factor=0.1).train()
    trainer = hugging_face(tmp_path, CLAM(10, label_smoothing=0.1), label_smoothing_factor=0.1)
    trainer.train()
    images = Images()
    with torch.no_grad():
        logits = trainer.model(images.x)["logits"]
    wanted = torch.nn.functional.cross_entropy(logits, images.y, label_smoothing=0.1).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(wanted, rel=1e-4)


def test_what_the_trainer_cannot_average_is_refused():
    with pytest.raises(ClamkitError, match="needs a mean"):
        ClamCallback(CLAM(10, reduction="none"))
    with pytest.raises(ClamkitError, match="labels that are not -100"):  # it counts the others itself
        ClamCallback(CLAM(10, ignore_index=255))


def test_parts_of_an_accumulated_batch_count_by_their_labels():
    """As the Trainer calls it: num_items_in_batch are the labels of all parts that are not ignored."""
    generator = torch.Generator().manual_seed(0)
    logits, y = torch.randn(6, 10, 3, generator=generator), torch.randint(0, 10, (6, 3), generator=generator)
    y[0] = y[4, 1] = -100
    clam = ClamCallback(CLAM(10))
    parts = [clam.loss({"logits": logits[i : i + 2]}, y[i : i + 2], (y != -100).sum()) for i in (0, 2, 4)]
    assert sum(parts).item() == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-6)


@pytest.mark.slow
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
