"""One training, hurt in every way we know, then resumed: forked from a process that has imported everything already."""

import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from clamkit import runs
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.models import build_model
from clamkit.runs import RESULTS, Run, RunStore
from clamkit.train import train

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


def differ(one: Run, other: Run) -> bool:
    """Whether two runs are not the same bit for bit; says in what."""
    left, right = content(one), content(other)
    wrong = [key for key in left if left[key] != right[key]]
    if wrong:
        print(f"{one.folder}: not as it should be: {', '.join(wrong)}", file=sys.stderr)
    return bool(wrong)


def content(run: Run) -> dict:
    """What must be the same bit for bit: everything but the times."""
    state = run.load_checkpoint()
    tensors = {f"{part}.{key}": value for part in ("model", "weighter") for key, value in state[part].items()}
    for index, values in state["optimizer"]["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value for key, value in values.items() if torch.is_tensor(value)}
    return {
        "config": run.config,
        "history": run.history.to_numpy().tobytes(),
        "predictions": run.predictions.to_numpy().tobytes(),
        "summary": {key: value for key, value in run.summary.items() if key != "seconds"},
        "epochs": len(state["history"]),
        "tensors": {key: value.numpy().tobytes() for key, value in tensors.items()},
    }


def torn(folder: Path) -> list[str]:
    """Files of a run under their final name that are not whole; the notebooks of a sweep are not its files."""

    def history(path: Path) -> None:
        runs.read_history(path.read_bytes())

    def text(path: Path) -> None:
        json.loads(path.read_text())

    readers = {
        "config.json": text,
        "history.parquet": history,
        "predictions.parquet": pd.read_parquet,
        "summary.json": text,
        "checkpoint.pt": Run.read_checkpoint,
        "checkpoint.previous.pt": Run.read_checkpoint,
        "DONE": text,
    }
    assert set(RESULTS) < set(readers)
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
        found += Run(folder).damaged()
    return found


# ------------------------------------------------------------------------------- killed in the middle of things


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
        save = Run.save_checkpoint

        def saved(run, state):
            save(run, state)
            os.write(writing, bytes([len(state["history"])]))

        Run.save_checkpoint = saved
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
        count["leftovers"] += sum(1 for file in run.folder.iterdir() if file.name not in {*RESULTS, "DONE", ".lock"})
    return count


def sound_checkpoints(run: Run) -> list[dict]:
    found = []
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        with suppress(Exception):
            found.append(Run.read_checkpoint(run.folder / name))
    return found


# ------------------------------------------------------------------------------------------- damaged files


def begun(config: RunConfig, folder: Path, epochs: int) -> Run:
    """A run whose process died after some epochs."""

    def work():
        original = Run.save_history

        def stop(run, columns):
            original(run, columns)
            if len(columns["weight"]) == epochs:
                os.kill(os.getpid(), signal.SIGKILL)

        Run.save_history = stop
        train(config, runs=folder, progress=False)

    assert ended(fork(work)) == -signal.SIGKILL
    return RunStore(folder).run(config)


def readings(store: RunStore, run: Run) -> dict:
    """All that the library reads of a run; a refusal in words is as good as the truth."""
    found = {}
    for name, read in {
        "config": lambda: run.config if run.done else run.config.identity(),  # all that has an effect
        "summary": lambda: run.summary,
        "history": lambda: run.history.to_numpy().tobytes(),
        "predictions": lambda: run.predictions.to_numpy().tobytes(),
        "frame": lambda: store.frame().drop(columns="folder", errors="ignore").to_json(),
    }.items():
        try:
            found[name] = read()
        except ClamkitError:
            found[name] = None
    return found


def damaged(folder: Path, data: Path, flips: int, seed: int = 0) -> Counter:
    """Each file of a finished and of an unfinished run cut and with a bit flipped, in turn; read, then trained."""
    rng, count = random.Random(seed), Counter()
    config = configs(data, 1)[0]
    assert ended(fork(lambda: train(config, runs=folder / "whole", progress=False))) == 0
    whole = RunStore(folder / "whole").run(config)
    right = content(whole)
    begun(config, folder / "begun", EPOCHS - 2)
    os.environ["SAID"] = str(folder / "said")
    for state in ("whole", "begun"):
        source = RunStore(folder / state)
        true = readings(source, source.run(config))
        names = sorted(file.name for file in source.run(config).folder.iterdir() if not file.name.startswith("."))
        for name in names:
            for case in ["cut", *range(flips)]:
                shutil.rmtree(folder / "hurt", ignore_errors=True)
                shutil.copytree(folder / state, folder / "hurt")
                store = RunStore(folder / "hurt")
                run = store.run(config)
                raw = bytearray((run.folder / name).read_bytes())
                place = rng.randrange(len(raw))
                if case == "cut":
                    raw = raw[:place]
                else:
                    raw[place] ^= 1 << rng.randrange(8)
                times = (run.folder / name).stat()
                (run.folder / name).write_bytes(raw)
                if rng.random() < 0.5:  # bits that rot leave no trace in the times
                    os.utime(run.folder / name, ns=(times.st_atime_ns, times.st_mtime_ns))
                count["damaged files"] += 1
                seen = readings(store, run)
                count["wrong results"] += any(seen[key] not in (None, true[key]) for key in true)
                count["refused to read"] += any(seen[key] is None and true[key] is not None for key in true)
                code = ended(fork(lambda: train(config, runs=folder / "hurt", progress=False)))
                assert code in (0, 3), f"{name} {case}: ended with {code}"
                count["rebuilt"] += code == 0
                count["reported"] += code == 3
                if code == 0:
                    count["wrong results"] += content(Run(run.folder)) != right or bool(Run(run.folder).damaged())
    del os.environ["SAID"]
    return count


# ------------------------------------------------------------------------------ full disk, no rights, wrong clock


def refused(folder: Path, work: Callable[[], None]) -> bool:
    """Whether `work` ended with a sentence that names the folder it could not write to."""
    os.environ["SAID"] = str(folder / "said")
    (folder / "said").unlink(missing_ok=True)
    code = ended(fork(work))
    del os.environ["SAID"]
    assert code in (0, 3), f"ended with {code}"
    if code == 3:
        assert "cannot write to" in (folder / "said").read_text(), (folder / "said").read_text()
    return code == 3


def full_disk(folder: Path, data: Path, times: int, seed: int = 0) -> Counter:
    """A limit on the size of files, and (as root) a small file system that fills up at a random place."""
    rng, count = random.Random(seed), Counter()
    config = configs(data, 1)[0]
    assert ended(fork(lambda: train(config, runs=folder / "whole", progress=False))) == 0
    right = content(RunStore(folder / "whole").run(config))
    size = sum(file.stat().st_size for file in RunStore(folder / "whole").run(config).folder.iterdir())

    def limited(limit):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        train(config, runs=folder / "limited", progress=False)

    for _ in range(times):
        count["refused"] += refused(folder, partial(limited, rng.randrange(100, size)))
        count["torn files"] += len(torn(RunStore(folder / "limited").run(config).folder))
    assert ended(fork(lambda: train(config, runs=folder / "limited", progress=False))) == 0
    count["wrong results"] += content(RunStore(folder / "limited").run(config)) != right
    count["full disks"] += times
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        count["without a file system of its own"] += 1
        return count
    try:
        for _ in range(times):
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(max(0, free - rng.randrange(2 * size))))
            count["refused"] += refused(folder, lambda: train(config, runs=disk / "runs", progress=False))
            count["torn files"] += (
                len(torn(run.folder)) if (run := RunStore(disk / "runs").run(config)).folder.is_dir() else 0
            )
            ballast.unlink()
        assert ended(fork(lambda: train(config, runs=disk / "runs", progress=False))) == 0
        count["wrong results"] += content(RunStore(disk / "runs").run(config)) != right
        count["full disks"] += times
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    return count


def no_rights(folder: Path, data: Path) -> Counter:
    """A run folder that became read-only: said in words, still readable; goes on when it can be written again."""
    config, count = configs(data, 1)[0], Counter()
    run = begun(config, folder / "runs", 2)
    for path in (run.folder, *run.folder.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.parent.chmod(0o755)
    folder.chmod(0o777)  # for the sentence

    def work():
        if os.getuid() == 0:  # who may write everywhere
            train(config, runs=folder / "whole", progress=False)  # so that nothing is left to import as nobody
            os.setuid(65534)
        assert run.state == "stopped"
        assert len(run.history)
        train(config, runs=folder / "runs", progress=False)

    count["refused"] += refused(folder, work)
    count["wrong results"] += not count["refused"]
    for path in (run.folder, *run.folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for part in ("runs", "whole"):
        assert ended(fork(lambda part=part: train(config, runs=folder / part, progress=False))) == 0
    count["wrong results"] += differ(run, RunStore(folder / "whole").run(config))
    return count


def wrong_clock(folder: Path, data: Path) -> Counter:
    """Files from 1970 and from 2099, and a clock that runs backwards while training."""
    config, count = configs(data, 1)[0], Counter()
    assert ended(fork(lambda: train(config, runs=folder / "whole", progress=False))) == 0
    for year, stamp in (("past", 0), ("future", 4_070_908_800)):
        store = RunStore(folder / year)
        run = begun(config, store.root, 3)
        for path in (run.folder, *run.folder.iterdir()):
            os.utime(path, (stamp, stamp))

        def backwards():
            now = iter(range(2_000_000_000, 0, -3600))
            time.time = lambda: float(next(now))
            train(config, runs=store.root, progress=False)  # noqa: B023 — called before the next turn

        assert ended(fork(backwards)) == 0
        count["clock jumps"] += 1
        count["wrong results"] += differ(Run(run.folder), RunStore(folder / "whole").run(config))
        before = store.frame()
        os.utime(run.folder / "DONE", (stamp, stamp))
        count["wrong results"] += not store.frame().equals(before)
        count["wrong results"] += Run(run.folder).summary["seconds"] < 0
    return count
