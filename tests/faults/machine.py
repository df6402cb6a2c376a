"""The store as a state machine: processes train, die, resume, sweep and commit in any order; files are hurt between.

Against a model that knows little: which runs are finished, how many epochs of the others were saved, what is hurt and
what is committed. A process that is killed does nothing more from then on, and its lock is let go.
"""

import io
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from filelock import FileLock
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from clamkit.engine import store
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.lab import results
from clamkit.lab.runner import plan, sweep
from tests.faults import quick
from tests.faults.kills import hooked
from tests.faults.powerloss import committed_content, read, telling

RUNS = 2
EPOCHS = 3
STEPS = 50  # of one walk, at most
WHICH = st.integers(0, RUNS - 1)
CUT = st.floats(0, 1)


class Moment(NamedTuple):
    """When a process is killed: at its n-th write, flush, rename or removal, counted from its k-th checkpoint on."""

    checkpoint: int  # 0: from the start
    n: int


INSIDE = 2  # the moment in which a checkpoint is half written
EPOCH, END = 18, 58  # moments from one checkpoint to the next, and from the last to the end
LATER = [Moment(epoch, n) for epoch in range(1, EPOCHS + 1) for n in [INSIDE] * 8 + list(range(1, EPOCH + 1))]
LAST = [Moment(start, n) for start, first in ((0, 1), (EPOCHS, EPOCH + 1)) for n in range(first, END + 1)]
MOMENT = st.sampled_from([*[None] * 15, *LATER, *LAST])


class Killed(BaseException):
    """What a process feels of SIGKILL."""


@contextmanager
def killed_at(moment: Moment | None, cut: float) -> Iterator[Callable[[], bool]]:
    """Ends the block at that moment, a file that is being written cut off there."""
    before, left = moment or Moment(0, 10**9)

    def at(what, half) -> None:
        nonlocal before, left
        before -= what == "before save"
        left -= before <= 0
        if left == 0 and half is not None:
            os.truncate(half, int(cut * os.path.getsize(half)))
        if left <= 0:  # a dead process does not tidy up either
            raise Killed

    try:
        with hooked(at):
            yield lambda: left <= 0
    except Killed:
        pass


def walk(folder: Path, walks: int, *, random: bool = False, shorten: bool = True) -> Counter:
    """So many walks of up to STEPS steps; raises at the first that is wrong, with the shortest way to it."""
    count = Counter()
    grid = quick.make(folder, RUNS, EPOCHS)
    configs, memory = grid.configs(), "/dev/shm" if os.path.isdir("/dev/shm") else None
    names = [config.folder().as_posix() for config in configs]
    with quick.training(folder, folder / "data"):
        true = quick.unbroken(grid, folder / "whole")
        results.save(grid.name, RunStore(folder / "whole").runs())
        committed = {run.name: committed_content(run) for run in results.committed_runs(grid.name)}

    class Store(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.place = Path(tempfile.mkdtemp(dir=memory))
            self.store = RunStore(self.place / "runs")
            self.patches = quick.training(folder, self.place / "data")
            self.patches.__enter__()
            self.done: set[RunConfig] = set()
            self.hurt: set[RunConfig] = set()  # damaged since it was written
            self.saved: Counter[RunConfig] = Counter()  # epochs
            self.committed: set[str] = set()
            self.looked_at: dict[RunConfig, tuple] = {}

        def teardown(self) -> None:
            self.patches.__exit__(None, None, None)
            shutil.rmtree(self.place)

        def run(self, which: int) -> RunFolder:
            return self.store.run(configs[which])

        def all_of(self, which: int) -> tuple:
            """The files of a run, and what the model says of it."""
            config, folder = configs[which], self.run(which).folder
            files = {file.name: file.read_bytes() for file in folder.glob("*") if file.is_file()}
            return files, config in self.done, config in self.hurt, self.saved[config]

        def begun(self, which: int) -> bool:
            return 0 < self.saved[configs[which]] < EPOCHS

        def finished(self, which: int) -> None:
            self.hurt.discard(configs[which])
            self.done.add(configs[which])
            self.saved[configs[which]] = EPOCHS

        def told(self, key: tuple, value: int) -> None:
            self.saved[key[1]] = value

        def seen(self, work: Callable[[], object], moment: Moment | None, cut: float) -> bool:
            """Whether `work` came to its end before it was killed."""
            with killed_at(moment, cut) as dead, telling(self.told), redirect_stdout(io.StringIO()):
                work()
            count["kills"] += dead()
            return not dead()

        def found_out(self) -> None:
            """After a kill: what was finished in time is, what was hurt may have been repaired or set aside."""
            for which, config in enumerate(configs):
                run = self.run(which)
                if run.done and not run.damaged():
                    self.finished(which)
                elif config in self.hurt and not run.done:  # its DONE was taken away, to be made again
                    self.done.discard(config)

        def make(self, which: int) -> None:
            """Train, or go on; a config that was hurt so that it reads as another one is refused, and moved away."""
            try:
                train(configs[which], runs=self.store.root, progress=False)
            except ClamkitError as error:
                self.refused(which, str(error))
                train(configs[which], runs=self.store.root, progress=False)

        def refused(self, which: int, why: str) -> None:
            assert configs[which] in self.hurt, why
            assert "holds a run of another config" in why, why
            self.delete_run(which)

        @rule(which=WHICH, moment=MOMENT, cut=CUT)
        def train(self, which: int, moment: Moment | None, cut: float) -> None:
            count["resumed"] += self.begun(which)
            if self.seen(lambda: self.make(which), moment, cut):
                self.finished(which)
            self.found_out()

        @rule(which=WHICH)
        def two_at_once(self, which: int) -> None:
            """While another process holds the lock, nobody else trains the run."""
            run = self.run(which)
            run.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(run.folder / ".lock"):
                assert run.state == ("done" if run.done else "running")
                assert read(lambda: self.hold(run)) is None, "two processes at one run"

        @staticmethod
        def hold(run: RunFolder) -> bool:
            with run.locked():
                return True

        @rule(which=WHICH, choice=st.integers(0, 9), place=st.floats(0, 1, exclude_max=True), flip=st.booleans())
        def damage(self, which: int, choice: int, place: float, flip: bool) -> None:
            folder = self.run(which).folder
            files = [file for file in sorted(folder.glob("*")) if file.is_file() and file.stat().st_size]
            if not files:
                return
            file = files[choice % len(files)]
            raw = bytearray(file.read_bytes())
            spot = int(place * len(raw))
            if flip:
                raw[spot] ^= 1
            else:
                del raw[spot:]
            file.write_bytes(raw)
            count["damaged"] += 1
            self.hurt.add(configs[which])
            # it may read well and not be what DONE vouches for: a bit between its records, or one of its sum in DONE
            unsound = self.run(which).done and "checkpoint.pt" in self.run(which).damaged()
            self.saved[configs[which]] = 0 if unsound else quick.saved_epochs(self.run(which))

        @rule(which=WHICH, index=st.sampled_from(["kept", "kept", "kept", "gone", "empty", "cut"]))
        def delete(self, which: int, index: str) -> None:
            """A run, or the index of the table."""
            path = self.store.root / ".index.json"
            if index == "kept":
                self.delete_run(which)
            elif path.is_file() and index == "gone":
                path.unlink()
            elif path.is_file():
                path.write_bytes(path.read_bytes()[: 0 if index == "empty" else -9])

        def delete_run(self, which: int) -> None:
            shutil.rmtree(self.run(which).folder, ignore_errors=True)
            self.done.discard(configs[which])
            self.hurt.discard(configs[which])
            self.saved[configs[which]] = 0

        @rule(rerun=st.booleans(), moment=MOMENT, cut=CUT)
        def sweep(self, rerun: bool, moment: Moment | None, cut: float) -> None:
            count["resumed"] += sum(map(self.begun, range(RUNS)))
            found = []
            made = lambda: found.extend(sweep(grid, runs=self.store.root, jobs=1, rerun=rerun, progress=False))  # noqa: E731
            if not self.seen(made, moment, cut):
                self.found_out()
                return
            count["sweeps"] += 1
            there, failed = {run.folder for run in found[0]}, found[1]
            for which, config in enumerate(configs):
                if names[which] in failed:
                    self.refused(which, failed[names[which]])
                elif self.run(which).folder in there and not self.run(which).damaged():
                    self.finished(which)
                else:  # a damaged checkpoint is not looked at, and what is committed is not made again
                    assert config in self.hurt or (not rerun and names[which] in self.committed)

        @rule(moment=st.none() | st.builds(Moment, st.just(0), st.integers(1, 29)), cut=CUT)
        def results(self, moment: Moment | None, cut: float) -> None:
            runs = [self.run(which) for which, config in enumerate(configs) if config in self.done - self.hurt]
            given = {run.name for run in runs}
            if self.seen(lambda: results.save(grid.name, runs), moment, cut):
                self.committed |= given
            else:  # replaced ones come back with the next call
                self.committed = {run.name for run in results.committed_runs(grid.name)} | (self.committed - given)

        @rule()
        def look(self) -> None:
            self.frame()
            self.states()
            found = {run.name: committed_content(run) for run in results.committed_runs(grid.name)}
            assert found == {name: committed[name] for name in self.committed}
            assert results.committed_seconds().keys() == self.committed

        def frame(self) -> None:
            found = read(self.store.frame)
            if found is None:
                assert self.hurt
                return
            rows = dict(zip(found.get("seed", ()), found.get("average", ()), strict=True))
            assert rows.items() <= {config.seed: true[config]["summary"]["average"] for config in configs}.items()
            assert {config.seed for config in self.done - self.hurt} <= rows.keys()

        def states(self) -> None:
            found = read(lambda: plan(grid, self.store.root)["state"].tolist())
            for which, state in enumerate(found or []):
                if configs[which] not in self.hurt:
                    other = {"committed"} if names[which] in self.committed else {"stopped", "missing", "failed"}
                    assert state in ({"done"} if configs[which] in self.done else other)

        @invariant()
        def nothing_wrong_or_lost(self) -> None:
            count["steps"] += 1
            for which, config in enumerate(configs):
                run = self.run(which)
                if self.looked_at.get(config) == (now := self.all_of(which)):
                    continue  # nothing has changed since
                self.looked_at[config] = now
                assert quick.saved_epochs(run) >= self.saved[config], "epochs were lost"
                if config not in self.hurt:
                    assert run.done == (config in self.done), "a finished run was lost, or one claims to be finished"
                    assert not run.done or quick.content(run) == true[config]
                for name in ("summary", "predictions", "history"):
                    value = read(lambda run=run, name=name: getattr(run, name))
                    if name == "summary" and value is not None:
                        assert {k: v for k, v in value.items() if k != "seconds"} == true[config]["summary"]
                    elif value is not None:
                        raw = value.to_numpy().tobytes()
                        assert raw == true[config][name] or (name == "history" and true[config][name].startswith(raw))

    quiet = settings(
        max_examples=walks,
        stateful_step_count=STEPS,
        derandomize=not random,
        database=None,
        deadline=None,
        phases=[Phase.generate, *([Phase.shrink] if shorten else [])],
        suppress_health_check=list(HealthCheck),
    )
    with mock.patch.object(store, "LOCK_TIMEOUT_S", 0.0):  # nobody who holds a lock here lets it go in time
        run_state_machine_as_test(Store, settings=quiet)
    return count
