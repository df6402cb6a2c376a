"""How near the kit is to the machine's limit: a table of rows with goals, and a figure of how the cost grows.

    python benchmarks/bench.py [--quick] [--json FILE] [--data-dir PHOTOGRAPHS]

The jobs of a measurement take turns; a row gives the median of the turns and their quartiles. Times belong here and not
into tests: a busy machine makes no test fail.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from clamkit import paths
from clamkit.engine.device import find_device, show_progress
from clamkit.plots.style import save, styled
from exploring import exploring
from loading import loading
from surroundings import by_classes, diagnosis, histories, imports, memory, projections, reading, sweeps, weight_step
from training import augmentation, by_images, by_resolution, criterion, engine, fast, levers, projection

TABLES = (
    engine,
    fast,
    levers,
    criterion,
    augmentation,
    memory,
    imports,
    reading,
    projections,
    histories,
    diagnosis,
    exploring,
    sweeps,
)
CURVES = (by_classes, by_images, by_resolution)


def bench(quick: bool = False, progress: bool | None = None, photographs: Path | None = None) -> dict:
    """Everything, as plain values: "machine", "rows" (value, quartiles, goal, met), "growth", "projection", "seconds".

    quick: every part but the sweeps, on little data and with few turns. photographs: a folder of image files, without
    which the reading of such files is not measured.
    """
    report = {"machine": machine(), "quick": quick, "rows": [], "growth": {}, "seconds": {}}
    tables = [part for part in TABLES if not (quick and part is sweeps)]
    for part in tqdm([*tables, *CURVES, projection, loading], unit="part", disable=not show_progress(progress)):
        started = time.perf_counter()
        if part in TABLES:
            report["rows"] += part(quick)
        elif part in CURVES:
            report["growth"][part.__name__.removeprefix("by_")] = part(quick)
        elif part is loading:
            report["rows"] += part(quick, photographs)
        else:
            report["projection"] = part(quick)
        report["seconds"][part.__name__] = round(time.perf_counter() - started, 1)
    report["rows"] += weight_step(report["growth"]["classes"])
    return report


def machine() -> dict:
    """What was measured on, and how busy it was."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    device = find_device()
    return {
        "processor": f"{name} ({platform.machine()})",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@styled
def figure(report: dict) -> Figure:
    """How the cost grows with classes, images and resolution."""
    drawn, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.6))
    classes = pd.DataFrame(report["growth"]["classes"]).set_index("classes")
    growth = classes.index * np.log(classes.index)
    guide = classes["kl"].iloc[-1] * growth / growth[-1]
    for name, marker, label in (("euclidean", "o", "Euclidean"), ("kl", "s", "KL")):
        left.loglog(classes.index, classes[name], marker=marker, label=label)
    left.loglog(classes.index, guide, color="#7f7f7f", linestyle=":", label="n log n")
    left.set(title="Classes", xlabel="classes", ylabel="weight step, ms", ylim=(classes.min().min() / 3, None))
    for axis, key, name in ((middle, "images", "images"), (right, "resolution", "side")):
        frame = pd.DataFrame(report["growth"][key]).set_index(name)
        axis.plot(frame.index, frame["engine"], marker="o", label="CLAM epoch")
        axis.plot(frame.index, frame["limit"], marker="s", linestyle="--", label="forward, backward, step")
        axis.set(ylabel="ms an image", ylim=(0, 1.1 * frame.max(axis=None)), xscale="log")
        axis.set_xticks(frame.index, frame.index.map(str))
        axis.minorticks_off()
    middle.set(title="Images", xlabel="training images, 32 px")
    right.set(title="Resolution", xlabel="side, pixels")
    for axis in (left, middle):
        axis.legend()
    plt.close(drawn)
    return drawn


def table(report: dict) -> Table:
    found = report["machine"]
    shown = Table(title=f"{found['processor']}, {found['cores']} cores, device {found['device']}, load {found['load']}")
    for column in ("measured side by side", "median", "quartiles", "goal", "verdict"):
        shown.add_column(column, justify="left" if column == "measured side by side" else "right")
    for row in report["rows"]:
        goal = "" if row["goal"] is None else f"{row['sign']} {row['goal']:g}"
        verdict = {None: "", True: "met", False: "not met"}[row["met"]]
        quartiles = "" if row["low"] == row["high"] else f"{row['low']:.3g}–{row['high']:.3g}"
        shown.add_row(row["what"], f"{row['value']:.3g}", quartiles, goal, verdict)
    return shown


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How near the kit is to this machine's limit; draws bench.png")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: for running, not for times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements here")
    parser.add_argument("--data-dir", type=Path, metavar="FOLDER", help="photographs, to measure how files are read")
    given = parser.parse_args(words)
    console = Console()
    if not given.data_dir:
        console.print("reading image files is not measured: give a folder of photographs with --data-dir")
    report = bench(given.quick, photographs=given.data_dir)
    console.print(table(report))
    grid = report["projection"]
    console.print(
        f"ResNet-50 runs at {grid['flops_per_second'] / 1e9:,.0f} GFLOP/s here: the {grid['runs']} runs of the paper's "
        f"grids would take {grid['total_days']:,.0f} days, {grid['days']['imagenet']:,.0f} of them ImageNet's",
        markup=False,
    )
    drawn = save(figure(report), "bench_quick" if given.quick else "bench")
    console.print(f"{paths.shown(drawn)}; measured in {sum(report['seconds'].values()):.0f} s", markup=False)
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
