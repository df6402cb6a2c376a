"""The engine: what it trains, and that a stopped run goes on with the same bits."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from clamkit.data.augment import crop_boxes
from clamkit.data.batches import Batches
from clamkit.data.vision import torchvision
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import (
    TrainingState,
    count,
    load_config_data,
    predict,
    set_up,
    train,
    train_epoch,
)
from clamkit.engine.models import build_model
from clamkit.engine.store import COLUMNS, RunStore
from clamkit.errors import ClamkitError
from clamkit.methods.specs import METHODS, Method
from clamkit.methods.weighters import Uniform
from clamkit.metrics import class_accuracy, fairness

CPU = torch.device("cpu")


def test_run_folder_and_its_content(config, tmp_path):
    run = train(config)
    assert run.done
    assert run.folder == tmp_path / "runs" / config.folder()
    names = {file.name for file in run.folder.iterdir() if not file.name.startswith(".")}
    expected = {"config.json", "history.parquet", "predictions.parquet", "summary.json", "checkpoint.pt", "DONE"}
    assert names == expected | {"logits.npz"}
    columns = ["epoch", "class", "weight", "train_accuracy", "train_loss", "test_accuracy"]
    assert list(run.history.columns) == columns
    assert len(run.history) == 4 * 3
    assert (run.wide("weight").iloc[0] == 1).all(), "the first epoch is played with equal weights"
    assert run.wide("weight").sum(axis=1).to_numpy() == pytest.approx(3)
    again = class_accuracy(run.predictions["label"], run.predictions["prediction"], 3)
    assert run.test_accuracy.to_numpy() == pytest.approx(again)
    assert run.summary["std"] == pytest.approx(fairness(again)["std"])
    assert run.name == config.folder().as_posix()
    frame = RunStore().frame()
    assert len(frame) == 1
    assert frame.loc[0, "method"] == "clam_kl"
    assert frame.loc[0, "average"] == pytest.approx(again.mean())


def test_a_finished_run_is_returned_before_any_data_is_read(config, small_npz):
    first = train(config)
    small_npz.unlink()
    assert train(config).test_accuracy.equals(first.test_accuracy)


def test_weights_follow_the_recorded_accuracies(config, whole):
    """The recorded weights are the paper's update applied to the recorded accuracies."""
    run = whole(config)
    w = np.full(3, 1 / 3)
    for epoch in range(1, 4):
        assert run.wide("weight").loc[epoch].to_numpy() / 3 == pytest.approx(w, abs=1e-12)
        x = w * np.exp(-run.wide("train_accuracy").loc[epoch].to_numpy())
        x /= x.sum()
        while (x < 1 / 6 - 1e-15).any():  # KL: the floor for the small ones, the rest scaled, until none is below
            low = x <= 1 / 6
            x = np.where(low, 1 / 6, x * (1 - low.sum() / 6) / x[~low].sum())
        w = x


def test_seeds_fix_everything(config, tmp_path, same_bits, whole):
    first = train(config, runs=tmp_path / "a")
    same_bits(first, whole(config))
    other = train(config.model_copy(update={"seed": 4}), runs=tmp_path / "a")
    assert not other.history.equals(first.history)
    state = torch.random.get_rng_state()
    train(config.model_copy(update={"seed": 5}), runs=tmp_path / "a")
    assert torch.equal(state, torch.random.get_rng_state()), "the caller's random state is left alone"


def test_someone_who_watches_sees_every_epoch_and_changes_nothing(config, tmp_path, same_bits, whole):
    seen = []

    def watch(history, class_names):
        torch.rand(3)  # draws of the watcher's own
        seen.append((len(history), class_names, history[-1]["weight"].clone()))

    run = train(config, runs=tmp_path / "watched", watch=watch)
    assert [(epochs, names) for epochs, names, _ in seen] == [(i, ("top", "middle", "bottom")) for i in (1, 2, 3, 4)]
    assert np.array_equal(torch.stack([weights for *_, weights in seen]), run.wide("weight"))
    same_bits(run, whole(config))


# ---------------------------------------------------------------------------------------------- stopped and resumed


def test_a_stopped_run_goes_on_with_the_same_bits(config, interrupted, same_bits, whole):
    run = interrupted(config, 2)
    assert run.state == "stopped"
    assert len(run.load_checkpoint()["history"]) == 2
    assert len(run.history) == 2 * 3, "what is there can be read"
    same_bits(train(config), whole(config))


def blacken_the_first_image(file):
    with np.load(file) as archive:
        arrays = dict(archive)
    arrays["x_train"][0] = 0
    np.savez(file, **arrays)


def test_changed_data_is_refused(config, interrupted, small_npz):
    interrupted(config, 2)
    blacken_the_first_image(small_npz)
    with pytest.raises(ClamkitError, match="other content"):
        train(config)


def test_a_finished_run_on_other_data_is_not_handed_back(config, small_npz):
    run = train(config)
    assert train(config).folder == run.folder
    blacken_the_first_image(small_npz)
    with pytest.raises(ClamkitError, match="was trained on other content"):
        train(config)


def test_nan_loss_stops_and_keeps_the_last_good_checkpoint(config, interrupted, monkeypatch):
    interrupted(config, 2)
    original = Batches.training

    def poisoned(self, *args):
        for step, (images, y) in enumerate(original(self, *args)):
            yield images * float("nan") if step == 1 else images, y

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "training", poisoned)
        with pytest.raises(ClamkitError, match="not finite at epoch 3, step 2 of 4"):
            train(config)
    run = RunStore().run(config)
    assert len(run.load_checkpoint()["history"]) == 2
    assert not run.done
    assert train(config).done


def test_a_network_that_its_last_step_broke_is_not_kept(config):
    """The loss of that step was finite: nobody has seen one of what it left."""
    broken = config.model_copy(update={"epochs": 1, "batch_size": 60, "lr": 1e300})
    with pytest.raises(ClamkitError, match=r"not finite at epoch 1, in what the last step left \(lr=1e\+300\)"):
        train(broken)
    assert not RunStore().run(broken).done
    assert RunStore().run(broken).load_checkpoint() is None


def test_impossible_floor_leaves_no_folder(config):
    bad = config.model_copy(update={"u_min": 0.4})
    with pytest.raises(ClamkitError, match="leaves no room for 3 classes"):
        train(bad)
    assert not RunStore().run(bad).folder.exists()


def test_very_short_trainings_have_a_rate(config):
    assert train(config.model_copy(update={"epochs": 1, "batch_size": 60})).done


# ------------------------------------------------------------------------------------------------- the parts of it


def a_state(config) -> TrainingState:
    torch.manual_seed(0)
    return set_up(config, load_config_data(config), CPU)


def test_counting_looks_at_every_image_and_learns_nothing(config):
    state = a_state(config)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    x, y = state.dataset.x_train, state.dataset.y_train
    count(state, state.batches.plain(x, y))
    count(state, state.batches.plain(x, y))
    assert state.weighter.seen.tolist() == [20, 20, 20], "a second count starts anew"
    state.model.eval()
    with torch.no_grad():
        logits = torch.cat([state.model(images) for images, _ in state.batches.plain(x, y)])
    right = [int((logits[y == label].argmax(1) == label).sum()) for label in range(3)]
    assert state.weighter.correct.tolist() == right
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_predictions_are_those_of_the_test_images_in_their_order(config):
    state = a_state(config)
    labels, predicted = predict(state)
    assert labels.tolist() == state.dataset.y_test.tolist()
    state.model.eval()
    with torch.no_grad():
        one_by_one = [
            int(state.model(images[i : i + 1]).argmax())
            for images, _ in state.batches.plain(state.dataset.x_test, state.dataset.y_test)
            for i in range(len(images))
        ]
    assert predicted.tolist() == one_by_one


def test_an_epoch_takes_the_rates_it_is_given(config):
    state = a_state(config)
    x, y = state.dataset.x_train, state.dataset.y_train
    batches = list(state.batches.training(x, y, 16, torch.Generator().manual_seed(0)))
    before = [p.clone() for p in state.model.parameters()]
    losses = train_epoch(state, batches, [0.0] * len(batches))
    assert losses.shape == (4,)
    assert all(torch.equal(p, q) for p, q in zip(state.model.parameters(), before, strict=True)), "a rate of 0"
    assert state.weighter.seen.tolist() == [20, 20, 20], "counted on the way"
    train_epoch(state, batches, [0.1] * len(batches))
    assert not any(torch.equal(p, q) for p, q in zip(state.model.parameters(), before, strict=True))


def test_a_state_saved_and_loaded_is_the_same(config):
    state, other = a_state(config), a_state(config)
    x, y = state.dataset.x_train, state.dataset.y_train
    train_epoch(state, state.batches.training(x, y, 16, torch.Generator().manual_seed(0)), [0.1] * 4)
    state.weighter.step()
    row = dict.fromkeys(COLUMNS, torch.ones(3))
    state.history.append(row)
    other.load(state.to_save(seconds=1.0))
    for one, two in ((state.model, other.model), (state.weighter, other.weighter)):
        for key, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[key]), key
    assert other.history == [row]
    momenta = [s.optimizer.state_dict()["state"][0]["momentum_buffer"] for s in (state, other)]
    assert torch.equal(*momenta)


class Keeper(Uniform):
    """Equal weights; the network after the second epoch is the result."""

    @property
    def keeps_network(self) -> bool:
        return int(self.epoch) == 2


@pytest.mark.parametrize("stopped_after", [None, 3])
def test_a_weighter_that_keeps_a_network_gets_it_back(config, interrupted, monkeypatch, stopped_after):
    """Four epochs that return to the second's network predict as two epochs do (the rate is constant)."""
    monkeypatch.setitem(METHODS, "keeper", Method("Keeper", "#000000", "o", "For this test.", weighter=Keeper))
    fields = {"schedule": "constant", "lr": 0.001}
    config = config.model_copy(update=fields | {"method": "keeper"})
    if stopped_after:
        interrupted(config, stopped_after)
    run = train(config)
    short = train(config.model_copy(update={"method": "normal", "epochs": 2}))
    plain = train(config.model_copy(update={"method": "normal"}))
    assert run.predictions.equals(short.predictions)
    assert not run.predictions.equals(plain.predictions), "or there is nothing to see"
    kept, last = (run.load_checkpoint()[part] for part in ("best", "model"))
    for key, value in short.load_checkpoint()["model"].items():
        assert torch.equal(kept[key], value), key
    for key, value in plain.load_checkpoint()["model"].items():
        assert torch.equal(last[key], value), f"{key}: training itself went on"
    assert run.history.equals(plain.history), "the history tells all four epochs"
    assert run.test_accuracy.to_numpy() == pytest.approx(run.wide("test_accuracy").loc[2].to_numpy())
    assert run.summary["average"] == pytest.approx(run.wide("test_accuracy").loc[2].mean())


# ------------------------------------------------------------------------------------ against a loop written plainly


def plain_history(config: RunConfig, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Three epochs as one would write them down first: image by image, no layout, no fused step, counts in Python."""
    functional = torchvision.transforms.v2.functional
    x, y = torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2), arrays["y_train"].tolist()
    x_test = torch.from_numpy(arrays["x_test"]).permute(0, 3, 1, 2)
    mean, std = ([float(f(arrays["x_train"][..., c] / 255)) for c in range(3)] for f in (np.mean, np.std))
    seeds = [int(np.random.SeedSequence([config.seed, e]).generate_state(1, np.uint64)[0] >> 1) for e in range(4)]
    torch.manual_seed(seeds[0])
    model = build_model("tiny_resnet", 3, 3)
    optimizer = torch.optim.SGD(model.parameters(), config.lr, 0.9, weight_decay=5e-4, nesterov=True, foreach=False)
    batches = [15, 15, 15, 15]  # 60 images in batches of at most 16
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.lr, total_steps=3 * len(batches), cycle_momentum=False, final_div_factor=1e5
    )
    w, history = np.full(3, 1 / 3), {name: [] for name in COLUMNS}
    for epoch in (1, 2, 3):
        generator = torch.Generator().manual_seed(seeds[epoch])
        order = torch.randperm(60, generator=generator)
        boxes = crop_boxes(60, 12, 12, config.crop_lower_bound, generator)
        flips = torch.rand(60, generator=generator) < 0.5
        right, seen, lost = np.zeros(3), np.zeros(3), np.zeros(3)
        model.train()
        for rows in torch.arange(60).split(batches):
            images, labels = [], torch.tensor([y[i] for i in order[rows]])
            for row in rows.tolist():
                image = x[order[row]].float() / 255
                image = functional.resized_crop(image, *boxes[row].tolist(), [12, 12], antialias=False)
                image = functional.horizontal_flip(image) if flips[row] else image
                images.append(functional.normalize(image, mean, std))
            logits = model(torch.stack(images))
            losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            optimizer.zero_grad()
            (losses * torch.tensor(3 * w, dtype=torch.float32)[labels]).mean().backward()
            optimizer.step()
            schedule.step() if schedule.last_epoch < 11 else None
            for label, logit, loss in zip(labels.tolist(), logits, losses.tolist(), strict=True):
                right[label] += int(logit.argmax()) == label
                seen[label] += 1
                lost[label] += loss
        model.eval()
        with torch.no_grad():
            predicted = [int(model(functional.normalize(i / 255, mean, std)[None]).argmax()) for i in x_test]
        hits = np.array(predicted) == arrays["y_test"]
        tested = np.array([hits[arrays["y_test"] == label].mean() for label in range(3)])
        for name, row in zip(COLUMNS, (3 * w, right / seen, lost / seen, tested), strict=True):
            history[name].append(row)
        target = w * np.exp(-right / seen)
        target /= target.sum()
        theta = brentq(lambda t, x=target: np.maximum(x - t, 1 / 6).sum() - 1, -1, 1, xtol=1e-15)
        w = np.maximum(target - theta, 1 / 6)
    return {name: np.array(rows) for name, rows in history.items()}


def test_the_engine_plays_as_a_plain_loop_does(small_npz):
    """Same seeds, same history over three epochs, to 1e-6: speed changes no result."""
    config = RunConfig(dataset=str(small_npz), epochs=3, batch_size=16, seed=3, method="clam", lr=0.01)
    run = train(config)
    with np.load(small_npz) as archive:
        expected = plain_history(config, dict(archive))
    assert np.ptp(expected["weight"][-1]) > 0.5, "the weights moved"
    for name in COLUMNS:
        assert run.wide(name).to_numpy() == pytest.approx(expected[name], abs=1e-6, rel=1e-6), name


# -------------------------------------------------------------------------------------------- precision, compilation


@pytest.mark.slow
def test_float16_scales_the_loss_and_resumes_with_the_same_bits(config, interrupted, monkeypatch, tmp_path, same_bits):
    monkeypatch.setattr("clamkit.engine.loop.mixed_precision", lambda device, amp: torch.float16 if amp else None)
    half = config.model_copy(update={"amp": True})
    interrupted(half, 2)
    run = train(half)
    assert run.load_checkpoint()["scaler"]["scale"] > 1
    same_bits(run, train(half, runs=tmp_path / "whole"))
    assert run.wide("train_loss").loc[1].to_numpy() == pytest.approx(train(config).wide("train_loss").loc[1], abs=0.05)


def test_compile_is_asked_for_and_changes_no_other_run(config, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: compiled.append(model))
    assert train(config).done
    assert not compiled
    assert train(config.model_copy(update={"compile": True})).done
    assert len(compiled) == 1
    assert "compile" not in config.identity()


# ------------------------------------------------------------------------------------------------ the fast recipe


def test_two_views_are_averaged(config):
    """What a run says of its test images is the mean over each and its mirror image; by hand from its checkpoint."""
    both = config.model_copy(update={"mirror_test": True})
    run, data = train(both), load_config_data(config)
    state = set_up(config, data, CPU)
    state.load(run.load_checkpoint())
    _, _, one = predict(state, logits=True)
    state.dataset = dataclasses.replace(data, x_test=data.x_test.flip(3))
    _, _, mirrored = predict(state, logits=True)
    expected = (one.astype(np.float32) + mirrored.astype(np.float32)) / 2
    assert run.logits.test.astype(np.float32) == pytest.approx(expected, abs=0.01)
    assert np.abs(one - mirrored).max() > 0.1, "the views differ"


FAST = {"model": "fastnet_small", "lookahead": 0.9, "bias_lr": 8.0, "schedule": "triangle", "image_size": 24}


@pytest.mark.slow
def test_the_fast_recipes_parts_resume_with_the_same_bits(config, interrupted, tmp_path, same_bits):
    fast = config.model_copy(update=FAST)
    interrupted(fast, 2)
    run = train(fast)
    assert run.load_checkpoint()["average"]["done"] > 0
    same_bits(run, train(fast, runs=tmp_path / "whole"))


def test_the_first_layer_is_set_by_the_training_images_and_stays(config):
    run, data = train(config.model_copy(update=FAST | {"lookahead": 0.0})), load_config_data(config)
    state = set_up(config.model_copy(update=FAST), data, CPU)
    fixed = run.load_checkpoint()["model"]["patches.weight"]
    assert torch.equal(fixed, state.model.patches.weight)
    assert fixed.std() > 0
