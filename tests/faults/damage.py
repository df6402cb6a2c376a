"""Runs whose files are damaged, disks that are full, folders without rights, clocks that are wrong."""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from clamkit.engine.loop import train
from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError
from tests.faults.trainings import EPOCHS, begun, configs, content, differ, ended, fork, torn


def readings(store: RunStore, run: RunFolder) -> dict:
    """All that the library reads of a run; a refusal in words is as good as the truth."""
    found = {}
    for name, read in {
        "config": lambda: run.config if run.done else run.config.identity(),  # all that has an effect
        "summary": lambda: run.summary,
        "history": lambda: run.history.to_numpy().tobytes(),
        "predictions": lambda: run.predictions.to_numpy().tobytes(),
        "logits": lambda: [values.tobytes() for values in run.logits],
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
                    count["wrong results"] += content(RunFolder(run.folder)) != right or bool(
                        RunFolder(run.folder).damaged()
                    )
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
        count["wrong results"] += differ(RunFolder(run.folder), RunStore(folder / "whole").run(config))
        before = store.frame()
        os.utime(run.folder / "DONE", (stamp, stamp))
        count["wrong results"] += not store.frame().equals(before)
        count["wrong results"] += RunFolder(run.folder).summary["seconds"] < 0
    return count
