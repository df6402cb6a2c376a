"""One training on several processes started by torchrun, against the same training on one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessRaisedException

from clamkit.data.augment import RandomResizedCrop
from clamkit.data.batches import Batches
from clamkit.engine import distributed
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import COLUMNS, RunFolder, RunStore
from clamkit.errors import ClamkitError
from tests.ranks import training_rank

LOST = ("The same command resumes", "lost another one and stops")


@pytest.fixture
def config(small_npz):
    """57 images and 3 held out, batches of 19 (odd), a network without batch statistics: exactly comparable."""
    return RunConfig(dataset=str(small_npz), model="tiny_vit", epochs=3, batch_size=20, lr=0.05, tau=4.0, holdout=1)


def torchrun(config: RunConfig, processes: int, runs: Path) -> subprocess.Popen:
    words = [f"--{k.replace('_', '-')}={v}" for k, v in config.identity().items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "clamkit", "train", *words, f"--runs={runs}", "--device=cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def agree(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one[["epoch", "class"]], other[["epoch", "class"]])
    np.testing.assert_allclose(one[list(COLUMNS)], other[list(COLUMNS)], atol=1e-5)


def together_as_alone(alone: RunFolder, together: RunFolder) -> None:
    assert alone.history["weight"].std() > 0.01
    agree(alone.history, together.history)
    pd.testing.assert_frame_equal(alone.predictions, together.predictions)
    for one, other in zip(alone.logits, together.logits, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(config, tmp_path):
    process = torchrun(config, 2, tmp_path / "two")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said.count("clam on") == 1, "the first process speaks for all"
    together_as_alone(train(config, runs=tmp_path / "alone"), RunStore(tmp_path / "two").run(config))


@pytest.mark.slow
def test_two_processes_also_draw_and_hold_out_as_one(config, tmp_path, two_ranks):
    config = config.model_copy(update={"acts_on": "sampling", "accuracy_from": "holdout"})
    two_ranks(training_rank, config, tmp_path / "two")
    together_as_alone(train(config, runs=tmp_path / "alone"), RunStore(tmp_path / "two").run(config))


@pytest.mark.slow
def test_a_killed_process_stops_all_and_the_run_goes_on_with_another_number(config, tmp_path):
    config = config.model_copy(update={"epochs": 30, "lr": 0.003})
    run = RunStore(tmp_path / "two").run(config)
    process = torchrun(config, 2, tmp_path / "two")
    while not (run.folder / "checkpoint.previous.pt").is_file():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    victims = [p for p in psutil.Process(process.pid).children() if p.environ().get("RANK") == "1"]
    victims[0].send_signal(signal.SIGKILL)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert any(words in said for words in LOST), said
    assert not run.done
    resumed = train(config, runs=tmp_path / "two")
    agree(train(config, runs=tmp_path / "alone").history, resumed.history)


@pytest.mark.slow
def test_more_processes_than_images_in_a_batch(config, tmp_path, two_ranks):
    with pytest.raises(ProcessRaisedException, match="cannot be shared by 2 processes"):
        two_ranks(training_rank, config.model_copy(update={"batch_size": 1}), tmp_path)


def poisoned_rank(rank, port, config, runs, results):
    """The second process alone has nan, in the last step of the second epoch, after which nothing is averaged."""
    original, epochs = Batches.training, []

    def poisoned(self, *args):
        epochs.append(args)
        for step, (images, y) in enumerate(original(self, *args)):
            yield images * float("nan") if (rank, len(epochs), step) == (1, 2, 2) else images, y

    Batches.training = poisoned
    try:
        training_rank(rank, port, config, runs, results)
    except ClamkitError as error:
        results[rank] = str(error)


@pytest.mark.slow
def test_a_loss_that_is_not_finite_in_one_process_stops_all_with_one_message(config, tmp_path, two_ranks):
    said = two_ranks(poisoned_rank, config, tmp_path)
    assert said[0] == said[1]
    assert said[0].startswith("the loss is not finite at epoch 2, step 3 of 3")
    run = RunStore(tmp_path).run(config)
    assert not run.done
    assert len(run.load_checkpoint()["history"]) == 1


def _rank(rank, port, path, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    assert (distributed.world_size(), distributed.rank()) == (2, rank)
    samples = torch.arange(11)
    mine = Batches(RandomResizedCrop(1.0), (0.0,), (1.0,), "cpu", rank=rank, world=2).share(samples)
    assert mine.tolist() == list(range(rank, 11, 2))
    assert distributed.gather(mine).tolist() == samples.tolist()
    wide = torch.arange(22.0).view(11, 2).half()
    assert torch.equal(distributed.gather(wide[rank::2]), wide)
    values = torch.arange(11.0) ** 2
    mean = values[rank::2].mean() * distributed.loss_scale(len(mine), samples.device)
    dist.all_reduce(mean)
    assert torch.allclose(mean / 2, values.mean()), "6 and 5 samples: the mean of the means, scaled, is the mean"
    buffers = [torch.full((2,), float(rank)), torch.tensor(10 + rank)]
    distributed.broadcast(buffers)
    assert [b.tolist() for b in buffers] == [[0.0, 0.0], 10]

    def make():
        try:
            path.open("x").close()
            return "made"
        except FileExistsError:
            return "found"

    results[rank] = distributed.main_process_first(make)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_share_gather_and_agree(tmp_path, two_ranks):
    assert two_ranks(_rank, tmp_path / "made") == {0: "made", 1: "found"}


def test_alone_nothing_is_waited_for(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert (distributed.world_size(), distributed.rank()) == (1, 0)
    part = torch.arange(5)
    assert distributed.gather(part) is part
    assert distributed.loss_scale(7, part.device) == 1.0
    assert distributed.main_process_first(lambda: "made") == "made"
    distributed.broadcast([part])
    assert part.tolist() == [0, 1, 2, 3, 4]
    with distributed.group(torch.device("cpu")) as device:
        assert device == torch.device("cpu")
        assert not torch.distributed.is_initialized()


def test_shares_are_disjoint_and_whole_together():
    samples, world = torch.arange(11), 3
    parts = [
        Batches(RandomResizedCrop(1.0), (0.0,), (1.0,), "cpu", rank=rank, world=world).share(samples)
        for rank in range(world)
    ]
    assert sorted(torch.cat(parts).tolist()) == samples.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
