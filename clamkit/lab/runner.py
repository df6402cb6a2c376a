"""Sweeps: run what is missing of a grid, several notebooks side by side on this machine, or on a Dask cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from itertools import chain
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from clamkit import paths
from clamkit.engine import index
from clamkit.engine.config import STRENGTHS, RunConfig
from clamkit.engine.store import LOGITS, RESULTS, RunFolder, RunStore
from clamkit.errors import check_known
from clamkit.lab import results
from clamkit.lab.execution import LOCKED, Outcome, Processes, run_outcome, workers
from clamkit.lab.grids import Grid

ORPHAN_TIMEOUT_S = 10.0  # the kernel of a sweep that was killed may take so long to end
FILES = ("DONE", *(name for name in RESULTS if name != "checkpoint.pt"), LOGITS)  # what a plan looks at
START_UP_S = 8.0  # of a run that are not training: processes, imports, pictures


def lines_of(configs: Iterable[RunConfig]) -> dict[str, str]:
    """What the runs of a grid are called on a line, by name: with all that tells them from each other."""
    own = {config: config.identity() for config in configs}
    named = {"dataset", "method", "augmentation", *STRENGTHS.values(), "seed"}
    differ = [k for k in dict.fromkeys(chain(*own.values())) if len({str(i.get(k)) for i in own.values()}) > 1]
    lines = {}
    for config in own:
        line = f"{config.dataset} {config.method:<14} {config.augmentation} {config.strength:<4g} seed {config.seed}"
        further = [(key, getattr(config, key)) for key in differ if key not in named | config.idle]
        lines[config.folder().as_posix()] = line + "".join(
            f", {key} {value}" for key, value in further if value is not None
        )
    return lines


def plan(grid: Grid, runs: str | os.PathLike | None = None) -> pd.DataFrame:
    """One row for each run of a grid: its fields, state ("committed": its results are), and seconds taken or expected.

    The estimate is the median time of an epoch of the grid's runs alike in what costs time (dataset, images of a class,
    precision, network, image and batch size, passes), finished here or committed, times the epochs, plus start-up; nan
    without any such run. Runs that were checked before are not read again while their files look as they did: a sweep
    reads them.
    """
    store, committed, configs = RunStore(runs), results.committed_seconds(), grid.configs()
    names = [config.folder().as_posix() for config in configs]
    folders = {name: RunFolder(store.root / name) for name in names}
    done = index.checked(store.root, [name for name, run in folders.items() if run.done], FILES, _seconds)
    states, seconds = [], []
    for name in names:
        took = done.get(name)
        finished = "damaged" if took is None else "done"
        states.append(finished if name in done else "committed" if name in committed else folders[name].state)
        seconds.append(committed.get(name, float("nan")) if took is None else took)
    fields = {field: [getattr(config, field) for config in configs] for field in (*RunConfig.model_fields, "strength")}
    frame = pd.DataFrame(fields | {"state": states, "seconds": seconds})
    alike = ["dataset", "model", "stem", "image_size", "batch_size", "per_class", "amp", "accuracy_from", "protocol"]
    pace = (frame["seconds"] / frame["epochs"]).groupby([frame[key].map(repr) for key in alike]).transform("median")
    estimate = pace * frame["epochs"] + START_UP_S
    return frame.assign(seconds=frame["seconds"].fillna(estimate))


def _seconds(folder: str) -> float | None:
    """That a finished run took; None if it is damaged."""
    run = RunFolder(folder)
    return None if run.damaged(checkpoint=False) else run.summary["seconds"]


def sweep(
    grid: Grid,
    *,
    runs: str | os.PathLike | None = None,
    jobs: int | None = None,
    rerun: bool = False,
    progress: bool = True,
    scheduler: str | None = None,
    data_dir: str | os.PathLike | None = None,
) -> tuple[list[RunFolder], dict[str, str]]:
    """Run what is missing of a grid; returns the runs that are finished here and, for those that failed, why.

    A run whose results are committed (data/results) is not missing, unless `rerun`; one that is damaged is.

    jobs: processes side by side; default one for each GPU, or one for each core with the threads shared out.
    progress: a bar over the runs where there is a terminal; a line for each run is printed anyway.
    scheduler: address of a Dask scheduler whose workers share the runs folder; default: this machine.
    data_dir: where each run looks first for its dataset; it does not make it another run.
    """
    store, made_by, notebooks = RunStore(runs), grid.runs(), notebooks_for(grid)
    committed, missing = {} if rerun else results.committed_seconds(), dict[RunConfig, Path]()
    for config, name in made_by.items():
        run = store.run(config)
        if run.damaged(checkpoint=False) if run.done else config.folder().as_posix() not in committed:
            missing[_found_from_here(config, data_dir)] = notebooks[name]
    if scheduler and missing:
        from clamkit.lab.cluster import cluster_outcomes

        outcomes = cluster_outcomes(scheduler, missing, store.root)
    else:
        outcomes = _local_outcomes(missing, store.root, jobs)
    called, failed = lines_of(made_by) if missing else {}, dict[str, str]()
    shown = progress and sys.stderr.isatty()
    bar = tqdm(total=len(made_by), initial=len(made_by) - len(missing), unit="run", desc=grid.name, disable=not shown)
    with bar, closing(outcomes):
        for config, error, seconds in outcomes:
            if error:
                failed[str(config.folder())] = error
                line = f"FAILED: {error}"
            else:
                summary = store.run(config).summary
                line = f"average {summary['average']:.1%}  std {summary['std']:.1%}  worst {summary['worst']:.1%}"
            bar.write(f"  {called[config.folder().as_posix()]}  {line}  ({seconds:.0f} s)", file=sys.stdout)
            bar.update()
    failed = {k: why for k, why in failed.items() if why != LOCKED or not RunFolder(store.root / k).done}  # by others
    return [run for config in made_by if (run := store.run(config)).done], failed


def _found_from_here(config: RunConfig, data_dir: str | os.PathLike | None) -> RunConfig:
    """With a whole path to where its files lie, as its notebook runs in another folder than the sweep."""
    from clamkit.data.datasets import DATASETS

    own = config.dataset not in DATASETS and not os.path.isabs(config.dataset) and os.path.exists(config.dataset)
    place = data_dir or config.data_dir or (Path.cwd() if own else None)
    return config.model_copy(update={"data_dir": str(Path(place).expanduser().resolve())}) if place else config


def notebooks_for(grid: Grid) -> dict[str, Path]:
    """The project's notebooks; that one which the grid names is not among them is an error."""
    found = {file.stem: file for file in paths.notebooks().glob("*.ipynb")}
    for name in dict.fromkeys(grid.runs().values()):
        check_known("notebook", name, found)
    return found


def _local_outcomes(work: dict[RunConfig, Path], root: Path, jobs: int | None) -> Generator[Outcome, None, None]:
    """The runs on this machine, several side by side; each as it ends."""
    if not work:
        return
    from torch.cuda import device_count

    jobs, threads = workers(jobs, len(work))
    gpus, processes, slots = device_count(), Processes(forks=True), list(range(jobs))
    visible = [*filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")), *map(str, range(gpus))][:gpus]

    def one(config: RunConfig) -> Outcome:
        slot = slots.pop()
        device = {"CUDA_VISIBLE_DEVICES": visible[slot % gpus]} if gpus else {}
        try:
            return run_outcome(config, work[config], root, threads, processes, ORPHAN_TIMEOUT_S, **device)
        finally:
            slots.append(slot)

    with processes, ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, config) for config in work]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            processes.stop()
            raise
