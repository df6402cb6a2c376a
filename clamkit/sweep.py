"""Grids of runs, executed notebook by notebook through papermill, several processes side by side."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import yaml
from tqdm.auto import tqdm

from clamkit import paths
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError, unknown
from clamkit.runs import Run, RunStore

KEYS = ("notebook", "fixed", "axes")
START_TIMEOUT = 300  # seconds a kernel may take to start on a busy machine


@dataclass(frozen=True)
class Grid:
    """All combinations of the axes, each a run of one notebook; `fixed` holds for all."""

    name: str
    notebook: str
    axes: dict[str, list]
    fixed: dict[str, Any] = field(default_factory=dict)

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
        if not isinstance(content, dict) or not isinstance(content.get("axes"), dict):
            raise ClamkitError(f"{path} must hold `notebook: …` and `axes: {{field: [values]}}`.")
        for key in content:
            if key not in KEYS:
                raise unknown(f"key in {path.name}", key, KEYS)
        for key, values in content["axes"].items():
            if not isinstance(values, list) or not values:
                raise ClamkitError(
                    f"axis {key!r} of {path.name} is {values!r}: it must be a list of at least one value."
                )
        return cls(
            path.stem, content.get("notebook", "10_train_fashion_mnist"), content["axes"], content.get("fixed") or {}
        )

    def configs(self) -> list[RunConfig]:
        names = list(self.axes)
        return [
            RunConfig(**self.fixed, **dict(zip(names, values, strict=True)))
            for values in itertools.product(*self.axes.values())
        ]


def notebook_parameters(notebook: Path) -> set[str]:
    """Names assigned in the cell tagged `parameters`."""
    from papermill import inspect_notebook

    if not any("parameters" in cell.metadata.get("tags", []) for cell in nbformat.read(notebook, 4).cells):
        raise ClamkitError(
            f"{paths.shown(notebook)} has no cell tagged `parameters`: a sweep cannot set anything in it."
        )
    return set(inspect_notebook(str(notebook)))


def execute(config: RunConfig, notebook: Path, runs: Path, threads: int) -> Run:
    """One run in a process of its own: papermill executes the notebook with the config's fields as parameters.

    The executed notebook ends up in the run folder; if it fails, as failed.ipynb with the traceback in it.
    """
    run = RunStore(runs).run(config)
    run.folder.mkdir(parents=True, exist_ok=True)
    known = notebook_parameters(notebook)
    fields = config.model_dump(exclude_defaults=True)
    parameters = {key: value for key, value in fields.items() if key in known}
    parameters |= {key: getattr(config, key) for key in known & set(RunConfig.model_fields)}
    parameters["options"] = {key: value for key, value in fields.items() if key not in known}
    working = run.folder / "running.ipynb"
    environment = os.environ | {
        "CLAMKIT_RUNS": str(runs),
        "CLAMKIT_PROGRESS": "0",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    options = ["--no-progress-bar", "--kernel", "python3", "--start-timeout", str(START_TIMEOUT)]
    result = subprocess.run(
        [sys.executable, "-m", "papermill", str(notebook), str(working), *options, "-y", json.dumps(parameters)],
        env=environment,
        cwd=notebook.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode or not run.done:
        kept = run.folder / "failed.ipynb"
        if working.is_file():
            working.replace(kept)
        (run.folder / "failed.txt").write_text(result.stderr, encoding="utf-8")
        raise ClamkitError(_last_words(result.stderr) + f" (see {paths.shown(kept)})")
    working.replace(run.folder / "notebook.ipynb")
    for name in ("failed.ipynb", "failed.txt"):
        (run.folder / name).unlink(missing_ok=True)
    return run


def _last_words(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else "papermill ended without a word"


def sweep(
    grid: Grid, *, runs: str | os.PathLike | None = None, jobs: int | None = None, progress: bool = True
) -> tuple[list[Run], dict[str, str]]:
    """Run what is missing of a grid; returns the finished runs and, for those that failed, why.

    jobs: processes side by side, default one for each core, the cores' threads shared out among them.
    progress: a bar over the runs where there is a terminal; a line for each run is printed anyway.
    """
    store = RunStore(runs)
    configs = grid.configs()
    notebook = paths.notebooks() / f"{grid.notebook}.ipynb"
    if not notebook.is_file():
        raise unknown("notebook", grid.notebook, [file.stem for file in paths.notebooks().glob("*.ipynb")])
    missing = [config for config in configs if not store.run(config).done]
    jobs = max(1, min(jobs or os.cpu_count() or 1, len(missing)))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    failed: dict[str, str] = {}
    bar = tqdm(
        total=len(configs),
        initial=len(configs) - len(missing),
        unit="run",
        desc=grid.name,
        disable=not (progress and sys.stderr.isatty()),
    )
    with bar, ThreadPoolExecutor(jobs) as pool:
        started = {}

        def one(config: RunConfig) -> Run:
            started[config] = time.monotonic()
            return execute(config, notebook, store.root, threads)

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
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [run for config in configs if (run := store.run(config)).done], failed
