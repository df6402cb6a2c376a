"""Grids of runs, executed notebook by notebook through papermill, several processes side by side."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import torch
import yaml
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from clamkit import paths, results
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError, unknown
from clamkit.runs import Run, RunStore

KEYS = ("notebook", "fixed", "axes", "grids")
MOST = 100_000  # runs of a grid
START_TIMEOUT = 300  # seconds a kernel may take to start on a busy machine
ORPHANS = 10.0  # seconds the kernel of a sweep that was killed may take to end
START_UP = 8.0  # seconds of a run that are not training: processes, imports, pictures


Outcome = tuple[RunConfig, str | None, float]  # the run, why it failed, seconds


@dataclass(frozen=True)
class Grid:
    """All combinations of the axes, each a run of one notebook; `fixed` holds for all. `parts` are further grids."""

    name: str
    notebook: str
    axes: dict[str, list]
    fixed: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Grid, ...] = ()

    @classmethod
    def load(cls, grid: str | os.PathLike) -> Grid:
        """A grid of notebooks/sweeps by name, or any YAML file by path."""
        folder = paths.notebooks() / "sweeps"
        path = Path(grid) if Path(grid).suffix in (".yaml", ".yml") else folder / f"{grid}.yaml"
        if not path.is_file():
            raise unknown("grid", str(grid), [file.stem for file in folder.glob("*.yaml")])
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # safe_load also meets dates and depths
            raise ClamkitError(f"{path} is not sound YAML: {error}") from error
        return cls._parse(path.stem, content)

    @classmethod
    def _parse(cls, name: str, content: Any) -> Grid:
        if not isinstance(content, dict) or not ("axes" in content or "grids" in content):
            raise ClamkitError(f"grid {name} must hold `axes: {{field: [values]}}`, or `grids:` with a list of such.")
        for key in content:
            if key not in KEYS:
                raise unknown(f"key in grid {name}", key, KEYS)
        axes, fixed, grids = content.get("axes", {}), content.get("fixed") or {}, content.get("grids", [])
        for what, part in (("axes", axes), ("fixed", fixed)):
            if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
                raise ClamkitError(f"`{what}` of grid {name} is {part!r}: it must be a mapping from fields to values.")
        for key, values in axes.items():
            if not isinstance(values, list) or not values:
                raise ClamkitError(
                    f"axis {key!r} of grid {name} is {values!r}: it must be a list of at least one value."
                )
            if key in fixed:
                raise ClamkitError(f"{key!r} is fixed in grid {name} and an axis too: it can be one of the two.")
        if (count := math.prod(map(len, axes.values()))) > MOST:
            raise ClamkitError(f"grid {name} has {count} runs: more than {MOST} must be a mistake.")
        notebook = content.get("notebook", "10_train_fashion_mnist")
        if not isinstance(notebook, str) or not isinstance(grids, list) or not all(isinstance(g, dict) for g in grids):
            raise ClamkitError(f"grid {name}: `notebook` must be a name, and `grids` a list of grids.")
        parts = []
        for part in grids:
            own = part.get("fixed") or {}
            shared = {"notebook": notebook, "fixed": fixed | own if isinstance(own, dict) else own}
            parts.append(cls._parse(name, shared | {key: part[key] for key in part if key != "fixed"}))
        return cls(name, notebook, axes, fixed, tuple(parts))

    def runs(self) -> dict[RunConfig, str]:
        """Each run and the notebook that makes it, in order; a run that stands in two parts comes once."""
        found = {}
        if self.axes:
            for values in itertools.product(*self.axes.values()):
                found[RunConfig(**self.fixed, **dict(zip(self.axes, values, strict=True)))] = self.notebook
        for part in self.parts:
            found |= {config: name for config, name in part.runs().items() if config not in found}
        return found

    def configs(self) -> list[RunConfig]:
        return list(self.runs())


def plan(grid: Grid, runs: str | os.PathLike | None = None) -> pd.DataFrame:
    """One row for each run of a grid: its fields, state ("committed": its results are), and seconds taken or expected.

    The estimate is the median time of an epoch of the grid's runs with the same dataset, model and image size, finished
    here or (on whichever machine) committed, times the epochs, plus start-up; nan where there is nothing like it.
    """
    store, committed = RunStore(runs), results.committed()
    rows = []
    for config in grid.configs():
        run, name = store.run(config), config.folder().as_posix()
        state = "damaged" if run.done and run.damaged(checkpoint=False) else run.state
        if state != "done" and name in committed:
            state = "committed"
        seconds = run.summary["seconds"] if state == "done" else committed.get(name, float("nan"))
        rows.append(config.model_dump() | {"strength": config.strength, "state": state, "seconds": seconds})
    frame = pd.DataFrame(rows)
    alike = ["dataset", "model", "image_size", "batch_size"]
    pace = (frame["seconds"] / frame["epochs"]).groupby([frame[key].map(repr) for key in alike]).transform("median")
    estimate = pace * frame["epochs"] + START_UP
    return frame.assign(seconds=frame["seconds"].fillna(estimate))


def at_hand(name: str, runs: str | os.PathLike | None = None) -> list[Run]:
    """What there is of a grid, finished here or committed; says on one line what is missing and how to get it."""
    grid = Grid.load(name)
    found = results.runs_of(name, grid.configs(), RunStore(runs))
    total = len(grid.configs())
    hint = "" if len(found) == total else f"; `clamkit sweep {name}` makes the other {total - len(found)}"
    print(f"{name}: {len(found)} of {total} runs at hand{hint}")
    return found


def workers(jobs: int | None, missing: int) -> tuple[int, int]:
    """(processes side by side, threads of each): one process for each GPU, or for each core without one.

    Small models gain less from a second thread than a sweep from a second process (`clamkit bench` measures it).
    """
    cores, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    jobs = max(1, min(jobs or gpus or cores, missing))
    return jobs, max(1, cores // jobs)


def notebook_parameters(notebook: Path) -> set[str]:
    """Names assigned in the cell tagged `parameters`."""
    from papermill import inspect_notebook

    if not any("parameters" in cell.metadata.get("tags", []) for cell in nbformat.read(notebook, 4).cells):
        raise ClamkitError(
            f"{paths.shown(notebook)} has no cell tagged `parameters`: a sweep cannot set anything in it."
        )
    try:
        return set(inspect_notebook(str(notebook)))
    except ValueError as error:  # no kernel named, or none that papermill knows
        raise ClamkitError(f"papermill cannot read {paths.shown(notebook)}: {error}") from error


def parameters_of(config: RunConfig, known: set[str]) -> dict[str, Any]:
    """The config as notebook parameters; fields the notebook has no parameter for travel in `options`."""
    fields = config.model_dump(exclude_defaults=True)
    own = {key: getattr(config, key) for key in RunConfig.model_fields if key in known}
    return own | {"options": {key: value for key, value in fields.items() if key not in known}}


class Processes:
    """The child processes of a sweep, so that all can be ended when the sweep is stopped."""

    def __init__(self):
        self.running: set[subprocess.Popen] = set()
        self.stopped = False
        self.lock = threading.Lock()

    def run(self, command: list[str], **options) -> tuple[int, str]:
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
            self.running.add(process)
        _, stderr = process.communicate()
        self.running.discard(process)
        return process.returncode, stderr

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()  # its kernel sees that it is gone and ends too


def execute(
    config: RunConfig, notebook: Path, root: Path, environment: dict[str, str], processes: Processes, patience: float
) -> None:
    """One run in a process of its own: papermill executes the notebook with the config's fields as parameters.

    The executed notebook ends up in the run folder; if it fails, as failed.ipynb with the traceback in failed.txt.
    If the sweep is killed its children end with it, a moment later: `patience` is how long to wait for that.
    """
    run = RunStore(root).run(config)
    working, failed = run.folder / "running.ipynb", run.folder / "failed.txt"
    known = notebook_parameters(notebook)
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(run.folder / ".sweep.lock", timeout=patience):
            with FileLock(run.folder / ".lock", timeout=patience):
                if run.done and not run.damaged(checkpoint=False):  # made by another sweep in the meantime
                    return
            options = ["--no-progress-bar", "--kernel", "python3", "--start-timeout", str(START_TIMEOUT)]
            values = ["-y", yaml.safe_dump(parameters_of(config, known))]
            child = [sys.executable, "-m", "clamkit.child", str(os.getpid())]
            command = [*child, "papermill", str(notebook), str(working), *options, *values]
            code, stderr = processes.run(command, env=os.environ | environment, cwd=notebook.parent)
            if processes.stopped and not run.done:
                working.unlink(missing_ok=True)
                raise KeyboardInterrupt
            if code or not run.done:
                if working.is_file():
                    working.replace(run.folder / "failed.ipynb")
                failed.write_text(stderr, encoding="utf-8")
                raise ClamkitError(f"{_last_words(stderr)} (see {paths.shown(failed)})")
            working.replace(run.folder / "notebook.ipynb")
            for leftover in (failed, run.folder / "failed.ipynb"):
                leftover.unlink(missing_ok=True)
    except Timeout:
        raise ClamkitError("another process is at this run: it is left to that one.") from None
    except OSError as error:
        raise ClamkitError(f"cannot write to {paths.shown(run.folder)}: {error}.") from error


def outcome(
    config: RunConfig, notebook: Path, root: Path, threads: int, processes: Processes, patience: float, **environment
) -> Outcome:
    """`execute`, timed, with a failure as a value."""
    started = time.monotonic()
    environment |= {
        "CLAMKIT_RUNS": str(root),
        "CLAMKIT_PROGRESS": "0",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    error = None
    try:
        execute(config, notebook, root, environment, processes, patience)
    except ClamkitError as refused:
        error = str(refused)
    return config, error, time.monotonic() - started


def _last_words(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "papermill ended without a word"


def _here(work: dict[RunConfig, Path], root: Path, jobs: int | None) -> Iterator[Outcome]:
    """The runs on this machine, several side by side; each as it ends."""
    jobs, threads = workers(jobs, len(work))
    gpus, processes, slots = torch.cuda.device_count(), Processes(), list(range(jobs))

    def one(config: RunConfig) -> Outcome:
        slot = slots.pop()
        device = {"CUDA_VISIBLE_DEVICES": str(slot % gpus)} if gpus else {}
        try:
            return outcome(config, work[config], root, threads, processes, ORPHANS, **device)
        finally:
            slots.append(slot)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, config) for config in work]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            processes.stop()
            raise


def sweep(
    grid: Grid,
    *,
    runs: str | os.PathLike | None = None,
    jobs: int | None = None,
    rerun: bool = False,
    progress: bool = True,
    scheduler: str | None = None,
    data_dir: str | os.PathLike | None = None,
) -> tuple[list[Run], dict[str, str]]:
    """Run what is missing of a grid; returns the runs that are finished here and, for those that failed, why.

    A run whose results are committed (data/results) is not missing, unless `rerun`; one that is damaged is.

    jobs: processes side by side; default one for each GPU, or one for each core with the threads shared out.
    progress: a bar over the runs where there is a terminal; a line for each run is printed anyway.
    scheduler: address of a Dask scheduler whose workers share the runs folder; default: this machine.
    data_dir: where each run looks first for its dataset; it does not make it another run.
    """
    store = RunStore(runs)
    made_by = grid.runs()
    if data_dir:
        place = {"data_dir": str(Path(data_dir).expanduser().resolve())}
        made_by = {config.model_copy(update=place): name for config, name in made_by.items()}
    notebooks = {file.stem: file for file in paths.notebooks().glob("*.ipynb")}
    for name in made_by.values():
        if name not in notebooks:
            raise unknown("notebook", name, notebooks)
    committed = {} if rerun else results.committed()
    missing = {}
    for config, name in made_by.items():
        run = store.run(config)
        if run.damaged(checkpoint=False) if run.done else config.folder().as_posix() not in committed:
            missing[config] = notebooks[name]
    if scheduler and missing:
        from clamkit import cluster

        outcomes = cluster.outcomes(scheduler, missing, store.root)
    else:
        outcomes = _here(missing, store.root, jobs)
    failed: dict[str, str] = {}
    shown = progress and sys.stderr.isatty()
    done_before = len(made_by) - len(missing)
    bar = tqdm(total=len(made_by), initial=done_before, unit="run", desc=grid.name, disable=not shown)
    with bar, closing(outcomes):
        for config, error, seconds in outcomes:
            label = f"{config.method:<14} {config.augmentation} {config.strength:<4g} seed {config.seed}"
            if error:
                failed[str(config.folder())] = error
                line = f"FAILED: {error}"
            else:
                summary = store.run(config).summary
                line = f"average {summary['average']:.1%}  std {summary['std']:.1%}  worst {summary['worst']:.1%}"
            bar.write(f"  {label}  {line}  ({seconds:.0f} s)", file=sys.stdout)
            bar.update()
    return [run for config in made_by if (run := store.run(config)).done], failed
