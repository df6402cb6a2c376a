"""Dask clusters that misbehave: networks that are cut, hold and heal, workers that pause, clocks that are wrong."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path

import nbformat
import psutil

from tests.faults import checkout, sweeps

DASK = [sys.executable, "-m", "dask"]
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
EPOCHS = 4
LOGGED = """import os
import time

from clamkit.engine.store import RunFolder

save = RunFolder.save_checkpoint


def logged(run, state):
    root, epochs = run.folder.parents[3], len(state["history"])
    with open(root / "saved.log", "a") as log:
        log.write(f"{run.folder.name} {os.getpid()} {epochs}\\n")
    save(run, state)
    while (root / f"wait-{epochs}").exists():
        time.sleep(0.05)


RunFolder.save_checkpoint = logged"""
AHEAD = """import time

now, now_ns = time.time, time.time_ns
time.time = lambda: now() + 3600
time.time_ns = lambda: now_ns() + 3600 * 10**9
"""


# ------------------------------------------------------------------------------------------------------- processes


@contextmanager
def process(command, folder, env=None, **options):
    """A process that is ended with everything below it."""
    env = checkout.environment(folder) | (env or {})
    started = subprocess.Popen(command, cwd=folder, env=env, **QUIET | options)
    try:
        yield started
    finally:
        if started.poll() is None:
            own = psutil.Process(started.pid)
            for one in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):
                    one.kill()
        started.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scheduler(port, *words):
    return [*DASK, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", *words]


def worker(port, *words, threads=2, protocol="tcp"):
    address = f"{protocol}://127.0.0.1:{port}"
    return [*DASK, "worker", address, "--nthreads", str(threads), "--no-dashboard", "--no-nanny", *words]


def again_and_again(command):
    """As in docs/cluster.md: a worker that lost its scheduler ends, and is started anew."""
    return ["sh", "-c", 'while :; do "$@"; sleep 1; done', "sh", *command]


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@cache
def patience() -> dict[str, str]:
    """Settings with which a scheduler soon gives up a worker that says nothing. Dask's own are 300 seconds.

    A worker is silent while it imports papermill, which takes a minute where the machine is busy.
    """
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import papermill"], check=True)
    seconds = 4 + round(2 * (time.monotonic() - started))
    settings = {"WORKER_TTL": f"{seconds}s", "ALLOWED_FAILURES": "20"}
    return {f"DASK_DISTRIBUTED__SCHEDULER__{name}": value for name, value in settings.items()}


def given_up(log: Path) -> int:
    """How many workers have said nothing for too long, by the log of their scheduler."""
    return log.read_text().count("failed to heartbeat")


def wait_until(true, seconds=600):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


# --------------------------------------------------------------------------------------------------------- network


class Proxy:
    """TCP on loopback to another port. `state` is "open", "held" (nothing passes, nothing ends) or "cut"."""

    def __init__(self, target: int, delay_s: float = 0.0):
        self.target, self.delay_s, self.state = target, delay_s, "open"
        self.passed = 0  # bytes
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self.target), 5) as far:
            other = {near: far, far: near}
            while self.state != "cut":
                if self.state == "held":
                    time.sleep(0.02)
                    continue
                for ready in select.select([near, far], [], [], 0.05)[0]:
                    if not (chunk := ready.recv(65536)):
                        return
                    time.sleep(self.delay_s)
                    other[ready].sendall(chunk)
                    self.passed += len(chunk)

    def close(self) -> None:
        self.state = "cut"
        self.listener.close()

    @contextmanager
    def during(self, state: str):
        """Cut or held inside the block, healed after it."""
        self.state = state
        try:
            yield
        finally:
            self.state = "open"


# ----------------------------------------------------------------------------------------------------------- runs


def make(folder: Path) -> Path:
    """A checkout whose notebook notes each checkpoint, by whom: so that two at one run would be seen.

    A training that has saved n epochs waits while there is a file `wait-n` in the runs folder: what is done to it in
    the meantime is sure to be in its middle, however quick the machine is.
    """
    checkout.make(folder)
    path = folder / "notebooks" / "tiny.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.insert(1, nbformat.v4.new_code_cell(LOGGED))
    nbformat.write(notebook, path)
    return folder


def held_up(runs: Path) -> list[Path]:
    """Files that make trainings wait when they have saved one epoch, and when they have saved two."""
    runs.mkdir()
    waits = [runs / f"wait-{epochs}" for epochs in (1, 2)]
    for file in waits:
        file.touch()
    return waits


def another_version(checkout: Path, folder: Path) -> Path:
    for part in ("clamkit", "notebooks"):
        shutil.copytree(checkout / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(checkout / "pyproject.toml", folder)
    with (folder / "clamkit" / "lab" / "child.py").open("a") as changed:
        changed.write("# a later version\n")
    return folder


def saved(runs: Path) -> list[tuple[str, str, int]]:
    """(run, process, epochs) of each checkpoint, in the order in which they were written."""
    log = runs / "saved.log"
    lines = log.read_text().splitlines() if log.is_file() else []
    return [(name, pid, int(epochs)) for name, pid, epochs in map(str.split, lines)]


def check(count: Counter, folder: Path, grid: Path, runs: Path) -> None:
    """Nothing lost or doubled, the bits of unbroken runs, and never two processes at one run."""
    sweeps.check(count, folder, grid, runs)
    lines = saved(runs)
    for run in {name for name, *_ in lines}:
        turns = [
            (pid, [n for _, _, n in part]) for pid, part in groupby([x for x in lines if x[0] == run], lambda x: x[1])
        ]
        count["trainings begun or resumed"] += len(turns)
        count["doubled runs"] += len(turns) - len({pid for pid, _ in turns})  # one came back after another had begun
        epochs = [epochs for _, epochs in turns]
        count["lost epochs"] += sum(later[0] < former[-1] for former, later in pairwise(epochs))
    count["leftovers"] += len(list(runs.glob(".cluster-*")))


def trainer_of(processes: list[subprocess.Popen], runs: Path) -> tuple[subprocess.Popen, psutil.Process] | None:
    """Whose descendant has saved a checkpoint last, and that descendant; None while there is none of them."""
    lines = saved(runs)
    for one in processes:
        with suppress(psutil.Error):
            for child in psutil.Process(one.pid).children(recursive=True):
                if lines and child.pid == int(lines[-1][1]):
                    return one, child
    return None


def is_gone(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def cut_and_healed(folder: Path, seeds: int) -> Counter:
    """Two workers behind a slow network, one with a clock an hour ahead; it is cut, held and healed for both."""
    count, runs, settings = Counter(), folder / "runs", patience()
    make(folder)
    grid, port = checkout.grid(folder, seeds, EPOCHS), free_port()
    waits = held_up(runs)
    (folder / "ahead").mkdir()
    (folder / "ahead" / "sitecustomize.py").write_text(AHEAD)
    wrong_clock = {"PYTHONPATH": f"{folder / 'ahead'}{os.pathsep}{folder}"}
    with ExitStack() as stack:

        def start(command, **options):
            return stack.enter_context(process(command, folder, **options))

        proxies = []
        for _ in range(3):
            proxies.append(Proxy(port, delay_s=0.01))
            stack.callback(proxies[-1].close)
        start(scheduler(port), env=settings, stderr=stack.enter_context((folder / "scheduler").open("w")))
        pair = [
            start(again_and_again(worker(proxy.port, threads=1)), env=env)
            for proxy, env in zip(proxies, ({}, wrong_clock), strict=False)
        ]
        log = stack.enter_context((folder / "log").open("w+"))
        words = checkout.command("sweep", grid, "--runs", runs, "--scheduler", f"tcp://127.0.0.1:{proxies[2].port}")
        sweep = start(words, stdout=log, stderr=log)
        for state, wait in zip(("cut", "held"), waits, strict=True):
            found = wait_until(lambda: sweep.poll() is not None or trainer_of(pair, runs))
            assert sweep.poll() is None, (folder / "log").read_text()
            victim, trainer = found
            before = given_up(folder / "scheduler")
            with proxies[pair.index(victim)].during(state):
                time.sleep(1)
                if state == "held":
                    wait_until(lambda before=before: given_up(folder / "scheduler") > before)
            wait_until(lambda trainer=trainer: is_gone(trainer))  # with its worker, which is started anew
            count[f"network {state}"] += 1
            if state == "cut":
                for worse in ("held", "cut"):
                    with proxies[2].during(worse):  # of the sweep itself
                        time.sleep(2)
                count["sweep cut off"] += sweep.poll() is None
            wait.unlink()
        assert sweep.wait(600) == 0, (folder / "log").read_text()
        count["bytes through the proxies"] += sum(proxy.passed for proxy in proxies)
    check(count, folder, grid, runs)
    return count


def two_schedulers(folder: Path, seeds: int) -> Counter:
    """Two sweeps of the same runs on two schedulers; a worker pauses too long, one of another version comes late."""
    count, runs, settings = Counter(), folder / "runs", patience()
    ports = free_port(), free_port()
    make(folder)
    grid, (wait, later) = checkout.grid(folder, seeds, EPOCHS), held_up(runs)
    later.unlink()
    other = another_version(folder, folder / "other")
    with ExitStack() as stack:

        def start(command, place=folder, **options):
            return stack.enter_context(process(command, place, **options))

        for i, port in enumerate(ports):
            start(scheduler(port), env=settings, stderr=stack.enter_context((folder / f"scheduler{i}").open("w")))
        pair = [start(again_and_again(worker(port, threads=1))) for port in ports]
        logs = [stack.enter_context((folder / f"log{i}").open("w+")) for i in range(2)]
        both = []
        for port, log in zip(ports, logs, strict=True):
            words = checkout.command("sweep", grid, "--runs", runs, "--scheduler", f"tcp://127.0.0.1:{port}")
            both.append(start(words, stdout=log, stderr=log))
        said = lambda: "".join((folder / f"log{i}").read_text() for i in range(2))  # noqa: E731
        found = wait_until(lambda: any(s.poll() is not None for s in both) or trainer_of(pair, runs))
        assert found is not True, said()
        victim, trainer = found
        late = start(worker(ports[pair.index(victim)], threads=1), place=other)
        silent = folder / f"scheduler{pair.index(victim)}"
        before = given_up(silent)
        paused = psutil.Process(victim.pid).children(recursive=True)
        for one in paused:
            with suppress(psutil.Error):
                one.send_signal(signal.SIGSTOP)
        wait_until(lambda: given_up(silent) > before)
        for one in paused:
            with suppress(psutil.Error):
                one.send_signal(signal.SIGCONT)
        wait_until(lambda: is_gone(trainer))  # with its worker, which had been given up
        wait.unlink()
        count["workers paused"] += 1
        codes = [sweep.wait(600) for sweep in both]
        assert codes == [0, 0], said()
        count["sweeps at once"] += 2
        count["late workers sent away"] += "is sent away" in said() and late.wait(60) is not None
    check(count, folder, grid, runs)
    return count
