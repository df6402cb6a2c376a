"""Grids of runs, executed notebook by notebook through papermill, several processes side by side."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
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
START_TIMEOUT = 300  # seconds a kernel may take to start on a busy machine
START_UP = 8.0  # seconds of a run that are not training: processes, imports, pictures


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
        except yaml.YAMLError as error:
            raise ClamkitError(f"{path} is not sound YAML: {error}") from error
        return cls._parse(path.stem, content)

    @classmethod
    def _parse(cls, name: str, content: Any) -> Grid:
        if not isinstance(content, dict) or not ("axes" in content or "grids" in content):
            raise ClamkitError(f"grid {name} must hold `axes: {{field: [values]}}`, or `grids:` with a list of such.")
        for key in content:
            if key not in KEYS:
                raise unknown(f"key in grid {name}", key, KEYS)
        axes = content.get("axes", {})
        if not isinstance(axes, dict):
            raise ClamkitError(f"`axes` of grid {name} is {axes!r}: it must be a mapping from field to values.")
        for key, values in axes.items():
            if not isinstance(values, list) or not values:
                raise ClamkitError(
                    f"axis {key!r} of grid {name} is {values!r}: it must be a list of at least one value."
                )
        notebook, fixed = content.get("notebook", "10_train_fashion_mnist"), content.get("fixed") or {}
        shared = {"notebook": notebook, "fixed": fixed}
        parts = [shared | part | {"fixed": fixed | (part.get("fixed") or {})} for part in content.get("grids", [])]
        return cls(name, notebook, axes, fixed, tuple(cls._parse(name, part) for part in parts))

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

    The estimate is the median time of an epoch of finished runs with the same dataset, model and image size, times the
    epochs, plus start-up; nan where nothing like it has finished.
    """
    store, committed = RunStore(runs), results.committed()
    rows = []
    for config in grid.configs():
        run = store.run(config)
        state = run.state
        if state != "done" and config.folder().as_posix() in committed:
            state = "committed"
        seconds = run.summary["seconds"] if state == "done" else float("nan")
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
    return set(inspect_notebook(str(notebook)))


def parameters_of(config: RunConfig, known: set[str]) -> dict[str, Any]:
    """The config as notebook parameters; fields the notebook has no parameter for travel in `options`."""
    fields = config.model_dump(exclude_defaults=True)
    own = {key: getattr(config, key) for key in known & set(RunConfig.model_fields)}
    return own | {"options": {key: value for key, value in fields.items() if key not in known}}


class _Processes:
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


def execute(config: RunConfig, notebook: Path, runs: Path, environment: dict[str, str], processes: _Processes) -> Run:
    """One run in a process of its own: papermill executes the notebook with the config's fields as parameters.

    The executed notebook ends up in the run folder; if it fails, as failed.ipynb with the traceback in failed.txt.
    """
    run = RunStore(runs).run(config)
    working, failed = run.folder / "running.ipynb", run.folder / "failed.txt"
    known = notebook_parameters(notebook)
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(run.folder / ".sweep.lock", timeout=0):
            options = ["--no-progress-bar", "--kernel", "python3", "--start-timeout", str(START_TIMEOUT)]
            values = ["-y", json.dumps(parameters_of(config, known))]
            command = [sys.executable, "-m", "papermill", str(notebook), str(working), *options, *values]
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
        raise ClamkitError("another sweep is at this run: it is left to that one.") from None
    except OSError as error:
        raise ClamkitError(f"cannot write to {paths.shown(run.folder)}: {error}.") from error
    return run


def _last_words(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "papermill ended without a word"


def sweep(
    grid: Grid,
    *,
    runs: str | os.PathLike | None = None,
    jobs: int | None = None,
    rerun: bool = False,
    progress: bool = True,
) -> tuple[list[Run], dict[str, str]]:
    """Run what is missing of a grid; returns the runs that are finished here and, for those that failed, why.

    A run whose results are committed (data/results) is not missing, unless `rerun`.

    jobs: processes side by side; default one for each GPU, or one for each core with the threads shared out.
    progress: a bar over the runs where there is a terminal; a line for each run is printed anyway.
    """
    store = RunStore(runs)
    made_by = grid.runs()
    notebooks = {name: paths.notebooks() / f"{name}.ipynb" for name in set(made_by.values())}
    for name, path in notebooks.items():
        if not path.is_file():
            raise unknown("notebook", name, [file.stem for file in paths.notebooks().glob("*.ipynb")])
    committed = set() if rerun else results.committed()
    missing = [c for c in made_by if not store.run(c).done and c.folder().as_posix() not in committed]
    jobs, threads = workers(jobs, len(missing))
    failed: dict[str, str] = {}
    processes, slots, started = _Processes(), list(range(jobs)), {}

    def one(config: RunConfig) -> Run:
        started[config] = time.monotonic()
        slot = slots.pop()
        environment = {
            "CLAMKIT_RUNS": str(store.root),
            "CLAMKIT_PROGRESS": "0",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        if torch.cuda.device_count():
            environment["CUDA_VISIBLE_DEVICES"] = str(slot % torch.cuda.device_count())
        try:
            return execute(config, notebooks[made_by[config]], store.root, environment, processes)
        finally:
            slots.append(slot)

    done_before = len(made_by) - len(missing)
    shown = progress and sys.stderr.isatty()
    bar = tqdm(total=len(made_by), initial=done_before, unit="run", desc=grid.name, disable=not shown)
    with bar, ThreadPoolExecutor(jobs) as pool:
        pending = {pool.submit(one, config): config for config in missing}
        try:
            while pending:
                finished, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    config = pending.pop(future)
                    label = f"{config.method:<14} {config.augmentation} {config.strength:<4g} seed {config.seed}"
                    try:
                        summary = future.result().summary
                        line = (
                            f"average {summary['average']:.1%}  std {summary['std']:.1%}  worst {summary['worst']:.1%}"
                        )
                    except ClamkitError as error:
                        failed[str(config.folder())] = str(error)
                        line = f"FAILED: {error}"
                    bar.write(f"  {label}  {line}  ({time.monotonic() - started[config]:.0f} s)", file=sys.stdout)
                    bar.update()
        except BaseException:
            for future in pending:
                future.cancel()
            processes.stop()
            raise
    return [run for config in made_by if (run := store.run(config)).done], failed
