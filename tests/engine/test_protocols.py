"""What the min player looks at, and what the protocols `paper` and `released` change in a training."""

import dataclasses

import numpy as np
import pytest
import torch

from clamkit import RunConfig, RunStore, load_data, train
from clamkit.engine.device import bfloat16_speed
from clamkit.engine.loop import predict, set_up
from clamkit.metrics import class_accuracy
from tests.theory import references


@pytest.mark.parametrize(
    "accuracy_from", ["epoch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pass", "clean", "holdout"))]
)
def test_what_the_min_player_looks_at(accuracy_from, small_npz):
    holdout = 5 if accuracy_from == "holdout" else 0
    config = RunConfig(dataset=str(small_npz), epochs=8, batch_size=20, accuracy_from=accuracy_from, holdout=holdout)
    run = train(config)
    seen = run.wide("train_accuracy")
    assert seen.notna().all().all()
    w = np.full(3, 1 / 3)
    for epoch in range(1, 8):
        assert run.wide("weight").loc[epoch].to_numpy() / 3 == pytest.approx(w, abs=1e-9)
        w = np.array(references.clam(w, seen.loc[epoch], 1 / 6))


def test_clean_accuracy_is_that_of_the_network_on_the_training_images(small_npz):
    config = RunConfig(dataset=str(small_npz), epochs=2, batch_size=20, accuracy_from="clean")
    run = train(config)
    dataset = load_data(small_npz)
    swapped = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    state = set_up(config, swapped, torch.device("cpu"))
    state.model.load_state_dict(run.load_checkpoint()["model"])
    expected = class_accuracy(*predict(state), 3)
    assert run.wide("train_accuracy").iloc[-1].to_numpy() == pytest.approx(expected)


def test_held_out_accuracy_is_that_of_the_network_on_the_held_out_images(small_npz):
    config = RunConfig(
        dataset=str(small_npz), epochs=2, batch_size=20, lr=0.01, accuracy_from="holdout", holdout=6, per_class=9
    )
    run = train(config)
    dataset = load_data(small_npz, holdout=6, per_class=9)
    swapped = dataclasses.replace(dataset, x_test=dataset.x_holdout, y_test=dataset.y_holdout)
    state = set_up(config, swapped, torch.device("cpu"))
    state.model.load_state_dict(run.load_checkpoint()["model"])
    labels, predicted = predict(state)
    assert len(labels) == 18
    assert run.wide("train_accuracy").iloc[-1].to_numpy() == pytest.approx(class_accuracy(labels, predicted, 3))
    with torch.no_grad():
        ((images, y),) = state.batches.plain(dataset.x_holdout, dataset.y_holdout)
        losses = torch.nn.functional.cross_entropy(state.model.eval()(images), y, reduction="none")
    expected = [losses[y == label].mean().item() for label in range(3)]
    assert run.wide("train_loss").iloc[-1].to_numpy() == pytest.approx(expected, rel=1e-5)


def test_held_out_images_are_not_trained_on(small_npz, tmp_path, same_bits):
    """Held-out images may change as they like: with the accuracies counted while training, nothing else does."""
    fields = {"dataset": str(small_npz), "epochs": 2, "batch_size": 16, "holdout": 6}
    before = train(RunConfig(**fields), runs=tmp_path / "before")
    dataset = load_data(small_npz, holdout=6)
    held = {image.numpy().tobytes() for image in dataset.x_holdout}
    x = dict(np.load(small_npz))
    rows = [i for i, image in enumerate(x["x_train"]) if image.transpose(2, 0, 1).tobytes() in held]
    assert len(rows) == 18
    x["x_train"][rows] = x["x_train"][rows, ::-1]  # as many dark and bright pixels as before: the same mean and std
    np.savez(small_npz, **x)
    same_bits(before, train(RunConfig(**fields), runs=tmp_path / "after"))


def test_a_run_that_looks_at_held_out_images_goes_on_with_the_same_bits(config, interrupted, same_bits, whole):
    config = config.model_copy(update={"accuracy_from": "holdout", "holdout": 5})
    interrupted(config, 2)
    same_bits(train(config), whole(config))


def test_released_protocol(small_npz):
    config = RunConfig(dataset=str(small_npz), protocol="released", epochs=2, batch_size=20)
    assert config.chosen("accuracy_from") == "pass"
    assert config.chosen("schedule") == "constant"
    assert RunConfig(protocol="released", accuracy_from="clean").chosen("accuracy_from") == "clean"
    run = train(config)
    first = run.wide("train_accuracy").iloc[0].to_numpy()
    expected = references.clam([1 / 3] * 3, first, None, projection="released")
    assert run.wide("weight").iloc[1].to_numpy() / 3 == pytest.approx(expected)
    assert run.folder != RunStore().run(config.model_copy(update={"protocol": "paper"})).folder


@pytest.mark.slow
def test_released_protocol_repeats_grey_images_to_three_channels():
    config = RunConfig(protocol="released", epochs=1, batch_size=600)
    run = train(config)
    assert run.load_checkpoint()["model"]["0.weight"].shape[1] == 3


def test_jitter_and_vit_train(small_npz):
    run = train(
        RunConfig(dataset=str(small_npz), augmentation="jitter", jitter_strength=0.4, epochs=1, model="tiny_vit")
    )
    assert run.done
    assert run.folder.parent.name == "jitter-0.4"


@pytest.mark.slow
def test_mixed_precision_trains_close_to_single(small_npz):
    if not bfloat16_speed():
        pytest.skip("bfloat16 does not work on this processor")
    fields = {"dataset": str(small_npz), "epochs": 3, "batch_size": 20, "method": "clam_kl"}
    single, mixed = train(RunConfig(**fields)), train(RunConfig(**fields, amp=True))
    assert mixed.folder != single.folder
    assert mixed.load_checkpoint()["model"]["0.weight"].dtype == torch.float32
    gap = mixed.wide("train_loss").iloc[0] - single.wide("train_loss").iloc[0]
    assert 0 < gap.abs().max() < 0.05, "bfloat16 was used, and changes little in the first epoch"
