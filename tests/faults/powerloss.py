"""Power cuts: every state of the disk that one may leave, as far as POSIX allows, opened by the library.

What a program may rely on after a power cut:
- the content of a file up to its last fsync; what was written since may be there, not, cut off, or zeros;
- the names in a folder up to the folder's last fsync; each file made, renamed or removed since is there or not, one
  whatever became of the others. A rename is one step: never neither or both of its names.
A folder's own name is in the folder above it.
"""

import itertools
import math
import operator
import os
import random
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.files import sha256
from clamkit.lab import results
from clamkit.lab.grids import Grid
from clamkit.lab.runner import plan, sweep
from tests.faults import quick
from tests.faults.quick import content

EPOCHS = 3
ROOT = 0  # the number of the outermost folder
Tree = dict[str, bytes | None]  # by path: the content of a file, None for a folder


class Step(NamedTuple):
    """One thing that was done to a file or folder, which are told apart by numbers as they outlive their names."""

    kind: str  # names, data, flush, said; start: what came before is safe
    number: int  # of the folder whose names changed, or of the file or folder that was written or flushed
    what: object = None  # names: {name: number or None}; data: bytes; said: what the library has promised by now


class Recorder:
    """All that happens to files below `root`, in order.

    Flushes, renames and removals are seen as they are called; before each, the tree is looked through for what was made
    or written since, in whichever language. `deaf`: a kind of flush ("file", "folder") that is taken for not done.
    """

    def __init__(self, root: Path, deaf: str = ""):
        self.root, self.deaf = root, deaf
        self.steps: list[Step] = []
        self.numbers = {"": ROOT}
        self.seen: dict[str, tuple] = {}
        self.look()
        for number in list(self.numbers.values()):  # what is there at the start is safe
            self.steps.append(Step("flush", number))
        self.steps.append(Step("start", ROOT))

    def say(self, key: tuple, value: object = True) -> None:
        self.look()
        self.steps.append(Step("said", ROOT, (key, value)))

    def look(self) -> None:
        for folder, folders, files in os.walk(self.root):
            for name in sorted(folders) + sorted(files):
                path = os.path.join(folder, name)
                known, about = self.name(path), os.stat(path)
                made = known not in self.numbers
                number = self.numbers.setdefault(known, len(self.steps) + 1)  # never given twice
                now = (about.st_ino, about.st_size, about.st_mtime_ns)
                if stat.S_ISREG(about.st_mode) and self.seen.get(known) != now:
                    self.seen[known] = now
                    self.steps.append(Step("data", number, Path(path).read_bytes()))
                if made:
                    self.rename(folder, {name: number})

    def name(self, path: str | os.PathLike) -> str:
        shown = os.path.relpath(os.path.abspath(path), self.root)
        return "" if shown == "." else shown

    def rename(self, folder: str | os.PathLike, names: dict) -> None:
        self.steps.append(Step("names", self.numbers[self.name(folder)], names))

    @contextmanager
    def recording(self) -> Iterator[None]:
        fsync, unlink = os.fsync, os.unlink

        def flushed(file):
            self.look()
            fsync(file)
            about = os.fstat(file)
            kind = "folder" if stat.S_ISDIR(about.st_mode) else "file"
            for known, number in self.numbers.items():
                if kind != self.deaf and os.stat(self.root / known).st_ino == about.st_ino:
                    self.steps.append(Step("flush", number))

        def renamed(function):
            def call(source, target):
                self.look()
                function(source, target)
                old, new = self.name(source), self.name(target)
                assert os.path.dirname(old) == os.path.dirname(new), "a rename from folder to folder is not modelled"
                self.numbers[new], self.seen[new] = self.numbers.pop(old), self.seen.pop(old)
                self.rename(os.path.dirname(target), {Path(old).name: None, Path(new).name: self.numbers[new]})

            return call

        def removed(path, **options):
            self.look()
            unlink(path, **options)
            if self.numbers.pop(self.name(path), None):  # the lock of a folder elsewhere
                self.seen.pop(self.name(path))
                self.rename(os.path.dirname(path), {Path(path).name: None})

        hooks = {"fsync": flushed, "unlink": removed, "rename": renamed(os.rename), "replace": renamed(os.replace)}
        with mock.patch.multiple(os, **hooks):
            yield
        self.look()


# ------------------------------------------------------------------------------------------- what a cut may leave


class Disk:
    """What is safe on the disk, and what is only on its way there."""

    def __init__(self):
        self.names: dict[tuple[int, str], int] = {}  # (folder, name): number
        self.pending: list[tuple[int, dict]] = []  # changes of the names in a folder
        self.data: dict[int, list[bytes]] = {}  # contents of a file: the flushed one, those written since

    def do(self, step: Step) -> None:
        if step.kind == "names":
            self.pending.append((step.number, step.what))
        elif step.kind == "data":
            self.data.setdefault(step.number, [b""]).append(step.what)
        elif step.kind == "flush":
            if step.number in self.data:
                self.data[step.number] = self.data[step.number][-1:]
            for folder, change in self.pending:
                if folder == step.number:
                    self.apply(self.names, folder, change)
            self.pending = [(folder, change) for folder, change in self.pending if folder != step.number]

    @staticmethod
    def apply(names: dict, folder: int, change: dict) -> None:
        names.update({(folder, name): number for name, number in change.items()})

    def cuts(self, limit: int, rng: random.Random) -> Iterator[Tree]:
        """The trees that a cut at this moment may leave: all of them, or about `limit` where there are more."""
        open_files = [number for number, contents in self.data.items() if len(contents) > 1]
        choices = [(True, False)] * len(self.pending) + [variants(self.data[number]) for number in open_files]
        few = math.prod(map(len, choices)) <= limit
        for pick in itertools.product(*choices) if few else self.some(choices, limit, rng):
            yield self.tree(pick[: len(self.pending)], dict(zip(open_files, pick[len(self.pending) :], strict=True)))

    def some(self, choices: list[tuple], limit: int, rng: random.Random) -> list[tuple]:
        """Half of them each prefix of what is pending, each one missing, each one alone; half at random."""
        count, newest = len(self.pending), tuple(options[0] for options in choices[len(self.pending) :])
        likely = [
            (*(kept(i, j) for j in range(count)), *newest)
            for kept in (operator.gt, operator.ne, operator.eq)
            for i in range(count + 1)
        ]
        random_ones = [tuple(rng.choice(options) for options in choices) for _ in range(limit)]
        return rng.sample(likely, min(len(likely), -(-limit // 2))) + random_ones[: limit // 2]

    def tree(self, kept: tuple[bool, ...], contents: dict[int, bytes]) -> Tree:
        names = dict(self.names)
        for (folder, change), there in zip(self.pending, kept, strict=True):
            if there:
                self.apply(names, folder, change)
        below: dict[int, list] = {}
        for (folder, name), number in names.items():
            if number is not None:
                below.setdefault(folder, []).append((name, number))
        tree: Tree = {}

        def walk(folder: int, path: str) -> None:
            for name, number in below.get(folder, ()):
                tree[path + name] = contents.get(number, self.data[number][0] if number in self.data else None)
                if number not in self.data:
                    walk(number, f"{path}{name}/")

        walk(ROOT, "")
        return tree


def variants(contents: list[bytes]) -> tuple[bytes, ...]:
    """Of a file that was written and not flushed: what was written, cut off, zeros, half of it zeros, or before."""
    last = contents[-1]
    half = len(last) // 2
    return tuple(dict.fromkeys((last, last[:half], bytes(len(last)), last[:half] + bytes(half), *contents)))


def shown(tree: Tree) -> list[tuple[str, bytes | None]]:
    """What tells one tree from another; a lock file says nothing."""
    return sorted((path, content) for path, content in tree.items() if not path.endswith("lock"))


def states(steps: list[Step], limit: int, seed: int) -> Iterator[tuple[Tree, dict]]:
    """Distinct trees, each with what the library had promised when the power was cut."""
    disk, promised, rng, seen = Disk(), {}, random.Random(seed), set()
    start = next(place for place, step in enumerate(steps) if step.kind == "start")
    for place, step in enumerate(steps):
        disk.do(step)
        if step.kind == "said":
            key, value = step.what
            promised[key] = value
        if place < start or step.kind == "flush":
            continue  # it leaves nothing that could not have been left before
        for tree in disk.cuts(limit, rng):
            key = sha256(repr((shown(tree), sorted(map(repr, promised.items())))).encode())
            if key not in seen:
                seen.add(key)
                yield tree, dict(promised)


# --------------------------------------------------------------------------------------------- what must hold then


class Truth(NamedTuple):
    grid: Grid
    runs: dict[RunConfig, dict]  # `content` of the unbroken ones
    elsewhere: dict[str, dict]  # what had been committed before, by run: of another machine
    committed: dict[str, dict]  # what is committed of the runs made here


def write(tree: Tree, place: Path) -> None:
    place.mkdir()
    for path, raw in tree.items():  # a folder comes before what is in it
        (place / path).mkdir() if raw is None else (place / path).write_bytes(raw)


def read(reader: Callable) -> object:
    """What the library says, or None where it refuses in words. Any other exception ends the test."""
    try:
        return reader()
    except ClamkitError:
        return None


def check(place: Path, promised: dict, truth: Truth, hurt_before: bool) -> Counter:
    """Open what a cut left: nothing wrong, nothing that claims to be done and is not, nothing promised and lost."""
    count, store = Counter(), RunStore(place / "runs")
    said = read(lambda: plan(truth.grid, store.root))
    said = [None] * len(truth.runs) if said is None else said["state"].tolist()
    for (config, true), state in zip(truth.runs.items(), said, strict=True):
        run = store.run(config)
        done = run.done and not run.damaged()
        count["claims to be done"] += (run.done and not done and not hurt_before) or (state == "done" and not done)
        for name, reader in {
            "config": lambda run=run: run.config.identity(),
            "summary": lambda run=run: {key: value for key, value in run.summary.items() if key != "seconds"},
            "predictions": lambda run=run: run.predictions.to_numpy().tobytes(),
            "logits": lambda run=run: [values.tobytes() for values in run.logits],
        }.items():
            count["wrong results"] += read(reader) not in (None, true[name])
        history = read(lambda run=run: run.history.to_numpy().tobytes())
        count["wrong results"] += history is not None and not true["history"].startswith(history)
        count["wrong results"] += done and history != true["history"]
        count["lost runs"] += ("done", config) in promised and not done
        count["lost epochs"] += quick.saved_epochs(run) < promised.get(("saved", config), 0)
    count["wrong results"] += wrong_rows(store, truth)
    count += check_committed(promised, truth)
    return count


def wrong_rows(store: RunStore, truth: Truth) -> bool:
    """Whether the table has a wrong number, read for the first time or by its index."""
    averages = {config.seed: true["summary"]["average"] for config, true in truth.runs.items()}
    for _ in range(2):
        frame = read(store.frame)
        if frame is not None and len(frame) and frame.set_index("seed")["average"].to_dict().items() - averages.items():
            return True
    return False


def committed_content(run: results.CommittedRun) -> dict:
    average, history = run.summary["average"], run.history.to_numpy().tobytes()
    return {"average": average, "history": history, "final": run.test_accuracy.tolist(), "names": run.class_names}


def check_committed(promised: dict, truth: Truth) -> Counter:
    count = Counter()
    found = read(lambda: {run.name: committed_content(run) for run in results.committed_runs("tiny")})
    count["wrong results"] += found is None  # nobody damaged them
    found = found or {}
    before = {} if ("committed",) in promised else truth.elsewhere
    for name, seen in found.items():
        count["wrong results"] += seen not in (truth.committed[name], before.get(name))
    count["claims to be done"] += bool(results.committed_seconds().keys() - found.keys())
    count["lost runs"] += ("committed",) in promised and found != truth.committed
    return count


def recover(place: Path, truth: Truth) -> Counter:
    """The same commands again: everything there, to the bit."""
    count, store = Counter(), RunStore(place / "runs")
    for config, true in truth.runs.items():
        run = train(config, runs=store.root, progress=False)
        count["wrong results"] += content(run) != true or bool(run.damaged())
        count["leftovers"] += len(list(run.folder.glob("*.tmp"))) + (run.folder / "checkpoint.previous.pt").exists()
    results.save("tiny", map(store.run, truth.runs))
    count["wrong results"] += not all(content(run) in truth.runs.values() for run in store.runs())
    count["recovered"] += 1
    return count


# ----------------------------------------------------------------------------------------------------- what is cut


def begin(config: RunConfig, runs: Path, epochs: int) -> RunFolder:
    """A run that was killed when it had saved so many epochs."""

    def watch(history, _):
        if len(history) > epochs:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        train(config, runs=runs, progress=False, watch=watch)
    return RunStore(runs).run(config)


class Scenario(NamedTuple):
    before: Callable[[list[RunConfig], Path], None]  # what lies safe on the disk
    work: Callable[[Grid, Path, Callable], None]  # what is done until the power is cut: (grid, runs folder, say)


def train_one(grid, runs, say):
    config = grid.configs()[0]
    train(config, runs=runs, progress=False)
    say(("done", config))


def train_twice(grid, runs, say):
    """Begun by a process that dies, finished by another one."""
    begin(grid.configs()[1], runs, 1)
    train_one(grid, runs, say)
    train(grid.configs()[1], runs=runs, progress=False)
    say(("done", grid.configs()[1]))


def damage_one(configs, runs):
    run = train(configs[0], runs=runs, progress=False)
    for name in ("summary.json", "checkpoint.pt"):
        (run.folder / name).write_bytes((run.folder / name).read_bytes()[:-9])


def fail_one(configs, runs):
    (begin(configs[1], runs, 2).folder / "failed.txt").write_text("why")


def sweep_all(grid, runs, say):
    sweep(grid, runs=runs, jobs=1, progress=False)
    for config in grid.configs():
        say(("done", config))
    RunStore(runs).frame()


def sweep_one(configs, runs):
    train(configs[0], runs=runs, progress=False)
    train(configs[1], runs=runs, progress=False)


def commit(grid, runs, say):
    found = [RunStore(runs).run(config) for config in grid.configs()]
    results.save("tiny", found[:1])
    results.save("tiny", found)
    say(("committed",))


SCENARIOS = {
    "a run": Scenario(lambda configs, runs: None, train_one),
    "a run that goes on": Scenario(lambda configs, runs: begin(configs[0], runs, 1), train_one),
    "two runs, one killed": Scenario(lambda configs, runs: None, train_twice),
    "a damaged run made again": Scenario(damage_one, train_one),
    "a sweep": Scenario(fail_one, sweep_all),
    "clamkit results": Scenario(sweep_one, commit),
}


@contextmanager
def telling(say: Callable) -> Iterator[None]:
    """Every checkpoint that was saved is a promise."""
    save = RunFolder.save_checkpoint

    def saved(run, state):
        save(run, state)
        say(("saved", run.config), len(state["history"]))

    with mock.patch.object(RunFolder, "save_checkpoint", saved):
        yield


def cut(folder: Path, limit: int, recoveries: int = 1, seed: int = 0, deaf: str = "", only: str = "") -> Counter:
    """Record each scenario, enumerate its states, open each; every so many of them (`recoveries`) is gone on with.

    limit: states enumerated at one moment, at most, before those that are alike are left out.
    """
    count = Counter()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # thousands of small trees
    grid = quick.make(folder, 2, EPOCHS)
    for name, (before, work) in SCENARIOS.items():
        if only not in name:
            continue
        with tempfile.TemporaryDirectory(dir=memory) as place:
            root = Path(place) / "recorded"
            truth = prepare(folder, Path(place), grid, root, before)
            with quick.training(folder, root / "data"):
                recorder = Recorder(root, deaf)
                with recorder.recording(), telling(recorder.say):
                    work(grid, root / "runs", recorder.say)
            disks = set()
            for number, (tree, promised) in enumerate(states(recorder.steps, limit, seed)):
                here = Path(place) / str(number)
                write(tree, here)
                with quick.training(folder, here / "data"):
                    found = check(here, promised, truth, before is damage_one)
                    if number % recoveries == 0:
                        found += recover(here, truth)
                count += found
                count["states"] += 1
                disks.add(sha256(repr(shown(tree)).encode()))
                shutil.rmtree(here)
            count["different disks"] += len(disks)
            count["steps"] += len(recorder.steps)
    return count


def prepare(folder: Path, place: Path, grid: Grid, root: Path, before: Callable) -> Truth:
    """What lies on the disk at first, and what is true; committed before: the first run as another machine made it."""
    elsewhere, committed = {}, {}
    for scale, found in ((2.0, elsewhere), (1.0, committed)):
        with quick.training(folder, place / f"data{scale}", scale):
            runs = quick.unbroken(grid, place / f"runs{scale}")
            made = [RunStore(place / f"runs{scale}").run(config) for config in grid.configs()]
            results.save("tiny", made[:1] if scale == 2 else made)
            found |= {run.name: committed_content(run) for run in results.committed_runs("tiny")}
    root.mkdir()
    with quick.training(folder, root / "data"):
        before(grid.configs(), root / "runs")
    if before is sweep_one:
        shutil.copytree(place / "data2.0", root / "data")
    return Truth(grid, runs, elsewhere, committed)
