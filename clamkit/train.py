"""The engine: `train(RunConfig(...)) -> Run`.

Everything random in an epoch is a function of (seed, epoch), so a run that goes on from its checkpoint gives the
same bits as one that was never stopped (on the same CPU with the same number of threads).
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from clamkit import augment, data
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError, unknown
from clamkit.methods import build_method
from clamkit.metrics import class_accuracy, fairness
from clamkit.models import build_model
from clamkit.runs import COLUMNS, Run, RunStore
from clamkit.weighters import Weighter

EVALUATION_BATCH = 1000
WARM_UP = 0.3  # share of the steps in which the one-cycle rate rises, from 1/25 of the peak; then a cosine to ~0
START, END = 1 / 25, 1e-5


def train(
    config: RunConfig, *, runs: str | os.PathLike | None = None, device: str = "auto", progress: bool | None = None
) -> Run:
    """Train one run and return it; a finished run is returned at once, an unfinished one goes on.

    runs      the runs folder; default `paths.runs()`
    device    "auto" takes CUDA, then MPS, then the CPU
    progress  a bar over the epochs; default: only for people (a terminal or a notebook, CLAMKIT_PROGRESS not 0)
    """
    where = find_device(device)
    run = RunStore(runs).run(config)
    dataset = data.load(config.dataset, data_dir=config.data_dir, image_size=config.image_size)
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        torch.manual_seed(_seed(config.seed, 0))
        model = build_model(config.model, dataset.num_classes, dataset.channels, config.stem)
        model = model.to(where, memory_format=torch.channels_last)
        weighter = build_method(config.method, config.dataset, dataset.num_classes, **config.method_settings())
        with run.locked():
            run.claim(config)
            if not run.done:
                _train(run, config, dataset, model, weighter, where, progress)
    return run


def _train(run: Run, config: RunConfig, dataset: data.Dataset, model, weighter, device, progress) -> None:
    started = time.monotonic()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
    )
    history: list[dict[str, Tensor]] = []
    if state := _resume(run, dataset):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        weighter.load_state_dict(state["weighter"])
        history = [dict(zip(COLUMNS, rows, strict=True)) for rows in state["history"]]
        started -= state["seconds"]

    transform = augment.RandomResizedCrop(config.crop_lower_bound, size=config.image_size, flip=config.flip)
    x_train, y_train = dataset.x_train.to(device), dataset.y_train.to(device)
    bar = tqdm(
        range(len(history) + 1, config.epochs + 1),
        initial=len(history),
        total=config.epochs,
        desc=f"{config.method} crop {config.crop_lower_bound:g} seed {config.seed}",
        unit="epoch",
        disable=not show_progress(progress),
    )
    for epoch in bar:
        torch.manual_seed(_seed(config.seed, epoch))  # for layers that draw themselves, such as dropout
        generator = torch.Generator().manual_seed(_seed(config.seed, epoch))
        weights = weighter.weights.clone()
        batches = training_batches(x_train, y_train, dataset, transform, config.batch_size, generator)
        _train_epoch(model, optimizer, weighter, batches, config, epoch, len(x_train))
        accuracy, loss = weighter.counted()
        weighter.step()
        predicted = predict(model, dataset.x_test, dataset, device, config.image_size)
        tested = class_accuracy(dataset.y_test, predicted, dataset.num_classes)
        rows = (weights, torch.from_numpy(accuracy), torch.from_numpy(loss), torch.from_numpy(tested))
        history.append(dict(zip(COLUMNS, rows, strict=True)))
        bar.set_postfix(average=f"{np.nanmean(tested):.1%}", worst=f"{np.nanmin(tested):.1%}")
        run.save_checkpoint(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "weighter": weighter.state_dict(),
                "history": [[row[name] for name in COLUMNS] for row in history],
                "seconds": time.monotonic() - started,
                "data": dataset.sha256,
            }
        )
        run.save_history({name: torch.stack([row[name] for row in history]) for name in COLUMNS})

    run.save_history({name: torch.stack([row[name] for row in history]) for name in COLUMNS})
    predicted = predict(model, dataset.x_test, dataset, device, config.image_size)
    tested = history[-1]["test_accuracy"].numpy()
    run.finish(
        {
            **fairness(tested[~np.isnan(tested)]).to_dict(),
            "seconds": time.monotonic() - started,
            "device": str(device),
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "data": dataset.sha256,
            "class_names": list(dataset.class_names),
            "versions": {name: version(name) for name in ("clamkit", "torch", "numpy")}
            | {"python": platform.python_version()},
        },
        pd.DataFrame({"label": dataset.y_test.numpy(), "prediction": predicted}),
    )


def _train_epoch(model: nn.Module, optimizer, weighter: Weighter, batches, config: RunConfig, epoch: int, size: int):
    """One pass over the data: the max player's move, with the accuracies counted on the way."""
    steps = math.ceil(size / config.batch_size)
    losses = []
    model.train()
    for step, (x, y) in enumerate(batches):
        done = (epoch - 1 + step / steps) / config.epochs
        optimizer.param_groups[0]["lr"] = config.lr * learning_rate(config.schedule, done, steps * config.epochs)
        logits = model(x)
        loss = weighter.loss(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        weighter.observe(logits.detach(), y)
        losses.append(loss.detach())
    bad = torch.nonzero(~torch.stack(losses).isfinite())  # looked at once an epoch, so that no step waits for it
    if len(bad):
        raise ClamkitError(
            f"the loss is not finite at epoch {epoch}, step {int(bad[0]) + 1} of {steps} (lr={config.lr:g}). The run "
            f"stops; its last good checkpoint (epoch {epoch - 1}) is kept. Try a smaller lr, or look at the data."
        )


def training_batches(
    x: Tensor, y: Tensor, dataset: data.Dataset, transform, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole set once in random order, augmented and normalised, in batches of nearly equal size."""
    order = torch.randperm(len(x), generator=generator)
    drawn = transform.draw(len(x), x.shape[2], x.shape[3], generator)
    for rows in torch.arange(len(x)).tensor_split(math.ceil(len(x) / batch_size)):
        chosen = order[rows].to(x.device)
        images = transform.apply(x[chosen], *(part[rows].to(x.device) for part in drawn))
        images = augment.normalise(images, dataset.mean, dataset.std)
        yield images.contiguous(memory_format=torch.channels_last), y[chosen]


@torch.inference_mode()
def predict(model: nn.Module, x: Tensor, dataset: data.Dataset, device, image_size: int | None = None) -> np.ndarray:
    """The class predicted for each image, without augmentation."""
    model.eval()
    whole = augment.RandomResizedCrop(1.0, size=image_size, flip=False)
    predicted = []
    for images in x.split(EVALUATION_BATCH):
        images = augment.normalise(whole(images.to(device), torch.Generator()), dataset.mean, dataset.std)
        predicted.append(model(images.contiguous(memory_format=torch.channels_last)).argmax(1))
    return torch.cat(predicted).cpu().numpy()


def learning_rate(schedule: str, done: float, steps: int) -> float:
    """Share of the peak rate when `done` of the training is over: torch's OneCycleLR as a function of the step."""
    if schedule == "constant":
        return 1.0
    rise = WARM_UP * steps - 1
    step = done * steps
    if step <= rise:
        return 1 + (START - 1) * (1 + math.cos(math.pi * step / rise)) / 2
    end = START * END
    return end + (1 - end) * (1 + math.cos(math.pi * (step - rise) / (steps - 1 - rise))) / 2


def find_device(name: str = "auto") -> torch.device:
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    kind = name.split(":")[0]
    if kind not in available:
        raise unknown("device", name, ["auto", *available])
    if not available[kind]:
        raise ClamkitError(f"device {name!r} is not available here: use device='auto' or 'cpu'.")
    return torch.device(name)


def show_progress(progress: bool | None) -> bool:
    """Bars are for people: a terminal or a notebook, unless CLAMKIT_PROGRESS=0."""
    if progress is not None:
        return progress
    return os.environ.get("CLAMKIT_PROGRESS") != "0" and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def _resume(run: Run, dataset: data.Dataset) -> dict | None:
    state = run.load_checkpoint()
    if state is None:
        return None
    if state["data"] != dataset.sha256:
        raise ClamkitError(
            f"{run.folder.name} was begun on other content of {dataset.name} than is there now: restore the data, "
            "or move the run folder away and start anew."
        )
    if (run.folder / "history.parquet").is_file():
        try:
            pd.read_parquet(run.folder / "history.parquet")
        except Exception as error:
            run.set_aside("history.parquet", str(error).split("\n")[0][:100])
    return state


def _seed(seed: int, epoch: int) -> int:
    """An independent random stream for each epoch of each seed; epoch 0 is the initialisation."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)
