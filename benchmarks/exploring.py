"""How long a change in the explorer of runs takes, nothing of its picture drawn before."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from clamkit import paths
from clamkit.data.datasets import load_data
from clamkit.engine.config import RunConfig
from clamkit.engine.store import COLUMNS, RunStore
from clamkit.metrics import METRICS
from measure import child, row

CLASSES, EPOCHS, SIDE = 100, 100, 32
METHODS = ("normal", "clam", "clam_kl", "ggf")  # as many as can be told apart
LONGEST_S = 0.3


def exploring(quick: bool) -> Iterator[dict]:
    """Each kind of change, of runs with a hundred classes and of the committed ones."""
    turns = 2 if quick else 9
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), turns)
        found = child(changes, folder, turns)
    for what, values in found.items():
        yield row(f"runs explorer, {what}, s of CPU", values, "≤", LONGEST_S)


def make_runs(folder: Path, seeds: int) -> None:
    """Finished runs with histories, predictions and images, all made up."""
    rng, labels = np.random.default_rng(0), np.arange(20 * CLASSES) % CLASSES
    x = rng.integers(0, 256, (len(labels), SIDE, SIDE, 3), dtype=np.uint8)
    file = folder / "hundred.npz"
    np.savez(file, x_train=x, y_train=labels, x_test=x, y_test=labels)
    made = {"data": load_data(str(file)).sha256, "class_names": [f"a kind of thing {i}" for i in range(CLASSES)]}
    for method in METHODS:
        for seed in range(2 * seeds + 1):
            config = RunConfig(dataset=str(file), method=method, seed=seed, epochs=EPOCHS)
            run = RunStore(folder).run(config)
            with run.locked():
                run.claim(config)
                run.save_checkpoint({})
                history = np.sort(rng.random((len(COLUMNS), EPOCHS, CLASSES)), axis=1)
                run.save_history(dict(zip(COLUMNS, torch.from_numpy(history), strict=True)))
                taken = np.where(rng.random(len(labels)) < 0.6, labels, rng.integers(CLASSES, size=len(labels)))
                summary = made | dict.fromkeys(METRICS, 0.5) | {"seconds": 1.0}
                run.finish(summary, pd.DataFrame({"label": labels, "prediction": taken}))


def changes(folder: str, turns: int) -> dict[str, list[float]]:
    """Seconds of CPU of each kind of change, in each turn; every turn sees runs that were not read before."""
    sys.path.append(str(paths.notebooks()))  # as the notebooks import them
    from helpers.runs_explorer import runs_explorer

    explorer = runs_explorer(folder)
    boxes, (epoch, confused, *_) = explorer.children[0].children, explorer.children[1].children
    controls = {box.description: box for column in boxes for box in (*column.children, epoch, confused)}
    found: dict[str, list[float]] = {}

    def change(what: str, name: str, value: object) -> None:
        started = time.process_time()
        controls[name].value = value
        found.setdefault(what, []).append(time.process_time() - started)

    methods, classes = controls["methods"].options, [name for _, name in controls["classes"].options]
    for turn in range(turns):
        for shown, few in ((3, 4), (4, 10)):  # as it opens, and the most that it draws
            controls["methods"].value, what = methods[:shown], f"{shown} methods, {few} classes: "
            change(f"{what}other classes of {CLASSES}", "classes", classes[10 * turn : 10 * turn + few])
            change(f"{what}another epoch", "epoch", EPOCHS - 1 - 2 * turn - shown % 2)
            change(f"{what}other runs", "seed", 2 * turn + shown - 2)
            change(f"{what}other confusions", "confusions of", methods[0])
            change(f"{what}other methods", "methods", methods[1:shown])
    committed = [source for source in controls["source"].options if source != "runs folder"]
    for source in committed[: 2 * turns]:
        change("other committed runs", "source", source)
    return found
