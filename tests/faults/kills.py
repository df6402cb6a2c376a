"""One training, killed at random times and in the middle of its writes, each time resumed."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import torch

from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import LOGITS, RESULTS, RunFolder, RunStore
from tests.faults.trainings import configs, differ, ended, fork, torn


@contextmanager
def hooked(at: Callable[[str, Path | None], None]):
    """Call `at` before and after every write, flush, rename and removal a run makes; files half written, too."""

    def wrapped(function, name, half=None):
        def call(*args, **options):
            at(f"before {name}", None)
            result = function(*args, **options)
            at(f"after {name}", half(args) if half else None)
            return result

        return call

    places = [
        (os, "fsync", None),
        (os, "replace", None),
        (os, "unlink", None),
        (os, "rename", None),
        (torch, "save", lambda args: args[1]),
        (pd.DataFrame, "to_parquet", lambda args: args[1]),
        (Path, "write_text", lambda args: args[0]),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for (owner, name, function), (_, _, half) in zip(saved, places, strict=True):
        setattr(owner, name, wrapped(function, name, half))
    try:
        yield
    finally:
        for owner, name, function in saved:
            setattr(owner, name, function)


def writes_in(config: RunConfig, folder: Path) -> int:
    """How many moments `hooked` offers in an unbroken run."""
    reading, writing = os.pipe()

    def work():
        with hooked(lambda *_: os.write(writing, b".")):
            train(config, runs=folder, progress=False)

    pid = fork(work)
    os.close(writing)
    with open(reading, "rb") as pipe:
        count = len(pipe.read())
    assert ended(pid) == 0
    return count


def kill_once(config: RunConfig, folder: Path, rng: random.Random, moments: int, seconds: float) -> tuple[bool, int]:
    """Start or resume the run and kill it: at a random time, or at a random moment of its writes.

    Returns whether it was killed (else it came to its end) and how many epochs had been saved by then.
    """
    reading, writing = os.pipe()
    inside = rng.random() < 0.6
    left, cut = rng.randrange(moments), rng.random()

    def at(_, half):
        nonlocal left
        left -= 1
        if left == 0:
            if half is not None:  # as if the kill had come in the middle of the write
                os.truncate(half, int(cut * os.path.getsize(half)))
            os.kill(os.getpid(), signal.SIGKILL)

    def work():
        save = RunFolder.save_checkpoint

        def saved(run, state):
            save(run, state)
            os.write(writing, bytes([len(state["history"])]))

        RunFolder.save_checkpoint = saved
        if inside:
            with hooked(at):
                train(config, runs=folder, progress=False)
        else:
            train(config, runs=folder, progress=False)

    pid = fork(work)
    os.close(writing)
    if not inside:
        time.sleep(rng.uniform(0, seconds))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    code = ended(pid)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    assert code in (0, -signal.SIGKILL), f"ended with {code}"
    return code != 0, max(told, default=0)


def killed(folder: Path, data: Path, kills: int, seed: int = 0) -> Counter:
    """SIGKILL after SIGKILL, each followed by a resume, until every run is finished; against unbroken runs."""
    rng, count = random.Random(seed), Counter()
    number = 0
    while count["kills"] < kills:
        config = configs(data, number + 1)[number]
        number += 1
        moments = writes_in(config, folder / "whole")
        started = time.monotonic()
        assert ended(fork(lambda c=config: train(c, runs=folder / "again", progress=False))) == 0
        seconds = time.monotonic() - started
        run, saved = RunStore(folder / "killed").run(config), 0
        # kills come early in what is left, so that there are many in a training
        while True:
            was_killed, told = kill_once(config, folder / "killed", rng, max(2, moments // 3), 0.5 * seconds)
            if not was_killed:
                break
            count["kills"] += 1
            saved = max(saved, told)
            there = max((len(state["history"]) for state in sound_checkpoints(run)), default=0)
            count["lost epochs"] += max(0, saved - there)
            count["torn files"] += len(torn(run.folder)) if run.folder.is_dir() else 0
            count["resumes"] += there > 0
        count["trainings"] += 1
        count["wrong results"] += differ(run, RunStore(folder / "whole").run(config))
        count["leftovers"] += sum(
            1 for file in run.folder.iterdir() if file.name not in {*RESULTS, LOGITS, "DONE", ".lock"}
        )
    return count


def sound_checkpoints(run: RunFolder) -> list[dict]:
    found = []
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        with suppress(Exception):
            found.append(RunFolder.read_checkpoint(run.folder / name))
    return found
