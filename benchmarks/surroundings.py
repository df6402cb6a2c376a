"""What stands around training: imports, commands, memory, reading runs, many classes, sweeps, the diagnosis."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from clamkit import paths
from clamkit.apps import diagnose_page
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import COLUMNS, RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.lab.execution import Processes, execute_notebook, run_outcome
from clamkit.lab.grids import DEFAULT_NOTEBOOK, Grid
from clamkit.methods.weighters import CLAM
from clamkit.theory.sets import PROJECTIONS, Box, LowerBounded, Permutahedron, RatioBounded
from helpers.run_measures import fairness_over_epochs
from measure import child, cpu_seconds, interleaved, row, seconds

INATURALIST = 8_142  # classes of iNaturalist 2018
CLASSES = [10, 100, 1_000, INATURALIST, 100_000, 1_000_000]
IMPORTS = {"import clamkit": 0.1, "from clamkit import fairness": 0.6}  # seconds of CPU, at most
COMMANDS = {"--help": 0.5, "--version": 0.5}
KERNEL = (
    "import matplotlib.pyplot\nfrom clamkit import RunConfig, load_data, plots, train"  # what training notebooks do
)
SIDE = 32


# ------------------------------------------------------------------------------------------- imports and commands


def imports(quick: bool) -> Iterator[dict]:
    """CPU time of a process that does nothing else, the start of Python in it."""
    turns = 1 if quick else 9
    for code, goal in IMPORTS.items():
        yield row(f"{code}, s of CPU", cpu_seconds(turns, ["-c", code]), "≤", goal)
    for option, goal in COMMANDS.items():
        yield row(f"clamkit {option}, s of CPU", cpu_seconds(turns, ["-m", "clamkit", option]), "≤", goal)


def reading(quick: bool) -> Iterator[dict]:
    """Finished runs, copies of one: listed, and read into one frame."""
    turns, count = (1, 200) if quick else (9, 1000)
    with tempfile.TemporaryDirectory() as folder:
        status = ["-m", "clamkit", "status", "--runs", folder]
        one = RunStore(folder).run(train(RunConfig(per_class=20, epochs=1), runs=folder, device="cpu").config)
        yield row("clamkit status, s of CPU", cpu_seconds(turns, status), "≤", 0.5)
        for i in range(1, count):
            copy = one.folder.with_name(f"seed{i}-copy")
            copy.mkdir()
            for name in ("config.json", "summary.json", "DONE"):
                shutil.copy(one.folder / name, copy)
        first = seconds(lambda: RunStore(folder).frame())
        again = [seconds(lambda: RunStore(folder).frame()) for _ in range(turns)]
        yield row(f"RunStore.frame(), {count:,} runs, s", first, "≤", 3)
        yield row("… the second time / the first", np.divide(again, first), "≤", 1)
        yield row(f"clamkit status, {count:,} runs, s of CPU", cpu_seconds(turns, status), "≤", 3)


# --------------------------------------------------------------------------------------------------- many classes


def by_classes(quick: bool) -> list[dict]:
    """Milliseconds of CLAM's weight step, with both projections."""
    rng, found = np.random.default_rng(0), []
    for n in CLASSES:
        players = {projection: CLAM(n, projection=projection) for projection in PROJECTIONS}
        v = rng.random(n)
        t = interleaved(1 if quick else 9, **{name: lambda p=p, v=v: p.step(accuracy=v) for name, p in players.items()})
        found.append({"classes": n, **(1e3 * t.median()).to_dict()})
    return found


def weight_step(grown: list[dict]) -> Iterator[dict]:
    """How the weight step grows, from what `by_classes` found."""
    frame = pd.DataFrame(grown).set_index("classes")
    large = frame.loc[INATURALIST:]  # below, the fixed cost of a step hides its growth
    size = np.log(large.index * np.log(large.index))
    for projection in PROJECTIONS:
        slope = np.polyfit(size, np.log(large[projection]), 1)[0]
        yield row(f"weight step, {projection}: growth in n log n", slope, "≤", 1)
    yield row(f"weight step, {INATURALIST:,} classes, ms", frame.loc[INATURALIST].max(), "≤", 5)


def projections(quick: bool) -> Iterator[dict]:
    """The slowest set of weights of each projection."""
    n = INATURALIST
    sets = {
        "LowerBounded": LowerBounded(n, 0.5 / n),
        "RatioBounded": RatioBounded(n, 6),
        "Box": Box(n, 0.5 / n, 0.3),
        "Permutahedron": Permutahedron(np.arange(1, n + 1) / (n * (n + 1)) + 0.5 / n),
    }
    x = np.random.default_rng(0).dirichlet(np.full(n, 0.5))
    for name in PROJECTIONS:
        jobs = {kind: lambda s=allowed, name=name: s.project(x, name) for kind, allowed in sets.items()}
        t = 1e3 * interleaved(1 if quick else 15, **jobs)
        slowest = t.median().idxmax()
        yield row(f"projection, {name}, slowest set, {n:,} classes, ms", t[slowest], "≤", 5)


def histories(quick: bool) -> Iterator[dict]:
    """Reading the history of a run with many classes, and its metrics epoch by epoch."""
    turns, classes, epochs = (1, 100, 20) if quick else (9, 1000, 100)
    generator = torch.Generator().manual_seed(0)
    columns = {name: torch.rand(epochs, classes, generator=generator, dtype=torch.float64) for name in COLUMNS}
    with tempfile.TemporaryDirectory() as folder:
        RunFolder(folder).save_history(columns)
        history = RunFolder(folder).history
        t = interleaved(
            turns,
            read=lambda: RunFolder(folder).history,
            metrics=lambda: fairness_over_epochs(history),
        )
    size = f"{classes:,} classes × {epochs} epochs"
    yield row(f"Run.history, {size}, s", t["read"], "≤", 1)
    yield row(f"fairness_over_epochs, {size}, s", t["metrics"], "≤", 2)


def diagnosis(quick: bool) -> Iterator[dict]:
    """The page on the predictions of two models, as many as ImageNet's; and one file of a million rows, with ids."""
    images, classes, rows = (2_000, 50, 50_000) if quick else (50_000, 1_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{name}.csv") for name in ("before", "after", "many")]
        for file, accuracy, count in zip(files, (0.76, 0.78, 0.76), (images, images, rows), strict=True):
            label, rng = np.arange(count) % classes, np.random.default_rng(count + int(100 * accuracy))
            prediction = np.where(rng.random(count) < accuracy, label, rng.integers(classes, size=count))
            names = {"label": label, "prediction": prediction}
            pd.DataFrame(names).astype(str).radd("class_").to_csv(file, index=count == rows, index_label="id")
        taken = seconds(lambda: diagnose_page.report(files[:2], Path(folder, "page.html")))
        yield row(f"diagnosis, 2 × {images:,} predictions, s", taken, "≤", 20)
        cpu, more = child(diagnosing, str(files[2]), f"{folder}/page.html")
    yield row(f"diagnosis, a CSV of {rows:,} rows, s of CPU", cpu, "≤", 20)
    if more:
        yield row("… MB for a million rows", more / rows, "≤", 500)


def diagnosing(file: str, page: str) -> tuple[float, int]:
    """Seconds of CPU that a page takes, and bytes that the peak of memory rises by (0 where that is not known)."""
    known = Path("/proc/self/status").is_file()
    before, started = peak() if known else 0, time.process_time()
    diagnose_page.report([file], Path(page))
    return time.process_time() - started, peak() - before if known else 0


# --------------------------------------------------------------------------------------------------------- memory


def peak() -> int:
    """Most bytes this process ever held in memory (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def peaks_of_epochs(npz: str, epochs: int) -> list[int]:
    """The peak after each epoch of a run, at 8 px so that the images in memory are what counts."""
    found: list[int] = []
    with tempfile.TemporaryDirectory() as runs:
        config = RunConfig(dataset=npz, image_size=8, epochs=epochs)
        train(config, runs=runs, device="cpu", watch=lambda *_: found.append(peak()))
    return found


def memory(quick: bool) -> Iterator[dict]:
    if not Path("/proc/self/status").is_file():
        return
    rng, sizes = np.random.default_rng(0), {"small": 1_000, "large": 20_000 if quick else 60_000}
    with tempfile.TemporaryDirectory() as folder:
        for name, count in sizes.items():
            x, y = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8), np.arange(count) % 10
            np.savez(f"{folder}/{name}.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        small = child(peaks_of_epochs, f"{folder}/small.npz", 20)
        large = child(peaks_of_epochs, f"{folder}/large.npz", 1)
    more = (sizes["large"] - sizes["small"]) * 3 * SIDE**2
    # beyond what the same training takes on a small set: libraries, model, activations
    yield row("peak memory / bytes of the images", (large[0] - small[0]) / more, "≤", 1.5)
    yield row("peak memory, epoch 20 / epoch 5", small[-1] / small[4], "≤", 1.01)


# --------------------------------------------------------------------------------------------------------- sweeps


def training(seed: int, threads: int, runs: str) -> float:
    torch.set_num_threads(threads)
    return train(RunConfig(epochs=2, seed=seed), runs=runs, device="cpu").summary["seconds"]


def sweeps(quick: bool) -> Iterator[dict]:
    """What a run costs beside its training, and pairs of runs side by side and one after the other."""
    import nbformat

    seeds, cores = itertools.count(), os.cpu_count() or 1
    notebook = paths.notebooks() / f"{DEFAULT_NOTEBOOK}.ipynb"
    with tempfile.TemporaryDirectory() as folder:

        def pair(jobs: int) -> None:
            fixed = {"per_class": 40, "epochs": 2}
            grid = Grid("pair", DEFAULT_NOTEBOOK, {"seed": [next(seeds), next(seeds)]}, fixed)

            def one(config: RunConfig) -> None:
                _, error, _ = run_outcome(config, notebook, Path(folder), 1, Processes(), 10.0)
                if error:
                    raise ClamkitError(f"a run of the bench failed: {error}")

            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(one, grid.configs()))

        def two_trainings(side_by_side: int, threads: int) -> None:
            with ThreadPoolExecutor(side_by_side) as pool:
                list(pool.map(lambda seed: child(training, seed, threads, folder), [next(seeds), next(seeds)]))

        def start(processes: Processes | None = None) -> None:
            if error := execute_notebook(Path(folder, "in.ipynb"), Path(folder, "out.ipynb"), processes=processes):
                raise ClamkitError(error)

        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(KERNEL)]), f"{folder}/in.ipynb")
        with Processes(forks=True) as forks:
            t = interleaved(3, plain=start, forked=lambda: start(forks))
        yield row("papermill, kernel and imports, s", t["plain"], "≤", 6)
        yield row("… in forks, as a sweep does, s", t["forked"], "≤", 2)
        t = interleaved(4, warm_up=0, two=lambda: pair(2), one=lambda: pair(1))
        yield row("8 runs, 2 processes / one by one", t["two"].sum() / t["one"].sum(), "≤", 0.6)
        t = interleaved(2, warm_up=0, two=lambda: two_trainings(cores, 1), one=lambda: two_trainings(1, cores))
        yield row(f"{cores} processes × 1 thread / 1 × {cores} threads", t["two"].sum() / t["one"].sum(), "≤", 1)
