"""Sweeps on a real Dask scheduler with real workers, some of which are killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
import psutil
import pytest
import torch

from clamkit.engine.loop import train
from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.lab import cluster
from clamkit.lab.grids import Grid
from clamkit.lab.runner import sweep
from tests.faults import checkout, clusters, quick
from tests.faults.clusters import free_port, process, scheduler, wait_until, worker
from tests.faults.trainings import differ

NEEDED = "pip install 'clamkit[lab,cluster]'"
pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def _has_dask():
    """Looked at when a test runs: importing Dask takes seconds, which collecting the quick tests should not."""
    for package in ("distributed", "papermill"):
        pytest.importorskip(package, reason=f"sweeps on a cluster need Dask and papermill: {NEEDED}")


def epochs_of(run: RunFolder, runs: Path) -> list[int]:
    """Those it has saved, in the order in which it did, whoever trained it."""
    return [epochs for name, _, epochs in clusters.saved(runs) if name == run.folder.name]


@pytest.mark.faults
def test_workers_and_the_scheduler_may_die(tmp_path):
    folder, runs, port = clusters.make(tmp_path / "checkout"), tmp_path / "runs", free_port()
    grid, (first_wait, second_wait) = checkout.grid(folder, 2, clusters.EPOCHS), clusters.held_up(runs)
    words = checkout.command("sweep", grid, "--runs", runs, "--scheduler", f"tcp://127.0.0.1:{port}")
    with ExitStack() as stack:

        def start(command, **options):
            return stack.enter_context(process(command, folder, **options))

        first = start(scheduler(port))
        pair = [start(worker(port)) for _ in range(2)]
        log = stack.enter_context((tmp_path / "log").open("w+"))
        command = start(words, stdout=log, stderr=log)

        found = wait_until(lambda: command.poll() is not None or clusters.trainer_of(pair, runs))
        assert command.poll() is None, (tmp_path / "log").read_text()
        victim, trainer = found
        (name,) = (name for name, pid, _ in clusters.saved(runs) if int(pid) == trainer.pid)
        (run,) = (one for one in RunStore(runs).runs(finished=False) if one.folder.name == name)
        wait_until(lambda: quick.saved_epochs(run) == 1)
        victim.send_signal(signal.SIGKILL)
        (other,) = (one for one in pair if one is not victim)
        wait_until(lambda: quick.saved_epochs(run) == 2)
        assert epochs_of(run, runs) == [1, 2], "on from the checkpoint"

        below = psutil.Process(other.pid).children(recursive=True)
        first.send_signal(signal.SIGKILL)
        wait_until(lambda: other.poll() is not None)  # a worker without its scheduler ends
        wait_until(lambda: all(map(clusters.is_gone, below)))  # and its trainings, a moment later
        assert command.poll() is None, "the sweep waits"
        start(scheduler(port))
        start(worker(port))
        first_wait.unlink()
        second_wait.unlink()
        assert command.wait(400) == 0, (tmp_path / "log").read_text()

    assert "is lost: " in (tmp_path / "log").read_text()
    assert epochs_of(run, runs) == [1, 2, 3, 4], "nothing that was saved is lost"
    assert not list(runs.glob(".cluster-*"))
    here, there = RunStore(tmp_path / "local"), RunStore(runs)
    assert len(there.runs(finished=False)) == 2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the notebook
    for config in Grid.load(grid).configs():
        assert not differ(there.run(config), train(config, runs=here.root, progress=False))
    torch.set_num_threads(threads)
    tables = [store.frame().drop(columns=["seconds", "folder"]) for store in (there, here)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, to hide a folder")
def test_a_worker_that_does_not_see_the_runs_folder_is_named(tmp_path):
    folder, port = checkout.make(tmp_path / "checkout"), free_port()
    grid, runs = checkout.grid(folder, 1, 1), tmp_path / "runs"
    runs.mkdir()
    hidden = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs tmpfs {runs} && exec "$@"', "sh"]
    with process(scheduler(port), folder), process([*hidden, *worker(port)], folder):
        words = checkout.command("sweep", grid, "--runs", runs, "--scheduler", f"tcp://127.0.0.1:{port}")
        result = subprocess.run(words, cwd=folder, env=checkout.environment(folder), capture_output=True, text=True)
    assert result.returncode == 2
    assert re.search(r"worker tcp://\S+ does not see the runs folder .*/runs: give --runs a folder", result.stderr)
    assert not list(runs.iterdir())


@pytest.mark.parametrize(("resources", "at_once"), [({"GPU": 1}, 1), ({}, 3)])
def test_a_run_takes_one_gpu_where_workers_announce_them(tmp_path, monkeypatch, resources, at_once):
    from distributed import LocalCluster

    lock, busy, most = threading.Lock(), [0], [0]

    def pretend(config, *_, **__):
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.3)
        with lock:
            busy[0] -= 1
        return config, "not really run", 0.3

    monkeypatch.setattr(cluster, "run_outcome", pretend)  # in the worker, which is in this process
    (tmp_path / "grid.yaml").write_text("axes: {seed: [100, 101, 102]}\n")
    options = {"n_workers": 1, "threads_per_worker": 4, "processes": False, "dashboard_address": None}
    with LocalCluster(**options, resources=resources) as local:
        _, failed = sweep(Grid.load(tmp_path / "grid.yaml"), runs=tmp_path / "runs", scheduler=local.scheduler_address)
    assert len(failed) == 3
    assert most[0] == at_once


def test_unreachable_scheduler_and_missing_package(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 1)
    (tmp_path / "grid.yaml").write_text("axes: {seed: [100]}\n")
    grid = Grid.load(tmp_path / "grid.yaml")
    for address in (f"tcp://127.0.0.1:{free_port()}", "carrier-pigeon://coop", "nonsense"):
        with pytest.raises(ClamkitError, match="no Dask scheduler answers at"):
            sweep(grid, runs=tmp_path / "runs", scheduler=address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClamkitError, match=r"pip install 'clamkit\[cluster\]'"):
        sweep(grid, runs=tmp_path / "runs", scheduler="tcp://127.0.0.1:1")


def test_the_slurm_jobs_of_the_docs(monkeypatch, root):
    jobqueue = pytest.importorskip("dask_jobqueue", reason=f"the snippet is for SLURM: {NEEDED}")
    asked = {}
    monkeypatch.setattr(jobqueue.SLURMCluster, "scale", lambda self, *_, **options: asked.update(options))
    page = (root / "docs" / "cluster.md").read_text(encoding="utf-8")
    (snippet,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "SLURMCluster" in block)
    monkeypatch.setattr("builtins.input", lambda *_: "")
    names = {}
    exec(snippet, names)  # its job_script is what SLURM would get; there is no SLURM here
    script = names["cluster"].job_script()
    names["cluster"].close()
    assert asked == {"jobs": 8}
    for part in ("#SBATCH -t 12:00:00", "#SBATCH --gres=gpu:1", "--resources GPU=1", "--nthreads 1"):
        assert part in script
