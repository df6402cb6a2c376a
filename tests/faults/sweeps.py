"""Sweeps whose processes are killed at random, and two sweeps on one folder."""

import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from clamkit.engine.loop import train
from clamkit.engine.store import RunStore
from clamkit.lab.grids import Grid
from tests.faults import checkout, trainings

JOBS = 2
EPOCHS = 40


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """The sweep, its papermills and their kernels."""
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(process.pid)
        return [own, *own.children(recursive=True)]
    return []


def gone(processes: list[psutil.Process], seconds: float = 60) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def start(folder: Path, grid: Path, runs: Path) -> subprocess.Popen:
    words = checkout.command("sweep", grid, "--runs", runs, "--jobs", JOBS)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=checkout.environment(folder), cwd=folder, **quiet)


def check(count: Counter, folder: Path, grid: Path, runs: Path) -> None:
    """Nothing lost, nothing doubled, and the bits of unbroken runs."""
    configs = Grid.load(grid).configs()
    count["lost runs"] += sum(not RunStore(runs).run(config).done for config in configs)
    count["doubled runs"] += len(RunStore(runs).runs(finished=False)) - len(configs)

    def whole():
        for config in configs:
            train(config, runs=folder / "whole", progress=False)

    assert trainings.ended(trainings.fork(whole)) == 0
    for config in configs:
        run = RunStore(runs).run(config)
        count["torn files"] += len(trainings.torn(run.folder))
        count["wrong results"] += trainings.differ(run, RunStore(folder / "whole").run(config))


def killed(folder: Path, runs: int, times: int, seed: int = 0) -> Counter:
    """Every few seconds the sweep, a papermill or a kernel is killed with -9; the same command is given again."""
    rng, count = random.Random(seed), Counter()
    checkout.make(folder)
    grid = checkout.grid(folder, runs, EPOCHS)
    process = start(folder, grid, folder / "runs")
    while True:
        deadline = time.monotonic() + (rng.uniform(0.5, 3) if count["kills"] < times else 600)
        with suppress(subprocess.TimeoutExpired):
            process.wait(deadline - time.monotonic())
        if process.poll() is None and count["kills"] < times:
            everyone = family(process)
            victim = rng.choice(everyone)
            with suppress(psutil.NoSuchProcess):
                victim.kill()
                count["kills"] += 1
            if victim.pid == process.pid:
                process.wait()
                count["left behind"] += not gone(everyone[1:])
        elif process.poll() == 0:
            break
        elif process.poll() is None:
            process.kill()
            raise AssertionError("the sweep does not come to its end")
        if process.poll() is not None:
            count["resumes"] += 1
            assert count["resumes"] <= 2 * times + 2, "the same command fails again and again"
            process = start(folder, grid, folder / "runs")
    check(count, folder, grid, folder / "runs")
    return count


def stopped(folder: Path, runs: int) -> Counter:
    """SIGTERM in mid-run ends everything in good order; then two sweeps at once on the folder finish it together."""
    count = Counter()
    checkout.make(folder)
    grid = checkout.grid(folder, runs, EPOCHS)
    process = start(folder, grid, folder / "runs")
    while not list((folder / "runs").glob("*/*/*/*/checkpoint.pt")):
        assert process.poll() is None, "ended before it could be stopped"
        time.sleep(0.05)
    everyone = family(process)
    process.send_signal(signal.SIGTERM)
    count["stopped"] += process.wait(60) == 128 + signal.SIGTERM
    count["left behind"] += not gone(everyone[1:])
    both = [start(folder, grid, folder / "runs") for _ in range(2)]
    for process in both:
        process.wait(600)
    count["sweeps at once"] += len(both)
    check(count, folder, grid, folder / "runs")
    return count
