"""Clusters that misbehave, and clusters over TLS: real schedulers, workers and sweeps."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from clamkit.engine.store import RunStore
from clamkit.errors import ClamkitError
from clamkit.lab import cluster
from clamkit.lab.grids import Grid
from clamkit.lab.runner import sweep
from tests.faults import checkout

pytest.importorskip("psutil", reason="needs psutil: pip install 'clamkit[lab,test,cluster]'")
from tests.faults import clusters

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def _has_dask():
    """Looked at when a test runs: importing Dask takes seconds, which collecting the quick tests should not."""
    for package in ("distributed", "papermill"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'clamkit[lab,test,cluster]'")


def test_a_folder_without_working_locks_is_refused(tmp_path, root):
    """As on a network drive that is mounted with nolock: every lock is given to everybody."""
    (tmp_path / "nolock").mkdir()
    (tmp_path / "nolock" / "sitecustomize.py").write_text("import fcntl\n\nfcntl.flock = lambda *_: None\n")
    (tmp_path / "grid.yaml").write_text("axes: {seed: [100]}\n")
    port, env = clusters.free_port(), {"PYTHONPATH": f"{tmp_path / 'nolock'}{os.pathsep}{root}"}
    address = f"tcp://127.0.0.1:{port}"
    grid, start, join = Grid.load(tmp_path / "grid.yaml"), clusters.scheduler(port), clusters.worker(port)
    refused = pytest.raises(ClamkitError, match=r"does not see the locks of others in .*runs, so that two machines")
    with clusters.process(start, root), clusters.process(join, root, env=env), refused:
        clusters.wait_until(lambda: clusters.listens(port))
        sweep(grid, runs=tmp_path / "runs", scheduler=address, progress=False)
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
@pytest.mark.faults
def test_trainings_in_mid_run_outlast_it(tmp_path, root):
    """The short version of two rows of `make faults`, two runs each; `least`: trainings begun or resumed."""
    rows = {
        "network cut and healed": (["network cut", "network held", "sweep cut off"], 4),
        "two schedulers": (["workers paused", "late workers sent away"], 3),
    }
    command = [sys.executable, "-m", "tests.faults.report", "--short", "--json", tmp_path / "found", "--only", *rows]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads((tmp_path / "found").read_text())
    for row, (hit, least) in rows.items():
        assert [found[row][what] for what in hit] == [1] * len(hit)
        assert found[row]["trainings begun or resumed"] >= least


@pytest.mark.slow
def test_a_late_worker_of_another_version_is_sent_away(tmp_path, root, monkeypatch, caplog):
    """While the first worker, which is in this process, has its hands full."""
    from distributed import LocalCluster

    busy, late = threading.Event(), None

    def pretend(config, *_, **__):
        busy.set()
        clusters.wait_until(lambda: late and late.poll() is not None)
        return config, "not really run", 0.0

    monkeypatch.setattr(cluster, "run_outcome", pretend)
    (tmp_path / "grid.yaml").write_text("axes: {seed: [100, 101]}\n")
    other = clusters.another_version(root, tmp_path / "other")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    options |= {"protocol": "tcp://", "host": "127.0.0.1"}
    with LocalCluster(**options) as local:
        join = clusters.worker(local.scheduler_address.rsplit(":")[-1], threads=1)
        with ThreadPoolExecutor() as pool, ExitStack() as stack:
            grid, place = Grid.load(tmp_path / "grid.yaml"), {"runs": tmp_path / "runs", "progress": False}
            swept = pool.submit(sweep, grid, scheduler=local.scheduler_address, **place)
            clusters.wait_until(busy.is_set)
            late = stack.enter_context(clusters.process(join, other))
            _, failed = swept.result()
            assert late.wait(60) is not None
    assert set(failed.values()) == {"not really run"}
    assert caplog.text.count("has another version of clamkit") == 1


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="makes certificates with openssl")
def test_tls_as_the_docs_say(tmp_path, root):
    from distributed import Client
    from distributed.security import Security

    certificates, settings = re.findall(r"```sh\n(.*?)```", (root / "docs" / "cluster.md").read_text(), re.S)[-3:-1]
    assert "openssl" in certificates
    assert "REQUIRE_ENCRYPTION" in settings

    def made(folder):
        folder.mkdir()
        subprocess.run(["sh", "-e", "-c", certificates], cwd=folder, check=True, capture_output=True)
        printed = subprocess.run(["sh", "-e", "-c", f"{settings}\nenv"], cwd=folder, check=True, stdout=subprocess.PIPE)
        return dict(line.split("=", 1) for line in printed.stdout.decode().splitlines() if line.startswith("DASK_"))

    env, strangers = made(tmp_path / "ours"), made(tmp_path / "theirs")
    folder, port = checkout.make(tmp_path / "checkout"), clusters.free_port()
    address, runs = f"tls://127.0.0.1:{port}", tmp_path / "runs"
    command = checkout.command("sweep", checkout.grid(folder, 1, 2), "--runs", runs, "--scheduler", address)

    def swept(settings):
        env = checkout.environment(folder) | settings
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)

    start = clusters.scheduler(port, "--protocol", "tls")
    join = clusters.worker(port, "--protocol", "tls", protocol="tls")
    with clusters.process(start, folder, env=env), clusters.process(join, folder, env=env):
        without = swept({})
        assert without.returncode == 2
        assert "wants TLS, and Dask knows no certificate of yours: docs/cluster.md" in without.stderr
        result = swept(env)
        assert result.returncode == 0, result.stderr
        named = {"ca_file": "CA_FILE", "client_cert": "CLIENT__CERT", "client_key": "CLIENT__KEY"}
        other = Security(
            require_encryption=True,
            **{f"tls_{key}": strangers[f"DASK_DISTRIBUTED__COMM__TLS__{name}"] for key, name in named.items()},
        )
        for place, security in ((address, other), (address.replace("tls", "tcp"), None)):
            with pytest.raises(OSError, match="does not match|Timed out|closed|refused"):
                Client(place, security=security, timeout=3)
    (run,) = RunStore(runs).runs()
    assert run.done


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_on_the_workers(tmp_path):
    """And the next sweep goes on where they were, at the same worker."""
    folder, port, runs = clusters.make(tmp_path / "checkout"), clusters.free_port(), tmp_path / "runs"
    grid, (wait, later) = checkout.grid(folder, 1, clusters.EPOCHS), clusters.held_up(runs)
    later.unlink()
    words = checkout.command("sweep", grid, "--runs", runs, "--scheduler", f"tcp://127.0.0.1:{port}")
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # also where the tests ignore it
    with ExitStack() as stack:
        stack.enter_context(clusters.process(clusters.scheduler(port), folder))
        worker = stack.enter_context(clusters.process(clusters.worker(port, threads=1), folder))
        stopped = stack.enter_context(clusters.process(words, folder, **heed))
        _, trainer = clusters.wait_until(lambda: clusters.trainer_of([worker], runs))
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(120) == 128 + signal.SIGINT
        clusters.wait_until(lambda: clusters.is_gone(trainer), 60)
        assert worker.poll() is None
        wait.unlink()
        assert stack.enter_context(clusters.process(words, folder)).wait(600) == 0
    assert [epochs for _, _, epochs in clusters.saved(runs)] == list(range(1, clusters.EPOCHS + 1))
    (run,) = RunStore(runs).runs()
    assert run.done
