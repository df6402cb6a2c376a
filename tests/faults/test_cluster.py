"""Sweeps on a real Dask scheduler with real workers, some of which are killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress

import pandas as pd
import pytest

from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.lab import cluster
from clamkit.lab.grids import Grid
from clamkit.lab.runner import sweep
from tests.faults import checkout
from tests.faults.clusters import QUIET, free_port, process, scheduler, wait_until, worker

NEEDED = "pip install 'clamkit[lab,cluster]'"
psutil = pytest.importorskip("psutil", reason=f"the tests look at processes with psutil: {NEEDED}")
pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def _has_dask():
    """Looked at when a test runs: importing Dask takes seconds, which collecting the quick tests should not."""
    for package in ("distributed", "papermill"):
        pytest.importorskip(package, reason=f"sweeps on a cluster need Dask and papermill: {NEEDED}")


def epochs_saved(run: RunFolder) -> int:
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        try:
            return len(RunFolder.read_checkpoint(run.folder / name)["history"])
        except (OSError, RuntimeError):  # just being replaced
            continue
    return 0


def at_work(processes, runs):
    """(worker, run) where a kernel below the worker trains the run and has saved something."""
    for one in processes:
        with suppress(psutil.Error):  # a child that has just ended
            words = " ".join(" ".join(child.cmdline()) for child in psutil.Process(one.pid).children())
            for run in runs:
                if str(run.folder) in words and not run.done and (run.folder / "checkpoint.previous.pt").is_file():
                    return one, run
    return None


@pytest.mark.faults
def test_workers_and_the_scheduler_may_die(tmp_path):
    folder = checkout.make(tmp_path / "checkout")
    grid, port = checkout.grid(folder, 3, 100), free_port()
    configs, store = Grid.load(grid).configs(), RunStore(tmp_path / "runs")
    runs = [store.run(config) for config in configs]
    words = checkout.command("sweep", grid, "--runs", store.root, "--scheduler", f"tcp://127.0.0.1:{port}")
    with ExitStack() as stack:

        def start(command, **options):
            return stack.enter_context(process(command, folder, **options))

        first = start(scheduler(port))
        pair = [start(worker(port)) for _ in range(2)]
        log = stack.enter_context((tmp_path / "log").open("w+"))
        command = start(words, stdout=log, stderr=log)

        found = wait_until(lambda: command.poll() is not None or at_work(pair, runs))
        assert command.poll() is None, (tmp_path / "log").read_text()
        victim, run = found
        victim.send_signal(signal.SIGKILL)
        saved = epochs_saved(run)
        assert saved >= 1
        (other,) = (one for one in pair if one is not victim)
        wait_until(lambda: at_work([other], [run]) or run.done)
        seen = [saved]
        wait_until(lambda: seen.append(epochs_saved(run)) or run.done or seen[-1] > saved)
        assert min(seen) == saved, "it goes on from the checkpoint"

        first.send_signal(signal.SIGKILL)
        wait_until(lambda: other.poll() is not None)  # a worker without its scheduler ends
        assert epochs_saved(run) >= seen[-1], "nothing that was saved is lost"
        assert command.poll() is None, "the sweep waits"
        start(scheduler(port))
        for _ in range(2):
            start(worker(port))
        assert command.wait(400) == 0, (tmp_path / "log").read_text()

    assert "is lost: " in (tmp_path / "log").read_text()
    assert not list(store.root.glob(".cluster-*"))
    local = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, torch; torch.set_num_threads(1)\n"
            "from clamkit import train; from clamkit.lab.grids import Grid\n"
            "for config in Grid.load(sys.argv[1]).configs(): train(config, runs=sys.argv[2])",
            str(grid),
            str(tmp_path / "local"),
        ],
        check=False,
        **QUIET,
    )
    assert local.returncode == 0
    here = RunStore(tmp_path / "local")
    tables = [s.frame().drop(columns=["seconds", "folder"]) for s in (store, here)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    for config in configs:
        pd.testing.assert_frame_equal(store.run(config).history, here.run(config).history, check_exact=True)
        pd.testing.assert_frame_equal(store.run(config).predictions, here.run(config).predictions)


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
