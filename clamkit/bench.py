"""How near the engine is to the machine's limit: ratios of things measured side by side in one run.

The jobs of a measurement take turns, and a ratio is taken within each turn, so that a noisy machine slows both sides
alike. A row gives the median of the turns and their quartiles.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import nbformat
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm

from clamkit import augment, data, paths
from clamkit._vision import torchvision
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.models import build_model
from clamkit.plots import styled
from clamkit.runs import Run, RunStore
from clamkit.sweep import Grid, sweep
from clamkit.train import _count, _set_up, find_device, show_progress, train, train_epoch
from clamkit.weighters import CLAM

BATCH, SIDE = 128, 32
CLASSES = [10, 100, 1_000, 8_142, 100_000, 1_000_000]  # 8,142: iNaturalist 2018
IMAGES = {  # training and test images; Mini-ImageNet's 600 a class in the usual 500 + 100
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "fashion_mnist": (60_000, 10_000),
    "mini_imagenet": (50_000, 10_000),
    "imagenet": (1_281_167, 50_000),
    "inaturalist2018": (437_513, 24_426),
}
NOTEBOOK = "10_train_fashion_mnist"
KERNEL = "import matplotlib.pyplot\nfrom clamkit import data, paper, plots\nfrom clamkit.train import train"
v2 = torchvision.transforms.v2


def bench(quick: bool = False, progress: bool | None = None) -> dict:
    """Everything, as plain values: "machine", "rows" (value, quartiles, goal, met), "growth", "projection", "seconds".

    quick: every part but the sweeps, on little data and with few turns.
    """
    report = {"machine": machine(), "quick": quick, "rows": [], "growth": {}, "seconds": {}}
    tables = [engine, augmentation, memory, imports, reading, *([] if quick else [sweeps])]
    curves = [by_classes, by_images, by_resolution]
    for part in tqdm([*tables, *curves, projection], unit="part", disable=not show_progress(progress)):
        started = time.perf_counter()
        if part in tables:
            report["rows"] += part(quick)
        elif part in curves:
            report["growth"][part.__name__.removeprefix("by_")] = part(quick)
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


# ------------------------------------------------------------------------------------------------- measuring


def interleaved(turns: int, *, warm_up: int = 1, **jobs: Callable[[], object]) -> pd.DataFrame:
    """Seconds of each job in each turn, one row a turn; the turns that warm up are not counted."""
    times = [{name: seconds(job) for name, job in jobs.items()} for _ in range(warm_up + turns)]
    return pd.DataFrame(times[warm_up:])


def seconds(job: Callable[[], object]) -> float:
    started = time.perf_counter()
    job()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def row(what: str, values, sign: str = "", goal: float | None = None) -> dict:
    """One line of the table: the median, the quartiles, and whether the goal is met."""
    low, value, high = (float(q) for q in np.quantile(np.atleast_1d(values), [0.25, 0.5, 0.75]))
    met = None if goal is None else bool(value >= goal if sign == "≥" else value <= goal)
    return {"what": what, "value": value, "low": low, "high": high, "sign": sign, "goal": goal, "met": met}


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def child(function: str, *args) -> object:
    """What a function of this module gives in a process of its own."""
    code = f"import json; from clamkit.bench import {function}; print(json.dumps({function}(*{args!r})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------- training


class Stretch:
    """A stretch of training on generated images, as `train` sets it up, and what it is compared with."""

    def __init__(self, steps: int, side: int = SIDE, batch: int = BATCH, **fields):
        self.device, self.steps, self.batch = find_device(), steps, batch
        rng = np.random.default_rng(0)
        y = np.arange(steps * batch) % 10
        x = rng.integers(0, 256, (len(y), 3, side, side), dtype=np.uint8)
        dataset = data._dataset("noise", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
        self.game = _set_up(RunConfig(**fields), dataset, self.device)
        self.x, self.y = dataset.x_train.to(self.device), dataset.y_train.to(self.device)
        self.staged = next(self.game.batches.training(self.x, self.y, batch, torch.Generator().manual_seed(0)))

    def epoch(self, accuracy_from: str = "epoch") -> None:
        """Data, crop, flip, loss, counting, weight step."""
        game, generator = self.game, torch.Generator().manual_seed(0)
        train_epoch(game, game.batches.training(self.x, self.y, self.batch, generator), [0.01] * self.steps)
        if accuracy_from == "pass":
            _count(game, game.batches.training(self.x, self.y, self.batch, generator))
        elif accuracy_from == "clean":
            _count(game, game.batches.plain(self.x, self.y))
        game.weighter.step()

    def limit(self) -> None:
        """Forward, backward and step alone, on one batch that is already there."""
        x, y = self.staged
        self.game.model.train()
        for _ in range(self.steps):
            with torch.autocast(self.device.type, dtype=self.game.amp, enabled=self.game.amp is not None):
                loss = F.cross_entropy(self.game.model(x), y)
            self.game.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.game.optimizer.step()


class Conventional:
    """The loop one usually writes: each sample by itself in a DataLoader, counts in Python, a second pass for them."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, device: torch.device):
        transform = v2.Compose(
            [
                v2.RandomResizedCrop(SIDE, scale=(0.3, 1)),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )
        self.loader = DataLoader(_Samples(x.cpu(), y.cpu(), transform), BATCH, shuffle=True, num_workers=2)
        self.model, self.device = build_model("tiny_resnet", 10, 3).to(device), device
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True)
        self.weighter = CLAM(10)

    def epoch(self) -> None:
        self.model.train()
        for x, y in self.loader:
            loss = self.weighter.loss(self.model(x.to(self.device)), y.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.model.eval()
        right, seen = [0] * 10, [0] * 10
        with torch.no_grad():
            for x, y in self.loader:
                for label, predicted in zip(y.tolist(), self.model(x.to(self.device)).argmax(1).tolist(), strict=True):
                    seen[label] += 1
                    right[label] += label == predicted
        self.weighter.step(accuracy=[r / s for r, s in zip(right, seen, strict=True)])


class _Samples(torch.utils.data.Dataset):
    def __init__(self, x, y, transform):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        return self.transform(self.x[i]), int(self.y[i])


def engine(quick: bool) -> Iterator[dict]:
    """With one thread, as each process of a sweep on CPUs has; the conventional loop gets all there are."""
    steps, turns = (2, 2) if quick else (6, 41)
    clam, normal, limit = Stretch(steps), Stretch(steps, method="normal"), Stretch(steps)
    fields = {"model": "resnet18", "stem": "imagenet"}  # with the small stem a step takes 15 times as long
    large, large_limit = Stretch(1, **fields), Stretch(1, **fields)
    with one_thread():
        t = interleaved(turns, limit=limit.limit, clam=clam.epoch, normal=normal.epoch)
        looks = {"second_pass": lambda: clam.epoch("pass"), "clean": lambda: clam.epoch("clean")}
        more = interleaved(2 if quick else 9, normal=normal.epoch, **looks)
        big = interleaved(turns, limit=large_limit.limit, clam=large.epoch)
    usual = Conventional(clam.x, clam.y, clam.device)
    c = interleaved(1 if quick else 5, usual=usual.epoch, clam=clam.epoch, limit=limit.limit)
    yield row("engine / limit, tiny_resnet, 32 px", t["limit"] / t["clam"], "≥", 0.95)
    yield row("engine / limit, resnet18, 32 px", big["limit"] / big["clam"], "≥", 0.98)
    yield row("engine / limit, all threads", c["limit"] / c["clam"])
    yield row("engine / conventional loop, all threads", c["usual"] / c["clam"], "≥", 5)
    yield row("CLAM / Normal, seconds an epoch", t["clam"] / t["normal"], "≤", 1.01)
    yield row("… accuracies from a second pass", more["second_pass"] / more["normal"])
    yield row("… accuracies from a clean pass", more["clean"] / more["normal"])


def augmentation(quick: bool) -> Iterator[dict]:
    turns = 2 if quick else 15
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (256, 3, SIDE, SIDE), dtype=np.uint8))
    generator = torch.Generator().manual_seed(0)
    flip = v2.RandomHorizontalFlip()
    pairs = {
        "crop and flip": (augment.RandomResizedCrop(0.3), v2.RandomResizedCrop(SIDE, scale=(0.3, 1), antialias=False)),
        "jitter and flip": (augment.ColourJitter(0.3), v2.ColorJitter(0.3, 0.3, 0.3)),
    }
    with one_thread():
        for name, (batched, single) in pairs.items():
            t = interleaved(
                turns,
                batched=lambda f=batched: f(x, generator),
                single=lambda f=single: [flip(f(image)) for image in x],
            )
            yield row(f"{name}: batch / torchvision", t["single"] / t["batched"], "≥", 10)


# ------------------------------------------------------------------------------------- classes, memory, imports


def by_classes(quick: bool) -> list[dict]:
    """Milliseconds of CLAM's weight step, with both projections."""
    rng, found = np.random.default_rng(0), []
    for n in CLASSES:
        players = {projection: CLAM(n, projection=projection) for projection in ("euclidean", "kl")}
        v = rng.random(n)
        t = interleaved(2 if quick else 9, **{name: lambda p=p, v=v: p.step(accuracy=v) for name, p in players.items()})
        found.append({"classes": n, **(1e3 * t.median()).to_dict()})
    return found


def weight_step(grown: list[dict]) -> Iterator[dict]:
    frame = pd.DataFrame(grown).set_index("classes")
    large = frame.loc[8_142:]  # below, the fixed cost of a step hides its growth
    size = np.log(large.index * np.log(large.index))
    for projection in ("euclidean", "kl"):
        slope = np.polyfit(size, np.log(large[projection]), 1)[0]
        yield row(f"weight step, {projection}: growth in n log n", slope, "≤", 1)
    yield row("weight step, 8,142 classes, ms", frame.loc[8_142].max(), "≤", 5)


def peak() -> int:
    """Most bytes this process ever held in memory (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def peaks_of_epochs(npz: str, epochs: int) -> list[int]:
    """The peak after each epoch of a run, at 8 px so that the images in memory are what counts."""
    found, save = [], Run.save_checkpoint
    Run.save_checkpoint = lambda run, state: (save(run, state), found.append(peak()))
    with tempfile.TemporaryDirectory() as runs:
        train(RunConfig(dataset=npz, image_size=8, epochs=epochs), runs=runs, device="cpu")
    return found


def memory(quick: bool) -> Iterator[dict]:
    if not Path("/proc/self/status").is_file():
        return
    rng, sizes = np.random.default_rng(0), {"small": 1_000, "large": 20_000 if quick else 60_000}
    with tempfile.TemporaryDirectory() as folder:
        for name, count in sizes.items():
            x, y = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8), np.arange(count) % 10
            np.savez(f"{folder}/{name}.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        small = child("peaks_of_epochs", f"{folder}/small.npz", 20)
        large = child("peaks_of_epochs", f"{folder}/large.npz", 1)
    more = (sizes["large"] - sizes["small"]) * 3 * SIDE**2
    # beyond what the same training takes on a small set: libraries, model, activations
    yield row("peak memory / bytes of the images", (large[0] - small[0]) / more, "≤", 1.5)
    yield row("peak memory, epoch 20 / epoch 5", small[-1] / small[4], "≤", 1.01)


def imports(quick: bool) -> Iterator[dict]:
    code = (
        "import sys, time; started = time.perf_counter(); import clamkit.metrics\n"
        "print(time.perf_counter() - started); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3 if quick else 8)]
    yield row("import clamkit.metrics, s", [float(run.stdout) for run in runs[1:]], "≤", 0.6)


def reading(quick: bool) -> Iterator[dict]:
    """Finished runs read into one frame; they are copies of one."""
    count = 100 if quick else 1000
    with tempfile.TemporaryDirectory() as folder:
        one = train(RunConfig(dataset="generated-2", epochs=1), runs=folder, device="cpu").folder
        for i in range(1, count):
            copy = one.with_name(f"seed{i}-copy")
            copy.mkdir()
            for name in ("config.json", "summary.json", "DONE"):
                shutil.copy(one / name, copy)
        taken = seconds(lambda: RunStore(folder).frame())
    yield row(f"RunStore.frame(), {count:,} runs, s", taken, "≤", 3)


# --------------------------------------------------------------------------------------------------- sweeps


def training(seed: int, threads: int, runs: str) -> float:
    torch.set_num_threads(threads)
    return train(RunConfig(epochs=2, seed=seed), runs=runs, device="cpu").summary["seconds"]


def sweeps(quick: bool) -> Iterator[dict]:
    """What a run costs beside its training, and pairs of runs side by side and one after the other."""
    seeds, cores = itertools.count(), os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:

        def grid_of_two(jobs: int) -> None:
            axes, fixed = {"seed": [next(seeds), next(seeds)]}, {"dataset": "generated-10", "epochs": 2}
            with patch("clamkit.sweep.workers", return_value=(jobs, 1)), redirect_stdout(StringIO()):
                _, failed = sweep(Grid("pair", NOTEBOOK, axes, fixed), runs=folder, jobs=jobs, progress=False)
            if failed:
                raise ClamkitError(f"a run of the bench failed: {next(iter(failed.values()))}")

        def two_trainings(side_by_side: int, threads: int) -> None:
            with ThreadPoolExecutor(side_by_side) as pool:
                list(pool.map(lambda seed: child("training", seed, threads, folder), [next(seeds), next(seeds)]))

        imports_only = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(KERNEL)])
        nbformat.write(imports_only, f"{folder}/in.ipynb")
        command = [sys.executable, "-m", "clamkit.child", str(os.getpid()), "papermill", "in.ipynb", "out.ipynb"]
        command += ["--no-progress-bar", "--kernel", "python3"]
        t = interleaved(3, start=lambda: subprocess.run(command, cwd=folder, capture_output=True, check=True))
        yield row("papermill, kernel and imports, s", t["start"], "≤", 6)
        t = interleaved(4, warm_up=0, two=lambda: grid_of_two(2), one=lambda: grid_of_two(1))
        yield row("8 runs, 2 processes / one by one", t["two"].sum() / t["one"].sum(), "≤", 0.6)
        t = interleaved(2, warm_up=0, two=lambda: two_trainings(cores, 1), one=lambda: two_trainings(1, cores))
        yield row(f"{cores} processes × 1 thread / 1 × {cores} threads", t["two"].sum() / t["one"].sum(), "≤", 1)


# ------------------------------------------------------------------------------------------------- the figure


def _milliseconds(stretch: Stretch, turns: int, **more) -> dict:
    """Of the fastest turn, an image."""
    with one_thread():
        t = interleaved(turns, limit=stretch.limit, engine=stretch.epoch)
    return more | (1e3 * t.min() / (stretch.steps * stretch.batch)).to_dict()


def by_images(quick: bool) -> list[dict]:
    """Milliseconds an image, for sets of several sizes."""
    counts = (128, 256) if quick else (256, 512, 1024, 2048, 4096)
    return [_milliseconds(Stretch(count // BATCH), 1 if quick else 3, images=count) for count in counts]


def by_resolution(quick: bool) -> list[dict]:
    """Milliseconds an image, for images of several sides."""
    sides = (32, 48) if quick else (32, 48, 64, 96)
    return [_milliseconds(Stretch(2, side), 1 if quick else 4, side=side) for side in sides]


@styled
def figure(report: dict) -> Figure:
    """How the cost grows with classes, images and resolution."""
    drawn, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.6))
    classes = pd.DataFrame(report["growth"]["classes"]).set_index("classes")
    growth = classes.index * np.log(classes.index)
    guide = classes["kl"].iloc[-1] * growth / growth[-1]
    for name, marker in (("euclidean", "o"), ("kl", "s")):
        left.loglog(classes.index, classes[name], marker=marker, label={"kl": "KL"}.get(name, "Euclidean"))
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


# --------------------------------------------------------------------------------------------- the paper's grid


def flops(side: int = 224) -> tuple[float, float]:
    """Floating point operations of ResNet-50 for an image: (forward and backward, forward alone)."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:  # counted, not computed
        model, x = build_model("resnet50", 1000, 3), torch.zeros(2, 3, side, side)
        y = model(x)
        forward = counter.get_total_flops()
        y.sum().backward()
    return counter.get_total_flops() / 2, forward / 2


def projection(quick: bool) -> dict:
    """Days that all grids of the paper would take on this device at the rate ResNet-50 reaches on it."""
    side, cuda = (64 if quick else 224), torch.cuda.is_available()
    batch = 64 if cuda else 4
    stretch = Stretch(1, side, batch, model="resnet50", stem="imagenet", amp=cuda)
    rate = batch * flops(side)[0] / statistics.median(interleaved(1 if quick else 3, step=stretch.limit)["step"])
    learn, look = flops()
    grids = sorted((paths.notebooks() / "sweeps").glob("paper_*.yaml"))
    configs = {config for grid in grids for config in Grid.load(grid).runs()}
    days = dict.fromkeys(IMAGES, 0.0)
    for config in configs:
        training_images, test_images = IMAGES[config.dataset]
        days[config.dataset] += config.epochs * (training_images * learn + test_images * look) / rate / 86_400
    return {
        "flops_per_image": learn,
        "flops_per_second": rate,
        "runs": len(configs),
        "days": days,
        "total_days": sum(days.values()),
    }
