"""Sweeps on a Dask cluster: the same runs, executed by its workers in a runs folder that all machines share."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clamkit import paths
from clamkit.engine.config import RunConfig
from clamkit.engine.store import RunStore
from clamkit.errors import ClamkitError, not_installed
from clamkit.lab.execution import LOCKED, Outcome, Processes, run_outcome, workers

log = logging.getLogger("clamkit")

ANSWER_TIMEOUT_S = 10  # for a scheduler to answer
RECONNECT_TIMEOUT_S = 600  # to wait for a lost scheduler, and for a first worker
MAX_LOSSES = 20  # of the connection in a row, after which it is something else
LOCK_TIMEOUT_S = 10  # to wait for the lock of a run before the worker takes another one and comes back
UNFIT, STOPPED = "not by this worker", "stopped"  # answers of a worker that has not trained

_running: dict[str, Processes] = {}  # in a worker: the child processes of each sweep


def cluster_outcomes(address: str, work: dict[RunConfig, Path], root: Path) -> Generator[Outcome, None, None]:
    """Send runs to the cluster and yield each as it ends. If the scheduler goes, what is left waits until it is back.

    Where workers announce the resource GPU, each run takes one of it; a run whose worker dies goes on at another one.
    """
    left, token, held = dict(work), secrets.token_hex(8), ExitStack()
    mark = root / f".cluster-{token}"  # what every worker must see, and find locked, before it begins
    client = _connect(address, ANSWER_TIMEOUT_S)
    try:
        root.mkdir(parents=True, exist_ok=True)
        mark.write_text(token)
        held.enter_context(FileLock(f"{mark}.lock", timeout=0))
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
        held.close()
        for file in (mark, Path(f"{mark}.lock")):
            file.unlink(missing_ok=True)
        if left and client.status == "running":  # stopped, not lost
            client.run(_stop, token, on_error="ignore")
        client.close(timeout=1)


def _session(client, left: dict[RunConfig, Path], mark: Path) -> Generator[Outcome, None, None]:
    """Outcomes until all is done or the scheduler is lost."""
    from distributed import CancelledError, as_completed

    try:
        _wait_for_worker(client)
        notebooks = sorted({file.stem for file in left.values()})
        version = _version(notebooks)
        for why in _unfit(client, notebooks, mark).values():
            raise ClamkitError(why)
        described = client.scheduler_info(n_workers=-1)["workers"].values()
        needs = {"GPU": 1} if any("GPU" in worker["resources"] for worker in described) else None

        def send(config: RunConfig, turn: int) -> Any:
            key = f"clamkit-{mark.parent}/{config.folder()}" + f" {turn}" * bool(turn)  # one task for two sweeps
            arguments = (config.model_dump(), left[config].stem, str(mark), notebooks, version)
            return client.submit(_one, *arguments, key=key, resources=needs, priority=-turn)

        futures = {send(config, 0): (config, 0) for config in left}
        answers, told = as_completed(futures), set[str]()
        for future in answers:
            config, turn = futures.pop(future)
            if future.status not in ("finished", "error"):
                continue
            fine = future.status == "finished"
            error, seconds = future.result() if fine else (repr(future.exception()), float("nan"))
            unfit = {} if fine and error != UNFIT else _unfit(client, notebooks, mark)
            if unfit:
                future.release()  # Dask keeps a worker that has the only copy of a result
                time.sleep(0.5)
                for why in sorted({*unfit.values()} - told):
                    log.warning("%s It joined late, and is sent away.", why)
                told.update(unfit.values())
                client.retire_workers(list(unfit))
            if unfit or error in (UNFIT, LOCKED, STOPPED):
                if error == LOCKED and not turn:
                    log.warning("%s is locked by another process: it is tried again later.", config.folder())
                again = send(config, turn + 1)
                futures[again] = config, turn + 1
                answers.add(again)
            else:
                yield config, error or _not_here(RunStore(mark.parent).run(config)), seconds
    except (OSError, CancelledError):  # what the client makes of a scheduler that is gone
        return


def _one(
    fields: dict[str, Any], notebook: str, mark: str, notebooks: list[str], version: str
) -> tuple[str | None, float]:
    """In a worker: one run, in a child process."""
    from distributed import get_worker

    token = Path(mark).name.removeprefix(".cluster-")
    if _look(mark, notebooks) != (token, True, version):
        time.sleep(1)  # it may be sent here again
        return UNFIT, 0.0
    processes = _running.setdefault(token, Processes())
    threads = workers(get_worker().state.nthreads, get_worker().state.nthreads)[1]
    file = paths.notebooks() / f"{notebook}.ipynb"
    try:
        return run_outcome(RunConfig(**fields), file, Path(mark).parent, threads, processes, LOCK_TIMEOUT_S)[1:]
    except KeyboardInterrupt:  # it would end the worker
        return STOPPED, 0.0


def _stop(token: str) -> None:
    """In a worker: end the runs of a sweep that was stopped."""
    _running.setdefault(token, Processes()).stop()


def _look(mark: str, notebooks: list[str]) -> tuple[str | None, bool, str]:
    """In a worker: what it reads in the runs folder, whether locks hold there, and which clamkit it has."""
    if not Path(mark).is_file():
        return None, False, _version(notebooks)
    try:
        with FileLock(f"{mark}.lock", timeout=0):  # which the sweep holds
            return Path(mark).read_text(), False, _version(notebooks)
    except Timeout:
        return Path(mark).read_text(), True, _version(notebooks)


def _version(notebooks: list[str]) -> str:
    """A hash of the code and of the notebooks that are named."""
    files = [*sorted(Path(paths.__file__).parent.rglob("*.py")), *(paths.notebooks() / f"{n}.ipynb" for n in notebooks)]
    return hashlib.sha256(b"".join(f.read_bytes() if f.is_file() else b"-" for f in files)).hexdigest()


def _wait_for_worker(client) -> None:
    if not client.scheduler_info(n_workers=-1)["workers"]:
        log.warning("no worker has joined yet: waiting for one.")
    try:
        client.wait_for_workers(1, timeout=RECONNECT_TIMEOUT_S)
    except TimeoutError:
        said = f"no worker has joined {client.scheduler.address} in {RECONNECT_TIMEOUT_S} s: start some."
        raise ClamkitError(said) from None


def _unfit(client, notebooks: list[str], mark: Path) -> dict[str, str]:
    """Workers that may not have runs, and why."""
    from distributed.comm import CommClosedError

    if not mark.is_file():
        raise ClamkitError(f"{paths.shown(mark)}, by which workers know the folder, is gone: give the command again.")
    token, version, found = mark.read_text(), _version(notebooks), {}
    for worker, answer in client.run(_look, str(mark), notebooks, on_error="return").items():
        if isinstance(answer, CommClosedError):  # just gone
            continue
        if isinstance(answer, BaseException):
            found[worker] = f"worker {worker} cannot run clamkit ({answer!r}): set the same checkout up there."
        elif answer[0] != token:
            found[worker] = (
                f"worker {worker} does not see the runs folder {mark.parent}: give --runs a folder that all machines "
                "share under the same path, such as a network drive."
            )
        elif len(answer) < 3 or answer[2] != version:
            found[worker] = f"worker {worker} has another version of clamkit or its notebooks: make them the same."
        elif not answer[1]:
            found[worker] = (
                f"worker {worker} does not see the locks of others in {mark.parent}, so that two machines would train "
                "one run: use a folder with working locks (NFS: mounted without nolock and local_lock)."
            )
    return found


def _not_here(run) -> str | None:
    """A network drive may take a minute to show what another machine wrote."""
    deadline = time.monotonic() + 60
    while not run.done:
        if time.monotonic() > deadline:
            return f"the worker finished it, but {run.folder} is not to be seen here"
        time.sleep(0.5)


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
        except TypeError as error:  # what Dask makes of a tls:// address without certificates
            raise ClamkitError(
                f"{address} wants TLS, and Dask knows no certificate of yours: docs/cluster.md says how to name it."
            ) from error
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or time.monotonic() > deadline:
                why = f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
                raise ClamkitError(
                    f"no Dask scheduler answers at {address} ({why}): start one there with `dask scheduler`, "
                    "and give --scheduler the tcp:// address that it prints."
                ) from error
            time.sleep(1)
