"""The engine: `train(RunConfig(...)) -> Run`.

Everything random in an epoch is a function of (seed, epoch), so a run that goes on from its checkpoint gives the
same bits as one that was never stopped (on the same CPU with the same number of threads).
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm.auto import tqdm

from clamkit.data.augment import TRANSFORMS, bounds_by_weights
from clamkit.data.batches import Batches
from clamkit.data.dataset import IMAGENET, Dataset
from clamkit.data.datasets import DATASETS, load_data
from clamkit.data.readers import Files
from clamkit.engine import distributed
from clamkit.engine.config import PROTOCOLS, RunConfig
from clamkit.engine.device import find_device, mixed_precision, show_progress
from clamkit.engine.models import FastNet, build_model, orthogonal_init
from clamkit.engine.optimizer import Lookahead, build_optimizer, learning_rate, set_rate
from clamkit.engine.store import COLUMNS, Logits, RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.methods.weighters import Weighter, build_method
from clamkit.metrics import class_accuracy, fairness

STATEFUL = ("model", "optimizer", "scaler", "weighter", "average")  # whose `state_dict` a checkpoint holds
WHITENED = 2000  # images that the first layer of a fastnet is set by
FLOAT16_MAX = torch.finfo(torch.float16).max

History = list[dict[str, Tensor]]  # for each epoch, the columns of a run's history by class
Watch = Callable[[History, Sequence[str]], None]


def train(
    config: RunConfig,
    *,
    runs: str | os.PathLike | None = None,
    device: str = "auto",
    progress: bool | None = None,
    watch: Watch | None = None,
) -> RunFolder:
    """Train one run and return it; a finished run is returned at once, an unfinished one goes on.

    runs      the runs folder; default `paths.runs()`
    device    "auto" takes CUDA, then MPS, then the CPU
    progress  a bar over the epochs; default: only for people (a terminal or a notebook, CLAMKIT_PROGRESS not 0)
    watch     called after each epoch with the history so far and the class names: `plots.live_view()` draws them

    >>> run = train(RunConfig(method="clam", epochs=1, per_class=20), runs="my_runs", progress=False)
    >>> len(run.test_accuracy)  # one for each class
    10
    """
    run = RunStore(runs).run(config)
    finished = False
    with suppress(ClamkitError):  # a config of another version: said below
        finished = run.done and not run.damaged() and run.config.identity() == config.identity()
    if finished:  # known data are not read again, which takes minutes for a million image files
        if config.dataset not in DATASETS:
            _check_own_data(run, config)
        return run
    with distributed.group(find_device(device)) as where:
        dataset = distributed.main_process_first(lambda: load_config_data(config))
        if distributed.world_size() > 1:
            _check_shares(config, len(dataset.x_train))
        with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
            torch.manual_seed(_seed(config.seed, 0))
            state = set_up(config, dataset, where)
            with run.locked() if distributed.rank() == 0 else nullcontext():
                distributed.main_process_first(lambda: run.claim(config) if distributed.rank() == 0 else None)
                if not run.done:
                    _train(run, state, progress, watch)
            del state  # what averages its gradients goes before the group of processes does
    return run


def load_config_data(config: RunConfig) -> Dataset:
    """The dataset that a config names, as training sees it."""
    options = config.model_dump(include={"data_dir", "image_size", "skip_bad_images", "per_class", "holdout"})
    return load_data(config.dataset, **options)


@dataclass
class TrainingState:
    """Everything a run trains with: the data, the max player (model and optimizer), the min player (weighter)."""

    config: RunConfig
    dataset: Dataset
    batches: Batches
    model: nn.Module
    optimizer: torch.optim.Optimizer
    weighter: Weighter
    device: torch.device
    amp: torch.dtype | None = None  # of the forward pass; None: float32
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler(enabled=False))  # for float16
    kept: dict[str, Tensor] | None = None  # the network to return to, for methods that do
    average: Lookahead | None = None  # of the network's weights
    parallel: nn.Module | None = None  # the model as several processes train it: their gradients averaged
    history: History = field(default_factory=list)

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in STATEFUL:
            if saved.get(name):  # only float16 leaves a state of the scaler
                getattr(self, name).load_state_dict(saved[name])
        self.kept = saved["best"]
        self.history = [dict(zip(COLUMNS, rows, strict=True)) for rows in saved["history"]]

    def to_save(self, seconds: float) -> dict[str, Any]:
        history = [[row[name] for name in COLUMNS] for row in self.history]
        others = {"best": self.kept, "history": history, "seconds": seconds, "data": self.dataset.sha256}
        parts = {name: getattr(self, name) for name in STATEFUL}
        return {name: part.state_dict() for name, part in parts.items() if part is not None} | others


def set_up(config: RunConfig, dataset: Dataset, device: torch.device) -> TrainingState:
    """Model, optimizer, weighter and batches of a config, before the first epoch."""
    protocol = PROTOCOLS[config.protocol]
    _check_bounds(config, dataset)
    mean, std = IMAGENET if protocol.imagenet_statistics else (dataset.mean, dataset.std)
    size = config.image_size or dataset.x_train.shape[2]
    rank, world = distributed.rank(), distributed.world_size()
    model = build_model(config.model, dataset.num_classes, max(dataset.channels, len(mean)), config.stem, size)
    if protocol.orthogonal_init:
        orthogonal_init(model)
    if world > 1 and device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # on CPUs each process normalises by its own part
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = build_optimizer(model, config)
    if config.compile:
        model.compile()
    strength = min(config.crop_bounds) if isinstance(config.crop_bounds, tuple) else config.strength
    more = {"whole_views": config.whole_views} if config.whole_views else {}  # of crops only
    transform = TRANSFORMS[config.augmentation](strength, size=config.image_size, flip=config.flip, **more)
    options = {"protocol": config.protocol, "label_smoothing": config.label_smoothing} | config.method_settings()
    if isinstance(place := options.get("class_weights"), str) and os.path.isdir(os.path.expanduser(place)):
        options["class_weights"] = RunFolder(os.path.expanduser(place))
    weighter = build_method(config.method, config.dataset, dataset.num_classes, sizes=dataset.sizes, **options)
    skip_bad = config.skip_bad_images
    batches = Batches(transform, mean, std, device, size=config.image_size, skip_bad=skip_bad, rank=rank, world=world)
    if isinstance(model, FastNet):
        every = math.ceil(len(dataset.x_train) / WHITENED)
        model.whiten(torch.cat([x for x, _ in batches.plain(dataset.x_train, dataset.y_train, every)]))
    amp = mixed_precision(device, config.amp)
    scaler = torch.amp.GradScaler(device.type, enabled=amp == torch.float16)
    parallel = DistributedDataParallel(model) if world > 1 else None
    state = TrainingState(config, dataset, batches, model, optimizer, weighter, device, amp, scaler, parallel=parallel)
    if config.lookahead:
        steps = math.ceil(len(dataset.x_train) / config.batch_size) * config.epochs
        state.average = Lookahead(model, config.lookahead, steps)
    return state


def _train(run: RunFolder, state: TrainingState, progress: bool | None, watch: Watch | None) -> None:
    started = time.monotonic()
    config, dataset, first = state.config, state.dataset, distributed.rank() == 0
    if saved := distributed.main_process_first(lambda: _resume(run, dataset)):
        state.load(saved)
        started -= saved["seconds"]
    x, y = dataset.x_train, dataset.y_train
    if isinstance(x, Tensor):
        x = x.to(state.device)  # the whole set on the device, one byte a pixel
    title = f"{config.method} {config.augmentation} {config.strength:g} seed {config.seed}"
    done, hidden = len(state.history), not first or not show_progress(progress)
    left = range(done + 1, config.epochs + 1)
    bar = tqdm(left, desc=title, initial=done, total=config.epochs, unit="epoch", disable=hidden)
    for epoch in bar:
        _epoch(state, x, y, epoch)
        tested = state.history[-1]["test_accuracy"].numpy()
        bar.set_postfix(average=f"{np.nanmean(tested):.1%}", worst=f"{np.nanmin(tested):.1%}")
        if first and watch:
            watch(state.history, dataset.class_names)
        if first:
            run.save_checkpoint(state.to_save(time.monotonic() - started))
            run.save_history(_columns(state.history))
    if state.kept is not None:
        state.model.load_state_dict(state.kept)
    labels, predicted, *logits = predict(state, logits=config.keep_logits)
    if logits:  # without held-out images, none of their logits
        held = predict(state, "holdout", logits=True) if config.holdout else (labels[:0], None, logits[0][:0])
        logits += [labels, held[2], held[0]]
    if first:
        run.save_history(_columns(state.history))
        summary = _summary(state, labels, predicted, time.monotonic() - started)
        found = pd.DataFrame({"label": labels, "prediction": predicted})
        run.finish(summary, found, Logits(*logits) if logits else None)


def _epoch(state: TrainingState, x: Any, y: Tensor, epoch: int) -> None:
    """Both players move once; what came out is added to the history."""
    config = state.config
    torch.manual_seed(_seed(config.seed, epoch))  # for layers that draw themselves, such as dropout
    generator = torch.Generator().manual_seed(_seed(config.seed, epoch))
    weighter, batches, schedule = state.weighter, state.batches, config.chosen("schedule")
    weights = weighter.weights.clone()
    steps = math.ceil(len(x) / config.batch_size)
    place = range((epoch - 1) * steps, epoch * steps)  # of this epoch's steps in the whole training
    rates = [config.lr * learning_rate(schedule, step, steps * config.epochs) for step in place]
    drawn_by = weights if config.draws_by_weights else None
    bounds = _class_bounds(config, weights)
    losses = train_epoch(state, batches.training(x, y, config.batch_size, generator, drawn_by, bounds), rates)
    _check_finite(state, losses, epoch)
    if config.chosen("accuracy_from") == "pass":
        count(state, batches.training(x, y, config.batch_size, generator, bounds=bounds))
    elif config.chosen("accuracy_from") == "clean":
        count(state, batches.plain(x, y))
    elif config.chosen("accuracy_from") == "holdout":
        count(state, batches.plain(state.dataset.x_holdout, state.dataset.y_holdout))
    accuracy, loss = weighter.counted()
    weighter.step()
    if weighter.keeps_network:
        state.kept = {name: value.cpu().clone() for name, value in state.model.state_dict().items()}
    labels, predicted = predict(state)
    tested = class_accuracy(labels, predicted, state.dataset.num_classes)
    rows = (weights, *map(torch.from_numpy, (accuracy, loss, tested)))
    state.history.append(dict(zip(COLUMNS, rows, strict=True)))


def train_epoch(state: TrainingState, batches: Iterable[tuple[Tensor, Tensor]], rates: Sequence[float]) -> Tensor:
    """One pass over the data: the max player's move, with the accuracies counted on the way. Returns the losses."""
    losses = []
    plain = not state.config.weighs_loss
    state.model.train()
    for (x, y), rate in zip(batches, rates, strict=False):  # image files left out may leave fewer batches
        set_rate(state.optimizer, rate)
        logits = forward(state, x)
        loss = state.weighter(logits, y, plain=plain)
        state.optimizer.zero_grad(set_to_none=True)
        state.scaler.scale(loss * distributed.loss_scale(len(y), y.device)).backward()
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.average:
            state.average.step()
        losses.append(loss.detach())
    distributed.broadcast(state.model.buffers())
    return torch.stack(losses)


def forward(state: TrainingState, x: Tensor) -> Tensor:
    """Logits, in mixed precision where the run asks for it; losses and counts stay in float32."""
    model = state.parallel if state.parallel is not None and state.model.training else state.model
    with torch.autocast(state.device.type, dtype=state.amp, enabled=state.amp is not None):
        return model(x)


@torch.inference_mode()
def count(state: TrainingState, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Count the accuracies anew in a pass of their own, without learning."""
    state.weighter.forget()
    state.model.eval()
    state.weighter.eval()  # counts, and moves by none of these batches
    for x, y in batches:
        state.weighter.observe(forward(state, x), y)
    state.weighter.train()


@torch.inference_mode()
def predict(state: TrainingState, part: str = "test", *, logits: bool = False) -> tuple[np.ndarray, ...]:
    """Label and predicted class of each test (or "holdout") image; and its logits in float16, cut to its range."""
    state.model.eval()
    found = []
    for x, y in state.batches.plain(getattr(state.dataset, f"x_{part}"), getattr(state.dataset, f"y_{part}")):
        z = (forward(state, x) + forward(state, x.flip(3))) / 2 if state.config.mirror_test else forward(state, x)
        found.append((y, z.argmax(1), *([z.float().clamp(-FLOAT16_MAX, FLOAT16_MAX).half()] if logits else [])))
    return tuple(distributed.gather(torch.cat(parts)).cpu().numpy() for parts in zip(*found, strict=True))


def _class_bounds(config: RunConfig, weights: Tensor) -> Tensor | None:
    if config.crop_bounds == "weights":
        return bounds_by_weights(weights, config.crop_lower_bound)
    return torch.tensor(config.crop_bounds, dtype=torch.float64) if config.crop_bounds else None


def _columns(history: History) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in history]) for name in COLUMNS}


def _summary(state: TrainingState, labels: np.ndarray, predicted: np.ndarray, seconds: float) -> dict[str, Any]:
    tested = class_accuracy(labels, predicted, state.dataset.num_classes)
    return {
        **{str(name): value for name, value in fairness(tested[~np.isnan(tested)]).items()},
        "seconds": seconds,
        "device": str(state.device),
        "threads": torch.get_num_threads(),
        "precision": str(state.amp or torch.float32).removeprefix("torch."),
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "data": state.dataset.sha256,
        "class_names": list(state.dataset.class_names),
        "versions": {name: version(name) for name in ("clamkit", "torch", "numpy")}
        | {"python": platform.python_version()},
    }


def _resume(run: RunFolder, dataset: Dataset) -> dict | None:
    if saved := run.load_checkpoint():
        _refuse_other_data(run, dataset, saved["data"])
        run.read_or_set_aside("history.parquet", pd.read_parquet)
    return saved


def _check_own_data(run: RunFolder, config: RunConfig) -> None:
    """Data of one's own may be others by now; where they are gone there is nothing to compare."""
    try:
        dataset = load_config_data(config)
    except ClamkitError:
        return
    if isinstance(dataset.x_train, Tensor):  # of image files a smaller copy may have come since
        _refuse_other_data(run, dataset, run.summary["data"])


def _refuse_other_data(run: RunFolder, dataset: Dataset, sha256: str) -> None:
    if sha256 != dataset.sha256:
        what = f"{run.folder.name} was trained on other content of {dataset.name} than is there now"
        raise ClamkitError(f"{what}: restore the data, or move the run folder away and start anew.")


def _check_finite(state: TrainingState, losses: Tensor, epoch: int) -> None:
    left = torch.stack([parameter.isfinite().all() for parameter in state.model.parameters()]).all()  # by the last step
    good = torch.cat([losses.isfinite(), left[None]]).cumprod(0).sum()[None]
    if (fine := int(distributed.gather(good).min())) <= len(losses):  # all processes stop together
        step = f"step {fine + 1} of {len(losses)}" if fine < len(losses) else "in what the last step left"
        raise ClamkitError(
            f"the loss is not finite at epoch {epoch}, {step} (lr={state.config.lr:g}). The run stops; its last good "
            f"checkpoint (epoch {epoch - 1}) is kept. Try a smaller lr, or look at the data."
        )


def _check_bounds(config: RunConfig, dataset: Dataset) -> None:
    bounds = config.crop_bounds
    if isinstance(bounds, tuple) and len(bounds) != dataset.num_classes:
        classes = f"{dataset.name} has {dataset.num_classes} classes"
        raise ClamkitError(f"crop_bounds has {len(bounds)} numbers, but {classes}: give one for each, in their order.")
    if bounds and isinstance(dataset.x_train, Files):
        raise ClamkitError(f"crop_bounds work on images in memory: {dataset.name} is read file by file.")


def _check_shares(config: RunConfig, samples: int) -> None:
    """Every process needs a part of every batch, or the others would wait for it for ever."""
    smallest, world = samples // math.ceil(samples / config.batch_size), distributed.world_size()
    if smallest < world:
        raise ClamkitError(f"batches of {smallest} images cannot be shared by {world} processes: take larger ones.")
    if config.skip_bad_images:
        raise ClamkitError("skip_bad_images works with one process only: take the files out that it names, then go on.")


def _seed(seed: int, epoch: int) -> int:
    """An independent random stream for each epoch of each seed; epoch 0 is the initialisation."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0] >> 1)
