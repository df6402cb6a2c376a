"""The engine: the same bits after any interruption, and nothing lost when something goes wrong."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock
from scipy.optimize import brentq

from clamkit._vision import torchvision
from clamkit.augment import crop_boxes
from clamkit.batches import Batches
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.metrics import class_accuracy, fairness
from clamkit.models import build_model
from clamkit.runs import COLUMNS, Run, RunStore
from clamkit.train import find_device, learning_rate, mixed_precision, train


@pytest.fixture
def config(small_npz):
    return RunConfig(dataset=str(small_npz), epochs=4, batch_size=16, seed=3, method="clam_kl")


def same_bits(one: Run, other: Run) -> None:
    pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
    pd.testing.assert_frame_equal(one.predictions, other.predictions)
    first, second = (run.load_checkpoint() for run in (one, other))
    for part in ("model", "weighter"):
        for key, value in first[part].items():
            assert torch.equal(value, second[part][key]), key


def test_run_folder_and_its_content(config, tmp_path):
    run = train(config)
    assert run.done
    assert run.folder == tmp_path / "runs" / config.folder()
    names = {file.name for file in run.folder.iterdir() if not file.name.startswith(".")}
    expected = {"config.json", "history.parquet", "predictions.parquet", "summary.json", "checkpoint.pt", "DONE"}
    assert names == expected
    columns = ["epoch", "class", "weight", "train_accuracy", "train_loss", "test_accuracy"]
    assert list(run.history.columns) == columns
    assert len(run.history) == 4 * 3
    assert (run.wide("weight").iloc[0] == 1).all(), "the first epoch is played with equal weights"
    assert run.wide("weight").sum(axis=1).to_numpy() == pytest.approx(3)
    again = class_accuracy(run.predictions["label"], run.predictions["prediction"], 3)
    assert run.test_accuracy.to_numpy() == pytest.approx(again)
    assert run.summary["std"] == pytest.approx(fairness(again)["std"])
    frame = RunStore().frame()
    assert len(frame) == 1
    assert frame.loc[0, "method"] == "clam_kl"
    assert frame.loc[0, "average"] == pytest.approx(again.mean())


def test_weights_follow_the_recorded_accuracies(config):
    """The recorded weights are the paper's update applied to the recorded accuracies."""
    run = train(config)
    w = np.full(3, 1 / 3)
    for epoch in range(1, 4):
        assert run.wide("weight").loc[epoch].to_numpy() / 3 == pytest.approx(w, abs=1e-12)
        x = w * np.exp(-run.wide("train_accuracy").loc[epoch].to_numpy())
        x /= x.sum()
        while (x < 1 / 6 - 1e-15).any():  # KL: the floor for the small ones, the rest scaled, until none is below
            low = x <= 1 / 6
            x = np.where(low, 1 / 6, x * (1 - low.sum() / 6) / x[~low].sum())
        w = x


def test_seeds_fix_everything(config, tmp_path):
    first, second = train(config, runs=tmp_path / "a"), train(config, runs=tmp_path / "b")
    same_bits(first, second)
    other = train(config.model_copy(update={"seed": 4}), runs=tmp_path / "a")
    assert not other.history.equals(first.history)
    state = torch.random.get_rng_state()
    train(config.model_copy(update={"seed": 5}), runs=tmp_path / "a")
    assert torch.equal(state, torch.random.get_rng_state()), "the caller's random state is left alone"


def test_a_killed_run_goes_on_with_the_same_bits(config, tmp_path):
    """SIGKILL in mid-training, in a process of its own, then resume: equal to an unbroken run bit for bit."""
    longer = config.model_copy(update={"epochs": 60})
    killed = RunStore(tmp_path / "killed").run(longer)
    code = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from clamkit.config import RunConfig; from clamkit.train import train\n"
        "train(RunConfig(**json.loads(sys.argv[1])), runs=sys.argv[2])"
    )
    command = [sys.executable, "-c", code, json.dumps(longer.model_dump()), str(tmp_path / "killed")]
    process = subprocess.Popen(command)
    while not (killed.folder / "checkpoint.previous.pt").is_file():  # at least two epochs are on disk
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not killed.done
    assert killed.state == "stopped"
    begun = len(killed.load_checkpoint()["history"])
    assert 1 <= begun < 60
    subprocess.run(command, check=True)
    unbroken = subprocess.run([*command[:-1], str(tmp_path / "whole")], check=True)
    assert unbroken.returncode == 0
    same_bits(killed, RunStore(tmp_path / "whole").run(longer))


def interrupted(config, monkeypatch, after: int) -> Run:
    """The state on disk after `after` epochs of a run that then lost its process."""
    original = Run.save_history

    def stop(self, columns):
        original(self, columns)
        if len(columns["weight"]) == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_history", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    return RunStore().run(config)


@pytest.mark.parametrize("name", ["checkpoint.pt", "history.parquet", "config.json"])
def test_truncated_files_are_set_aside_and_the_run_goes_on(config, monkeypatch, tmp_path, caplog, name):
    run = interrupted(config, monkeypatch, after=2)
    path = run.folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = train(config)
    assert "set aside" in caplog.text
    assert (run.folder / f"{name}.damaged-1").is_file()
    same_bits(done, train(config, runs=tmp_path / "whole"))


def test_flipped_byte_in_a_checkpoint_is_seen(config, monkeypatch, tmp_path, caplog):
    run = interrupted(config, monkeypatch, after=3)
    path = run.folder / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = train(config)
    assert "checkpoint.pt is damaged" in caplog.text
    same_bits(done, train(config, runs=tmp_path / "whole"))


@pytest.mark.parametrize("name", ["history.parquet", "summary.json", "predictions.parquet", "checkpoint.pt", "DONE"])
def test_damage_to_a_finished_run_is_repaired(config, tmp_path, name):
    run = train(config)
    content = bytearray((run.folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (run.folder / name).write_bytes(content)
    again = train(config)
    assert again.damaged() == []
    same_bits(again, train(config, runs=tmp_path / "whole"))


def test_a_finished_run_is_only_read(config):
    run = train(config)
    before = (run.folder / "checkpoint.pt").stat().st_mtime_ns
    train(config)
    assert (run.folder / "checkpoint.pt").stat().st_mtime_ns == before


def test_folder_of_another_config_is_refused(config):
    run = RunStore().run(config)
    run.folder.mkdir(parents=True)
    other = config.model_copy(update={"lr": 0.5})
    (run.folder / "config.json").write_text(json.dumps(other.model_dump()))
    with pytest.raises(ClamkitError, match=r"another config \(different: lr\)"):
        train(config)
    assert json.loads((run.folder / "config.json").read_text())["lr"] == 0.5, "nothing was overwritten"


def test_changed_data_is_refused(config, monkeypatch, small_npz):
    interrupted(config, monkeypatch, after=2)
    with np.load(small_npz) as archive:
        arrays = dict(archive)
    arrays["x_train"][0] = 0
    np.savez(small_npz, **arrays)
    with pytest.raises(ClamkitError, match="other content"):
        train(config)


def test_two_processes_never_train_the_same_run(config):
    run = RunStore().run(config)
    run.folder.mkdir(parents=True)
    with FileLock(run.folder / ".lock"):
        assert run.state == "running"
        with pytest.raises(ClamkitError, match="another process is training"):
            train(config)
    assert train(config).state == "done"


def test_nan_loss_stops_and_keeps_the_last_good_checkpoint(config, monkeypatch):
    interrupted(config, monkeypatch, after=2)

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


def test_impossible_floor_leaves_no_folder(config):
    bad = config.model_copy(update={"u_min": 0.4})
    with pytest.raises(ClamkitError, match="leaves no room for 3 classes"):
        train(bad)
    assert not RunStore().run(bad).folder.exists()


def test_read_only_runs_folder(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClamkitError, match="cannot write to"):
        train(config, runs=tmp_path / "file" / "runs")


def test_damaged_or_missing_results_read_as_a_sentence(config, monkeypatch):
    run = interrupted(config, monkeypatch, after=1)
    with pytest.raises(ClamkitError, match="not finished"):
        _ = run.summary
    (run.folder / "history.parquet").write_bytes(b"PAR1")
    with pytest.raises(ClamkitError, match="damaged"):
        _ = Run(run.folder).history


def test_learning_rate_is_torchs_one_cycle():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, total_steps=50, cycle_momentum=False, final_div_factor=1e5
    )
    for step in range(50):
        assert learning_rate("onecycle", step, 50) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        schedule.step() if step < 49 else None
    assert learning_rate("constant", 35, 50) == 1.0


def test_very_short_trainings_have_a_rate(config):
    assert train(config.model_copy(update={"epochs": 1, "batch_size": 60})).done


def test_devices():
    assert find_device("cpu").type == "cpu"
    with pytest.raises(ClamkitError, match="unknown device 'gpu'"):
        find_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ClamkitError, match="'cuda' is not available"):
            find_device("cuda")


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


def test_float16_scales_the_loss_and_resumes_with_the_same_bits(config, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
        assert mixed_precision(torch.device("cuda")) == torch.float16
    assert mixed_precision(torch.device("cpu")) == torch.bfloat16
    monkeypatch.setattr("clamkit.train.mixed_precision", lambda device: torch.float16)
    half = config.model_copy(update={"amp": True})
    interrupted(half, monkeypatch, after=2)
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
