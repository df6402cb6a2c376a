"""How near the engine is to the machine's limit: ratios of things measured side by side in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from clamkit import augment, data
from clamkit._vision import torchvision
from clamkit.batches import Batches
from clamkit.models import build_model
from clamkit.simplex import LowerBounded
from clamkit.train import Game, train_epoch
from clamkit.weighters import CLAM, Uniform, Weighter

BATCH = 128


def interleaved(repeats: int, **jobs: Callable[[], None]) -> dict[str, float]:
    """Median seconds of each job, taken in turns so that a noisy machine slows all alike; a first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            if turn:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def _game(weighter: Weighter) -> Game:
    torch.manual_seed(0)
    dataset = data.load("fashion_mnist_mini")
    model = build_model("tiny_resnet", 10, 1).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    batches = Batches(augment.RandomResizedCrop(0.3), dataset.mean, dataset.std, "cpu")
    return Game(dataset, batches, model, optimizer, weighter, torch.device("cpu"))


def _epoch(weighter: Weighter, steps: int) -> Callable[[], None]:
    """A stretch of real training: data, crop, flip, loss, counting, weight step."""
    game = _game(weighter)
    x, y = game.dataset.x_train[: steps * BATCH], game.dataset.y_train[: steps * BATCH]

    def job() -> None:
        train_epoch(game, game.batches.training(x, y, BATCH, torch.Generator().manual_seed(0)), [0.01] * steps)
        game.weighter.step()

    return job


def _limit(steps: int) -> Callable[[], None]:
    """Forward, backward and step alone, on one batch that is already there."""
    game = _game(Uniform(10))
    x, y = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=torch.channels_last), torch.arange(BATCH) % 10

    def job() -> None:
        for _ in range(steps):
            loss = F.cross_entropy(game.model(x), y)
            game.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            game.optimizer.step()

    return job


def _augmentations() -> dict[str, Callable[[], None]]:
    x = data.load("fashion_mnist_mini").x_train[:512]
    batched = augment.RandomResizedCrop(0.3)
    v2 = torchvision.transforms.v2
    single = v2.Compose([v2.RandomResizedCrop(28, scale=(0.3, 1), antialias=False), v2.RandomHorizontalFlip()])
    generator = torch.Generator().manual_seed(0)
    return {"batched": lambda: batched(x, generator), "torchvision": lambda: [single(image) for image in x]}


def bench(quick: bool = False) -> pd.DataFrame:
    """One row for each measurement: value, goal and whether it is met."""
    repeats, steps = (3, 4) if quick else (9, 12)
    engine = interleaved(repeats, limit=_limit(steps), clam=_epoch(CLAM(10), steps), normal=_epoch(Uniform(10), steps))
    crops = interleaved(repeats, **_augmentations())
    x = np.random.default_rng(0).dirichlet(np.ones(8142))
    allowed = LowerBounded(8142, 0.5 / 8142)
    projection = interleaved(repeats, **{m: lambda m=m: allowed.project(x, m) for m in ("euclidean", "kl")})
    rows = [
        ("engine / limit (images/s)", engine["limit"] / engine["clam"], "≥", 0.95),
        ("CLAM / Normal (time of an epoch)", engine["clam"] / engine["normal"], "≤", 1.01),
        ("batched crop and flip / torchvision (images/s)", crops["torchvision"] / crops["batched"], "≥", 10),
        ("projection of 8,142 classes, ms", 1e3 * max(projection.values()), "≤", 5),
    ]
    frame = pd.DataFrame(rows, columns=["what", "value", "is_", "goal"])
    frame["met"] = np.where(frame["is_"] == "≥", frame["value"] >= frame["goal"], frame["value"] <= frame["goal"])
    return frame
