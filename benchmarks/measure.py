"""Measuring: jobs that take turns, CPU time of other processes, and the line of the table that comes out.

A ratio is taken within each turn, so that a noisy machine slows both sides alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike


def interleaved(turns: int, *, warm_up: int = 1, **jobs: Callable[[], object]) -> pd.DataFrame:
    """Seconds of each job in each turn, one row a turn; the turns that warm up are not counted."""
    times = [{name: seconds(job) for name, job in jobs.items()} for _ in range(warm_up + turns)]
    return pd.DataFrame(times[warm_up:])


def seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def cpu_seconds(turns: int, words: list[str], environment: Mapping[str, str] | None = None) -> list[float]:
    """User and system time of `python <words>` in each turn, after one that warms up: the whole process, its start too.

    What waits, and what else the machine does, is not in it.
    """
    found = []
    for _ in range(1 + turns):
        full = os.environ | (environment or {})
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env=full)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        found.append(usage.ru_utime + usage.ru_stime)
    return found[1:]


def row(what: str, values: ArrayLike, sign: str = "", goal: float | None = None) -> dict:
    """One line of the table: the median, the quartiles, and whether the goal is met."""
    low, value, high = (float(q) for q in np.quantile(np.atleast_1d(values), [0.25, 0.5, 0.75]))
    met = None if goal is None else bool(value >= goal if sign == "≥" else value <= goal)
    return {"what": what, "value": value, "low": low, "high": high, "sign": sign, "goal": goal, "met": met}


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def child(function: Callable[..., object], *args: object) -> object:
    """What a function of the bench returns in a process of its own."""
    code = (
        f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from {function.__module__} import "
        f"{function.__name__} as function; print(json.dumps(function(*json.loads(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, json.dumps(args)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])
