"""Many runs: how long the library takes to find and read them, and in how much memory.

python -m tests.faults.load FOLDER COUNT …            makes so many runs in FOLDER/<count>, if they are not there, and
measures each command in a process of its own, start-up and imports included. Cold is without what is kept of a run.
python -m tests.faults.load FOLDER COUNT committed    makes committed results of so many runs and measures reading them,
without start-up and imports.
"""

import itertools
import json
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
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
# a small process, as the memory of the one that starts it counts with that of a command
MEASURED = """import json, resource, subprocess, sys, time; started = time.monotonic()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); used = resource.getrusage(resource.RUSAGE_CHILDREN)
took = {"cpu_s": used.ru_utime + used.ru_stime, "clock_s": time.monotonic() - started}
print(json.dumps(took | {"memory_mb": used.ru_maxrss / 1024}))"""
READ = {"seconds": None, "history": None, "one run": lambda name: [name], "all runs": lambda name: None}
METHODS = ("normal", "clam", "tce", "ggf", "maxmin")
STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
STATUS_S = 5.0  # CPU seconds that `clamkit status` may take of 100,000 runs
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
    columns = (*COLUMNS, *results.FINALS)
    numbers = np.random.default_rng(0).random((len(columns), 50 * count), dtype=np.float32)
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
    """The most memory of this process; `getrusage` would count that of the process which started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure(command: list[str]) -> dict[str, float]:
    """CPU seconds, seconds on the clock and the peak of memory of a process."""
    result = subprocess.run([sys.executable, "-S", "-c", MEASURED, *command], cwd=ROOT, stdout=subprocess.PIPE)
    assert result.returncode == 0, command
    return json.loads(result.stdout)


def commands(root: Path, count: int) -> dict[str, list[str]]:
    python, given = [sys.executable], [str(root), str(count)]
    table = [*python, "-c", FRAME, *given]
    described = root.parent / f"{count}.yaml"
    described.write_text(json.dumps(grid(count)))
    planning = [*python, "-m", "clamkit", "sweep", str(described), "--runs", str(root), "--dry-run"]
    listing = [*python, "-m", "clamkit", "status", "--runs", str(root)]
    return {
        "status": listing,
        "status, again": listing,
        "frame, cold": table,
        "frame, warm": table,
        "sweep --dry-run, cold": planning,
        "sweep --dry-run, warm": planning,
        "runs explorer": [*python, "-c", EXPLORER, *given],
    }


def measured(root: Path, count: int, only: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """(name, what it took) of each command on so many runs, which are made where they are not there."""
    if not root.is_dir():
        make_runs(root, count)
    for name, command in commands(root, count).items():
        if only and name not in only:
            continue
        if name.endswith("cold"):
            (root / (".index.json" if "frame" in name else ".checked.json")).unlink(missing_ok=True)
        yield name, {key: round(value, 1) for key, value in measure(command).items()}


def read_committed(folder: Path, count: int) -> None:
    """Committed results of so many runs, made where they are not there, and read in every way; prints what it took."""
    for job in [*([] if folder.is_dir() else [(make_results, count)]), *((read_results, what) for what in READ)]:
        process = multiprocessing.get_context("spawn").Process(target=job[0], args=(folder, job[1]))
        process.start()
        process.join()
        assert not process.exitcode


def curve(place: Path, counts: list[int]) -> Counter:
    """The commands on more and more runs, each printed.

    Too slow: more than ten times the seconds or memory for ten times the runs, or a status that takes too long.
    """
    count, took = Counter({"too slow": 0}), {}
    for runs in counts:
        for name, found in measured(place / str(runs), runs, []):
            print(json.dumps({"runs": runs, "what": name} | found), flush=True)
            tenth = took.get((name, runs // 10), found)
            count["too slow"] += any(found[key] > 10 * tenth[key] for key in ("cpu_s", "memory_mb"))
            took[name, runs] = found
    read_committed(place / f"committed{runs}", runs)
    status = min(took[name, runs]["cpu_s"] for name in ("status", "status, again"))
    count.update({"runs": runs, "committed runs": runs, "CPU seconds for their status": status})
    count["too slow"] += status > STATUS_S
    return count


def main(place: Path, counts: list[int], only: list[str]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for count in counts:
        if only == ["committed"]:
            read_committed(place / f"committed{count}", count)
            continue
        for name, found in measured(place / str(count), count, only):
            print(json.dumps({"runs": count, "what": name} | found), flush=True)


if __name__ == "__main__":
    words = sys.argv[2:]
    main(Path(sys.argv[1]), [int(word) for word in words if word.isdigit()], [w for w in words if not w.isdigit()])
