"""Trainings in forks of a process that has imported everything already, and what must be whole afterwards."""

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.models import build_model
from clamkit.engine.store import LOGITS, RESULTS, RunFolder, RunStore, read_history
from clamkit.errors import ClamkitError

METHODS = ("clam_kl", "normal", "apstar_mmpf", "ggf")
EPOCHS = 6


def warm() -> None:
    """Everything that is imported late, before the first fork; no gradient, which would forbid forks."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9, nesterov=True)
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    frame = pd.DataFrame({"x": [1.0]})
    pd.read_parquet(io.BytesIO(frame.to_parquet()))
    build_model("tiny_resnet", 3, 1, "small", 12).eval()(torch.zeros(1, 1, 12, 12))


def configs(data: Path, count: int) -> list[RunConfig]:
    fields = {"dataset": str(data), "epochs": EPOCHS, "batch_size": 20}
    return [RunConfig(method=METHODS[i % len(METHODS)], seed=i, **fields) for i in range(count)]


def fork(work: Callable[[], None]) -> int:
    """The process id of a child that does `work` and ends with 0, or 3 for a ClamkitError, whose text it keeps."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except ClamkitError as error:
        code = 3
        if said := os.environ.get("SAID"):
            Path(said).write_text(str(error))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def differ(one: RunFolder, other: RunFolder) -> bool:
    """Whether two runs are not the same bit for bit; says in what."""
    left, right = content(one), content(other)
    wrong = [key for key in left if left[key] != right[key]]
    if wrong:
        print(f"{one.folder}: not as it should be: {', '.join(wrong)}", file=sys.stderr)
    return bool(wrong)


def content(run: RunFolder) -> dict:
    """What must be the same bit for bit: everything but the times."""
    state = run.load_checkpoint()
    tensors = {f"{part}.{key}": value for part in ("model", "weighter") for key, value in state[part].items()}
    for index, values in state["optimizer"]["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in values.items() if torch.is_tensor(value)}
    return {
        "config": run.config,
        "history": run.history.to_numpy().tobytes(),
        "predictions": run.predictions.to_numpy().tobytes(),
        "logits": [values.tobytes() for values in run.logits],
        "summary": {key: value for key, value in run.summary.items() if key != "seconds"},
        "epochs": len(state["history"]),
        "tensors": {key: value.numpy().tobytes() for key, value in tensors.items()},
    }


def torn(folder: Path) -> list[str]:
    """Files of a run under their final name that are not whole; the notebooks of a sweep are not its files."""

    def history(path: Path) -> None:
        read_history(path.read_bytes())

    def text(path: Path) -> None:
        json.loads(path.read_text())

    readers = {
        "config.json": text,
        "history.parquet": history,
        "predictions.parquet": pd.read_parquet,
        LOGITS: lambda path: dict(np.load(path)),
        "summary.json": text,
        "checkpoint.pt": RunFolder.read_checkpoint,
        "checkpoint.previous.pt": RunFolder.read_checkpoint,
        "DONE": text,
    }
    assert {*RESULTS, LOGITS} < set(readers)
    found = []
    for name, read in readers.items():
        try:
            read(folder / name)
        except FileNotFoundError:
            continue
        except Exception as error:
            found.append(name)
            print(f"{folder / name} is torn: {error}", file=sys.stderr)
    if (folder / "DONE").is_file():
        found += RunFolder(folder).damaged()
    return found


def begun(config: RunConfig, folder: Path, epochs: int) -> RunFolder:
    """A run whose process died after some epochs."""

    def work():
        original = RunFolder.save_history

        def stop(run, columns):
            original(run, columns)
            if len(columns["weight"]) == epochs:
                os.kill(os.getpid(), signal.SIGKILL)

        RunFolder.save_history = stop
        train(config, runs=folder, progress=False)

    assert ended(fork(work)) == -signal.SIGKILL
    return RunStore(folder).run(config)
