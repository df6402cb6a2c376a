"""Processes of one training: forks of a process that has imported torch, where the system has forks."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path

from torch.multiprocessing import start_processes

from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
multiprocessing.set_forkserver_preload(["tests.ranks"])


def two_ranks(work: Callable, *given) -> dict:
    """Call work(rank, port, …, results) in two processes; what they put into `results`, by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with multiprocessing.get_context(METHOD).Manager() as manager:
        results = manager.dict()
        start_processes(work, args=(port, *given, results), nprocs=2, start_method=METHOD)
        return dict(results)


def training_rank(rank: int, port: int, config: RunConfig, runs: Path, results: dict) -> None:
    """Work for `two_ranks`: one of two processes of a training, with the variables that torchrun gives it."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"TORCHELASTIC_RUN_ID": "forks", "MASTER_ADDR": "127.0.0.1"}
    results[rank] = train(config, runs=runs, device="cpu", progress=False).done
