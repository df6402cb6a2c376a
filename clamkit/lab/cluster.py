"""Sweeps on a Dask cluster: the same runs, executed by its workers in a runs folder that all machines share."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from clamkit import __version__, paths
from clamkit.engine.config import RunConfig
from clamkit.engine.store import RunStore
from clamkit.errors import ClamkitError, not_installed
from clamkit.lab.execution import Outcome, Processes, run_outcome, workers

log = logging.getLogger("clamkit")

ANSWER_TIMEOUT_S = 10  # for a scheduler to answer
RECONNECT_TIMEOUT_S = 600  # to wait for a lost scheduler, and for a first worker
MAX_LOSSES = 20  # of the connection in a row, after which it is something else
LOCK_TIMEOUT_S = 120  # until a file server gives up the locks of a machine that died (NFS: 90)

_running: dict[str, Processes] = {}  # in a worker: the child processes of each sweep


def cluster_outcomes(address: str, work: dict[RunConfig, Path], root: Path) -> Generator[Outcome, None, None]:
    """Send runs to the cluster and yield each as it ends. If the scheduler goes, what is left waits until it is back.

    Where workers announce the resource GPU, each run takes one of it; a run whose worker dies goes on at another one.
    """
    left, token = dict(work), secrets.token_hex(8)
    mark = root / f".cluster-{token}"  # what every worker must see before it begins
    client = _connect(address, ANSWER_TIMEOUT_S)
    try:
        root.mkdir(parents=True, exist_ok=True)
        mark.write_text(token)
    except OSError as error:
        raise ClamkitError(f"cannot write to {paths.shown(root)}: {error}.") from error
    lost = 0
    try:
        while left:
            for done in _session(client, left, mark):
                lost = 0
                del left[done[0]]
                yield done
            if left:
                lost += 1
                if lost > MAX_LOSSES:
                    raise ClamkitError(f"the connection to {address} was lost {lost} times in a row: look at its log.")
                log.warning("the scheduler at %s is lost: %d runs wait until it is back.", address, len(left))
                client.close(timeout=1)
                client = _connect(address, RECONNECT_TIMEOUT_S)
    finally:
        mark.unlink(missing_ok=True)
        if left and client.status == "running":  # stopped, not lost
            client.run(_stop, token, on_error="ignore")
        client.close(timeout=1)


def _session(client, left: dict[RunConfig, Path], mark: Path) -> Generator[Outcome, None, None]:
    """Outcomes until all is done or the scheduler is lost."""
    from distributed import CancelledError, as_completed

    try:
        _check_workers(client, set(left.values()), mark)
        described = client.scheduler_info(n_workers=-1)["workers"].values()
        needs = {"GPU": 1} if any("GPU" in worker["resources"] for worker in described) else None
        futures = {}
        for config, notebook in left.items():
            key = f"clamkit-{mark.parent}/{config.folder()}"  # the same run of two sweeps is one task
            arguments = (config.model_dump(), notebook.stem, str(mark))
            futures[client.submit(_one, *arguments, key=key, resources=needs)] = config
        for future in as_completed(futures):
            config = futures[future]
            if future.status == "finished":
                error, seconds = future.result()
                yield config, error or _not_here(RunStore(mark.parent).run(config)), seconds
            elif future.status == "error":  # such as KilledWorker, when a run has taken several workers with it
                yield config, f"{type(future.exception()).__name__}: {future.exception()}", float("nan")
    except (OSError, CancelledError):  # what the client makes of a scheduler that is gone
        return


def _one(fields: dict[str, Any], notebook: str, mark: str) -> tuple[str | None, float]:
    """In a worker: one run, in a child process."""
    from distributed import get_worker

    token = Path(mark).name.removeprefix(".cluster-")
    if _look(mark, [])[0] != token:
        return f"{get_worker().address} does not see {Path(mark).parent}", 0.0
    processes = _running.setdefault(token, Processes())
    threads = workers(get_worker().state.nthreads, get_worker().state.nthreads)[1]
    file = paths.notebooks() / f"{notebook}.ipynb"
    try:
        return run_outcome(RunConfig(**fields), file, Path(mark).parent, threads, processes, LOCK_TIMEOUT_S)[1:]
    except KeyboardInterrupt:  # it would end the worker
        return "stopped", 0.0


def _stop(token: str) -> None:
    """In a worker: end the runs of a sweep that was stopped."""
    _running.setdefault(token, Processes()).stop()


def _look(mark: str, notebooks: list[str]) -> tuple[str | None, list]:
    """In a worker: what it reads in the runs folder, and which clamkit it has."""
    files = [paths.notebooks() / f"{name}.ipynb" for name in notebooks]
    version = [__version__, *(hashlib.sha256(f.read_bytes()).hexdigest() if f.is_file() else None for f in files)]
    return Path(mark).read_text() if Path(mark).is_file() else None, version


def _check_workers(client, notebooks: set[Path], mark: Path) -> None:
    names = sorted(file.stem for file in notebooks)
    if not client.scheduler_info(n_workers=-1)["workers"]:
        log.warning("no worker has joined yet: waiting for one.")
    try:
        client.wait_for_workers(1, timeout=RECONNECT_TIMEOUT_S)
    except TimeoutError:
        raise ClamkitError(
            f"no worker has joined {client.scheduler.address} in {RECONNECT_TIMEOUT_S} s: start some."
        ) from None
    text, version = _look(str(mark), names)
    for worker, answer in client.run(_look, str(mark), names, on_error="return").items():
        if isinstance(answer, BaseException):
            raise ClamkitError(f"worker {worker} cannot run clamkit ({answer!r}): set the same checkout up there.")
        if answer[0] != text:
            raise ClamkitError(
                f"worker {worker} does not see the runs folder {mark.parent}: give --runs a folder that all machines "
                "share under the same path, such as a network drive."
            )
        if answer[1] != version:
            raise ClamkitError(f"worker {worker} has another version of clamkit or its notebooks: make them the same.")


def _not_here(run) -> str | None:
    """A network drive may take a minute to show what another machine wrote."""
    deadline = time.monotonic() + 60
    while not run.done:
        if time.monotonic() > deadline:
            return f"the worker finished it, but {run.folder} is not to be seen here"
        time.sleep(0.5)
    return None


def _connect(address: str, patience: float):
    """A client of the scheduler, tried for at least `patience` seconds."""
    try:
        from distributed import Client
    except ImportError:
        raise not_installed("Dask, which sweeps on a cluster need,", "cluster") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what is lost is said here
    deadline = time.monotonic() + patience
    while True:
        try:
            return Client(address, timeout=ANSWER_TIMEOUT_S)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or time.monotonic() > deadline:
                why = f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
                raise ClamkitError(
                    f"no Dask scheduler answers at {address} ({why}): start one there with `dask scheduler`, "
                    "and give --scheduler the tcp:// address that it prints."
                ) from error
            time.sleep(1)
