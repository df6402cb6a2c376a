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
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm.auto import tqdm

from clamkit import augment, data, ranks
from clamkit.batches import Batches
from clamkit.config import PROTOCOLS, RunConfig
from clamkit.errors import ClamkitError, unknown
from clamkit.live import live_view
from clamkit.methods import build_method
from clamkit.metrics import class_accuracy, fairness
from clamkit.models import build_model, orthogonal_init
from clamkit.runs import COLUMNS, Run, RunStore
from clamkit.weighters import APStar, Weighter

WARM_UP = 0.3  # share of the steps in which the one-cycle rate rises, from 1/25 of the peak; then a cosine to ~0
START, END = 1 / 25, 1e-5


def train(
    config: RunConfig,
    *,
    runs: str | os.PathLike | None = None,
    device: str = "auto",
    progress: bool | None = None,
    live: bool = False,
) -> Run:
    """Train one run and return it; a finished run is returned at once, an unfinished one goes on.

    runs      the runs folder; default `paths.runs()`
    device    "auto" takes CUDA, then MPS, then the CPU
    progress  a bar over the epochs; default: only for people (a terminal or a notebook, CLAMKIT_PROGRESS not 0)
    live      in a notebook: weights and accuracies of the classes, drawn anew after each epoch
    """
    run = RunStore(runs).run(config)
    with ranks.group(find_device(device)) as where:
        dataset = ranks.first_alone(
            lambda: data.load(
                config.dataset,
                data_dir=config.data_dir,
                image_size=config.image_size,
                skip_bad_images=config.skip_bad_images,
                per_class=config.per_class,
            )
        )
        if ranks.world() > 1:
            _check_shares(config, len(dataset.x_train))
        with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
            torch.manual_seed(_seed(config.seed, 0))
            game = _set_up(config, dataset, where)
            with run.locked() if ranks.rank() == 0 else nullcontext():
                ranks.first_alone(lambda: run.claim(config) if ranks.rank() == 0 else None)
                if not run.done:
                    _train(run, config, game, progress, live_view(dataset.class_names) if live else None)
    return run


@dataclass
class Game:
    """Everything a run plays with: the data, the max player (model and optimizer), the min player (weighter)."""

    dataset: data.Dataset
    batches: Batches
    model: nn.Module
    optimizer: torch.optim.Optimizer
    weighter: Weighter
    device: torch.device
    amp: torch.dtype | None = None  # of the forward pass; None: float32
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler(enabled=False))  # for float16
    best: dict[str, Tensor] | None = None  # the network to return to, for methods that do
    parallel: nn.Module | None = None  # the model as several processes train it: their gradients averaged


def _set_up(config: RunConfig, dataset: data.Dataset, device: torch.device) -> Game:
    protocol = PROTOCOLS[config.protocol]
    mean, std = (data.IMAGENET_MEAN, data.IMAGENET_STD) if protocol.imagenet_statistics else (dataset.mean, dataset.std)
    size = config.image_size or dataset.x_train.shape[2]
    model = build_model(config.model, dataset.num_classes, max(dataset.channels, len(mean)), config.stem, size)
    if protocol.orthogonal_init:
        orthogonal_init(model)
    if ranks.world() > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # on CPUs each process normalises by its own part
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
        fused=True,
    )
    if config.compile:
        model.compile()
    kinds = {"crop": augment.RandomResizedCrop, "jitter": augment.ColourJitter}
    transform = kinds[config.augmentation](config.strength, size=config.image_size, flip=config.flip)
    weighter = build_method(
        config.method,
        config.dataset,
        dataset.num_classes,
        protocol=config.protocol,
        label_smoothing=config.label_smoothing,
        **config.method_settings(),
    )
    batches = Batches(transform, mean, std, device, size=config.image_size, skip_bad=config.skip_bad_images)
    amp = mixed_precision(device) if config.amp else None
    scaler = torch.amp.GradScaler(device.type, enabled=amp == torch.float16)
    parallel = DistributedDataParallel(model) if ranks.world() > 1 else None
    return Game(dataset, batches, model, optimizer, weighter, device, amp, scaler, parallel=parallel)


def _train(run: Run, config: RunConfig, game: Game, progress: bool | None, watch: Callable | None) -> None:
    started = time.monotonic()
    dataset, weighter = game.dataset, game.weighter
    history: list[dict[str, Tensor]] = []
    if state := ranks.first_alone(lambda: _resume(run, dataset)):
        game.model.load_state_dict(state["model"])
        game.optimizer.load_state_dict(state["optimizer"])
        if state.get("scaler"):
            game.scaler.load_state_dict(state["scaler"])
        weighter.load_state_dict(state["weighter"])
        game.best = state["best"]
        history = [dict(zip(COLUMNS, rows, strict=True)) for rows in state["history"]]
        started -= state["seconds"]

    x, y = dataset.x_train, dataset.y_train
    if isinstance(x, Tensor):
        x, y = x.to(game.device), y.to(game.device)  # the whole set on the device, one byte a pixel
    bar = tqdm(
        range(len(history) + 1, config.epochs + 1),
        initial=len(history),
        total=config.epochs,
        desc=f"{config.method} {config.augmentation} {config.strength:g} seed {config.seed}",
        unit="epoch",
        disable=not show_progress(progress) or ranks.rank() > 0,
    )
    for epoch in bar:
        torch.manual_seed(_seed(config.seed, epoch))  # for layers that draw themselves, such as dropout
        generator = torch.Generator().manual_seed(_seed(config.seed, epoch))
        weights = weighter.weights.clone()
        steps = math.ceil(len(x) / config.batch_size)
        rates = [
            config.lr * learning_rate(config.chosen("schedule"), (epoch - 1) * steps + step, steps * config.epochs)
            for step in range(steps)
        ]
        losses = train_epoch(game, game.batches.training(x, y, config.batch_size, generator), rates)
        _check_finite(losses, config, epoch)
        if config.chosen("accuracy_from") == "pass":
            _count(game, game.batches.training(x, y, config.batch_size, generator))
        elif config.chosen("accuracy_from") == "clean":
            _count(game, game.batches.plain(x, y))
        accuracy, loss = weighter.counted()
        weighter.step()
        if isinstance(weighter, APStar) and weighter.original and weighter.improved:
            game.best = {name: value.cpu().clone() for name, value in game.model.state_dict().items()}
        labels, predicted = predict(game)
        tested = class_accuracy(labels, predicted, dataset.num_classes)
        rows = (weights, torch.from_numpy(accuracy), torch.from_numpy(loss), torch.from_numpy(tested))
        history.append(dict(zip(COLUMNS, rows, strict=True)))
        if watch:
            watch(history)
        bar.set_postfix(average=f"{np.nanmean(tested):.1%}", worst=f"{np.nanmin(tested):.1%}")
        if ranks.rank() > 0:
            continue  # the first process writes
        run.save_checkpoint(
            {
                "model": game.model.state_dict(),
                "optimizer": game.optimizer.state_dict(),
                "scaler": game.scaler.state_dict(),
                "weighter": weighter.state_dict(),
                "best": game.best,
                "history": [[row[name] for name in COLUMNS] for row in history],
                "seconds": time.monotonic() - started,
                "data": dataset.sha256,
            }
        )
        run.save_history({name: torch.stack([row[name] for row in history]) for name in COLUMNS})

    if game.best is not None:
        game.model.load_state_dict(game.best)
    labels, predicted = predict(game)
    if ranks.rank() > 0:
        return
    run.save_history({name: torch.stack([row[name] for row in history]) for name in COLUMNS})
    tested = class_accuracy(labels, predicted, dataset.num_classes)
    run.finish(
        {
            **fairness(tested[~np.isnan(tested)]).to_dict(),
            "seconds": time.monotonic() - started,
            "device": str(game.device),
            "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in game.model.parameters()),
            "data": dataset.sha256,
            "class_names": list(dataset.class_names),
            "versions": {name: version(name) for name in ("clamkit", "torch", "numpy")}
            | {"python": platform.python_version()},
        },
        pd.DataFrame({"label": labels, "prediction": predicted}),
    )


def train_epoch(game: Game, batches: Iterable[tuple[Tensor, Tensor]], rates: Sequence[float]) -> Tensor:
    """One pass over the data: the max player's move, with the accuracies counted on the way. Returns the losses."""
    losses = []
    game.model.train()
    for (x, y), rate in zip(batches, rates, strict=False):  # image files left out may leave fewer batches
        game.optimizer.param_groups[0]["lr"] = rate
        logits = forward(game, x)
        loss = game.weighter.loss(logits, y)
        game.optimizer.zero_grad(set_to_none=True)
        game.scaler.scale(loss * ranks.emphasis(len(y), y.device)).backward()
        game.scaler.step(game.optimizer)
        game.scaler.update()
        game.weighter.observe(logits.detach(), y)
        losses.append(loss.detach())
    ranks.align(game.model.buffers())
    return torch.stack(losses)


def forward(game: Game, x: Tensor) -> Tensor:
    """Logits, in mixed precision where the run asks for it; losses and counts stay in float32."""
    with torch.autocast(game.device.type, dtype=game.amp, enabled=game.amp is not None):
        return (game.model if game.parallel is None or not game.model.training else game.parallel)(x)


def mixed_precision(device: torch.device) -> torch.dtype:
    """bfloat16, which needs no scaling of the loss; float16 on GPUs that are older than it."""
    old = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if old else torch.bfloat16


def _check_finite(losses: Tensor, config: RunConfig, epoch: int) -> None:
    bad = torch.nonzero(~losses.isfinite())  # looked at once an epoch, so that no step waits for it
    if len(bad):
        raise ClamkitError(
            f"the loss is not finite at epoch {epoch}, step {int(bad[0]) + 1} of {len(losses)} (lr={config.lr:g}). The "
            f"run stops; its last good checkpoint (epoch {epoch - 1}) is kept. Try a smaller lr, or look at the data."
        )


def _check_shares(config: RunConfig, samples: int) -> None:
    """Every process needs a part of every batch, or the others would wait for it for ever."""
    smallest = samples // math.ceil(samples / config.batch_size)
    if smallest < ranks.world():
        raise ClamkitError(
            f"batches of {smallest} images cannot be shared by {ranks.world()} processes: give a larger batch_size, or "
            "start fewer."
        )
    if config.skip_bad_images:
        raise ClamkitError("skip_bad_images works with one process only: take the files out that it names, then go on.")


@torch.inference_mode()
def _count(game: Game, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Count the accuracies anew in a pass of their own, without learning."""
    game.weighter.forget()
    game.model.eval()
    for x, y in batches:
        game.weighter.observe(forward(game, x), y)


@torch.inference_mode()
def predict(game: Game) -> tuple[np.ndarray, np.ndarray]:
    """Label and predicted class of each test image."""
    game.model.eval()
    pairs = [(y, forward(game, x).argmax(1)) for x, y in game.batches.plain(game.dataset.x_test, game.dataset.y_test)]
    return tuple(ranks.whole(torch.cat(part)).cpu().numpy() for part in zip(*pairs, strict=True))


def learning_rate(schedule: str, step: int, steps: int) -> float:
    """Share of the peak rate at a step of the whole training: constant, or torch's OneCycleLR as a function."""
    if schedule == "constant":
        return 1.0
    rise = WARM_UP * steps - 1
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
