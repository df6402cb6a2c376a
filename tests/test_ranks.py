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

from clamkit import ranks
from clamkit.config import RunConfig
from clamkit.runs import COLUMNS, RunStore
from clamkit.train import train

LOST = ("stopped; what is saved goes on", "since it lost another one")


@pytest.fixture
def config(small_npz):
    """57 images in batches of 19 (an odd number), and a network without batch statistics: exactly comparable."""
    x = dict(np.load(small_npz))
    np.savez(small_npz, **(x | {"x_train": x["x_train"][:57], "y_train": x["y_train"][:57]}))
    return RunConfig(dataset=str(small_npz), model="tiny_vit", epochs=3, batch_size=20, lr=0.05, tau=4.0)


def torchrun(config: RunConfig, processes: int, runs: Path) -> subprocess.Popen:
    words = [f"--{k.replace('_', '-')}={v}" for k, v in config.identity().items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "clamkit", "train", *words, f"--runs={runs}", "--device=cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def agree(one: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(one[["epoch", "class"]], other[["epoch", "class"]])
    np.testing.assert_allclose(one[list(COLUMNS)], other[list(COLUMNS)], atol=1e-5)


def test_two_processes_give_what_one_gives(config, tmp_path):
    alone = train(config, runs=tmp_path / "alone")
    assert alone.history["weight"].std() > 0.01
    process = torchrun(config, 2, tmp_path / "two")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert said.count("clam on") == 1, "the first process speaks for all"
    together = RunStore(tmp_path / "two").run(config)
    agree(alone.history, together.history)
    pd.testing.assert_frame_equal(alone.predictions, together.predictions)


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


def test_more_processes_than_images_in_a_batch(config, tmp_path):
    process = torchrun(config.model_copy(update={"batch_size": 1}), 2, tmp_path)
    said, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "cannot be shared by 2 processes" in said


def test_shares_are_disjoint_and_whole_together(monkeypatch):
    samples, world = torch.arange(11), 3
    monkeypatch.setattr(ranks, "world", lambda: world)
    parts = []
    for rank in range(world):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        parts.append(ranks.share(samples))
    assert sorted(torch.cat(parts).tolist()) == samples.tolist()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
