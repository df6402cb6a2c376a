"""Many runs: how long the library takes to find and read them, and in how much memory.

python -m tests.faults.load FOLDER COUNT …            makes so many runs in FOLDER/<count>, if they are not there, and
measures each command in a process of its own, start-up and imports included. Cold is without what is kept of a run.
python -m tests.faults.load FOLDER COUNT committed    makes committed results of so many runs and measures reading them,
without start-up and imports.
"""

import itertools
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from clamkit.engine.config import WITHOUT_EFFECT, RunConfig
from clamkit.engine.store import COLUMNS, RESULTS
from clamkit.files import sha256
from clamkit.lab import results
from clamkit.lab.grids import Grid

ROOT = Path(__file__).resolve().parents[2]
FRAME = "import sys; from clamkit import RunStore; assert len(RunStore(sys.argv[1]).frame()) == int(sys.argv[2])"
EXPLORER = """import sys; sys.path.append("notebooks"); from helpers.runs_explorer import find_runs
assert (find_runs(sys.argv[1])[0]["source"] == "runs folder").sum() == int(sys.argv[2])"""
READ = {"seconds": None, "history": None, "one run": lambda name: [name], "all runs": lambda name: None}
METHODS = ("normal", "clam", "tce", "ggf", "maxmin")
STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SUMMARY = {"average": 0.8, "std": 0.1, "cov": 0.125, "range": 0.3, "decile_range": 0.3, "worst": 0.6, "best": 0.9}


def grid(count: int) -> dict:
    """The grid that `make_runs` makes the runs of: `count` must be a multiple of 40."""
    axes = {"method": list(METHODS), "crop_lower_bound": list(STRENGTHS), "seed": list(range(count // 40))}
    return {"axes": axes}


def make_runs(root: Path, count: int) -> None:
    """Finished runs as a sweep leaves them, with nothing in the files that the tables do not read."""
    seeds = range(-(-count // 40))
    for i, (seed, strength, method) in enumerate(itertools.islice(itertools.product(seeds, STRENGTHS, METHODS), count)):
        config = RunConfig(method=method, crop_lower_bound=strength, seed=seed)
        folder = root / config.folder()
        folder.mkdir(parents=True)
        summary = SUMMARY | {"seconds": 60.0, "class_names": [f"class {k}" for k in range(10)], "average": i / count}
        files = dict.fromkeys(RESULTS, b"x") | {
            "config.json": json.dumps(config.model_dump()).encode(),
            "summary.json": json.dumps(summary).encode(),
        }
        files["DONE"] = json.dumps({name: sha256(raw) for name, raw in files.items()}).encode()
        for name, raw in files.items():
            (folder / name).write_bytes(raw)


def make_results(folder: Path, count: int) -> None:
    """Committed results as `clamkit results` leaves them: histories of 5 epochs and 10 classes, made up."""
    configs = {config.folder().as_posix(): config for config in Grid.parse("many", grid(count)).configs()}
    names = sorted(configs)
    fields = {key: [getattr(configs[name], key) for name in names] for key in (*RunConfig.model_fields, "strength")}
    rows = pd.DataFrame({"run": names} | fields | SUMMARY | {"seconds": 60.0}).drop(columns=list(WITHOUT_EFFECT))
    epoch, label = np.indices((5, 10), dtype=np.int16).reshape(2, -1)
    histories = {"run": np.repeat(names, 50), "epoch": np.tile(epoch + 1, count), "class": np.tile(label, count)}
    numbers = np.random.default_rng(0).random((7, 50 * count), dtype=np.float32)
    columns = (*COLUMNS, results.FINAL, results.BIASED, results.HELD_OUT)
    folder.mkdir()
    results.folder = lambda: folder
    results._commit("many", rows, pd.DataFrame(histories | dict(zip(columns, numbers, strict=True))), {})


def read_results(folder: Path, what: str) -> None:
    """Read committed results; print the CPU seconds, and the peak of memory of the whole process."""
    results.folder = lambda: folder
    name = pd.read_csv(folder / "many.csv", usecols=["run"])["run"].iloc[-1]
    started = time.process_time()
    if what == "seconds":
        results.committed_seconds()
    elif what == "history":
        assert len(results.histories_of("many", [name])) == 50
    else:
        assert all(len(run.class_names) == 10 for run in list(results.committed_runs("many", READ[what](name)))[-1:])
    found = {"cpu_s": round(time.process_time() - started, 2), "memory_mb": round(peak_mb())}
    print(json.dumps({"committed": folder.name, "what": what} | found), flush=True)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(command: list[str]) -> dict[str, float]:
    """CPU seconds, seconds on the clock and the peak of memory of a process."""
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, command
    seconds = time.monotonic() - started
    return {"cpu_s": used.ru_utime + used.ru_stime, "clock_s": seconds, "memory_mb": used.ru_maxrss / 1024}


def commands(root: Path, count: int) -> dict[str, list[str]]:
    python, given = [sys.executable], [str(root), str(count)]
    table = [*python, "-c", FRAME, *given]
    described = root.parent / f"{count}.yaml"
    described.write_text(json.dumps(grid(count)))
    planning = [*python, "-m", "clamkit", "sweep", str(described), "--runs", str(root), "--dry-run"]
    return {
        "status": [*python, "-m", "clamkit", "status", "--runs", str(root)],
        "frame, cold": table,
        "frame, warm": table,
        "sweep --dry-run, cold": planning,
        "sweep --dry-run, warm": planning,
        "runs explorer": [*python, "-c", EXPLORER, *given],
    }


def main(place: Path, counts: list[int], only: list[str]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for count in counts if only == ["committed"] else ():
        folder = place / f"committed{count}"
        for job in [*([] if folder.is_dir() else [(make_results, count)]), *((read_results, what) for what in READ)]:
            process = multiprocessing.get_context("spawn").Process(target=job[0], args=(folder, job[1]))
            process.start()
            process.join()
            assert not process.exitcode
    for count in counts if only != ["committed"] else ():
        root = place / str(count)
        if not root.is_dir():
            make_runs(root, count)
        for name, command in commands(root, count).items():
            if only and name not in only:
                continue
            if name.endswith("cold"):
                (root / (".index.json" if "frame" in name else ".checked.json")).unlink(missing_ok=True)
            found = {key: round(value, 1) for key, value in measure(command).items()}
            print(json.dumps({"runs": count, "what": name} | found), flush=True)


if __name__ == "__main__":
    words = sys.argv[2:]
    main(Path(sys.argv[1]), [int(word) for word in words if word.isdigit()], [w for w in words if not w.isdigit()])
