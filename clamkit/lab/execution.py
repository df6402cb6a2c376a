"""The one way notebooks are executed: papermill in a process of its own. Sweeps, reports and refreshing use it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clamkit import paths
from clamkit.engine.config import RunConfig
from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError, not_installed
from clamkit.lab.forks import DONE, READY
from clamkit.lab.notebooks import notebook_parameters

KERNEL_START_TIMEOUT_S = 300  # on a busy machine
QUIET = {"CLAMKIT_PROGRESS": "0", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # no bars, no debugger's warnings in outputs
SILENT = "papermill ended without a word"
LOCKED = "locked by another process; skipped."
EXACTLY = {"scale": "small", "beside": None, "minutes": None}  # a training notebook is this run, whatever it takes

Outcome = tuple[RunConfig, str | None, float]  # the run, why it failed, seconds


class Processes:
    """Child processes that can all be ended when the work is stopped.

    forks: make them, on Linux, from one process that has imported everything, with the number of threads of the first
    one; it ends with the `with` block.
    """

    def __init__(self, forks: bool = False) -> None:
        self.running: set[subprocess.Popen | socket.socket] = set()
        self.stopped = False
        self.lock = threading.Lock()
        self.forks = forks and sys.platform == "linux"
        self.origin: tuple[subprocess.Popen, socket.socket] | None = None  # what is forked, and how it is told to

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        if self.origin:
            process, control = self.origin
            control.close()
            process.terminate()  # it may still be importing
            process.wait()

    def run(self, arguments: dict[str, Any], env: dict[str, str], cwd: Path) -> str:
        """papermill's execute_notebook with these arguments; returns "" or what it said when it failed."""
        if self.forks and (said := self._fork(arguments, env, cwd)) is not None:
            return said
        command = [sys.executable, "-m", "clamkit.lab.child", str(os.getpid()), json.dumps(arguments)]
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            process = subprocess.Popen(command, env=env, cwd=cwd, **options)
            self.running.add(process)
        _, stderr = process.communicate()
        with self.lock:
            self.running.discard(process)
        return (stderr or SILENT) if process.returncode else ""

    def _fork(self, arguments: dict[str, Any], env: dict[str, str], cwd: Path) -> str | None:
        """`run` in a fork; None if none came, and then none is asked for again."""
        ours, theirs = socket.socketpair()
        said = b""
        with ours:
            with self.lock, theirs, suppress(ConnectionError):
                if self.stopped:
                    raise KeyboardInterrupt
                self.running.add(ours)
                self.origin = self.origin or _origin(env, cwd)
                socket.send_fds(self.origin[1], [b"\n"], [theirs.fileno()])
            with suppress(ConnectionError):
                ours.sendall(json.dumps({"arguments": arguments, "env": env, "cwd": str(cwd)}).encode() + b"\n")
                while part := ours.recv(65536):
                    said += part
            with self.lock:
                self.running.discard(ours)
        if not said.startswith(READY):
            self.forks = False
            return None
        return "" if DONE in said else said[len(READY) :].decode(errors="replace") or SILENT

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                if isinstance(process, subprocess.Popen):
                    process.terminate()  # its kernel sees that it is gone and ends too
                else:
                    process.shutdown(socket.SHUT_WR)


def _origin(env: dict[str, str], cwd: Path) -> tuple[subprocess.Popen, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "clamkit.lab.forks"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, stdin=theirs, env=env, cwd=cwd, **quiet), ours


def execute_notebook(
    notebook: Path,
    output: Path,
    *,
    parameters: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    processes: Processes | None = None,
    figure_formats: Sequence[str] = ("png",),
    cell_timeout_s: int | None = None,
) -> str:
    """Execute a notebook in its own folder and write it to `output`, as far as it came.

    Returns "" or, where a cell failed, the traceback; its last line says what went wrong.
    """
    try:
        import papermill  # noqa: F401  said here, where a person reads it, and not in the child
    except ImportError:
        raise not_installed("papermill", "lab") from None
    formats = "{" + ", ".join(map(repr, figure_formats)) + "}"
    arguments = {
        "input_path": str(notebook),
        "output_path": str(output),
        "parameters": parameters,
        "kernel_name": "python3",
        "language": "python",
        "start_timeout": KERNEL_START_TIMEOUT_S,
        "execution_timeout": cell_timeout_s,
        "progress_bar": False,
        "coalesce_streams": True,
        "extra_arguments": [f"--InlineBackend.figure_formats={formats}", "--IPKernelApp.log_level=40"],
    }
    folders = {"CLAMKIT_RUNS": str(paths.runs()), "CLAMKIT_FIGURES": str(paths.figures())}  # not the notebook's own
    full = os.environ | QUIET | folders | (environment or {})
    return (processes or Processes()).run(arguments, full, notebook.parent)


def last_line(stderr: str) -> str:
    return next((line for line in reversed(stderr.splitlines()) if line.strip()), "")


def run_outcome(
    config: RunConfig,
    notebook: Path,
    root: Path,
    threads: int,
    processes: Processes,
    patience_s: float,
    **environment: str,
) -> Outcome:
    """One run of a sweep, timed, with a failure as a value: its notebook with the config's fields as parameters.

    If the sweep is killed its children end with it, a moment later: `patience_s` is how long to wait for that.
    """
    started, run = time.monotonic(), RunStore(root).run(config)
    environment |= {"CLAMKIT_RUNS": str(root), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    error = None
    try:
        parameters = run_parameters(config, notebook_parameters(notebook))
        run.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(run.folder / ".sweep.lock", timeout=patience_s):
            with FileLock(run.folder / ".lock", timeout=patience_s):
                made = run.done and not run.damaged(checkpoint=False)  # by another sweep in the meantime
            if not made:
                error = _execute_run(run, notebook, parameters, environment, processes)
    except Timeout:
        error = LOCKED
    except OSError as failure:
        error = f"cannot write to {paths.shown(run.folder)}: {failure}."
    except ClamkitError as refused:
        error = str(refused)
    return config, error, time.monotonic() - started


def _execute_run(
    run: RunFolder, notebook: Path, parameters: dict[str, Any], environment: dict[str, str], processes: Processes
) -> str | None:
    """Why it failed. The notebook stays in the run folder, a failed one as failed.ipynb beside its failed.txt."""
    working, failed = run.folder / "running.ipynb", run.folder / "failed.txt"
    said = execute_notebook(notebook, working, parameters=parameters, environment=environment, processes=processes)
    if processes.stopped and not run.done:
        working.unlink(missing_ok=True)
        raise KeyboardInterrupt
    if not (said or run.done):
        said = "the notebook ended without finishing the run"
    if said:
        if working.is_file():
            working.replace(run.folder / "failed.ipynb")
        failed.write_text(said, encoding="utf-8")
        return f"{last_line(said)} (see {paths.shown(failed)})"
    working.replace(run.folder / "notebook.ipynb")
    for leftover in (failed, run.folder / "failed.ipynb"):
        leftover.unlink(missing_ok=True)
    return None


def run_parameters(config: RunConfig, known: set[str]) -> dict[str, Any]:
    """The config as notebook parameters; fields the notebook has no parameter for travel in `options`."""
    fields = config.model_dump(exclude_defaults=True)
    own = {key: getattr(config, key) for key in RunConfig.model_fields if key in known}
    own |= {key: value for key, value in EXACTLY.items() if key in known}
    return own | {"options": {key: value for key, value in fields.items() if key not in known}}


def workers(jobs: int | None, missing: int) -> tuple[int, int]:
    """(processes side by side, threads of each): one process for each GPU, or without one for each core given to us.

    Small models gain less from a second thread than a sweep from a second process (`make bench` measures it).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # Slurm's part
    if not jobs:
        from torch.cuda import device_count  # a second and 180 MB, which a cluster's workers do without

        jobs = device_count() or cores
    jobs = max(1, min(jobs, missing))
    return jobs, max(1, cores // jobs)
