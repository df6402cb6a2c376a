"""How near training is to the machine's limit, and what the paper's grids would take at that rate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from clamkit import paths
from clamkit.data import augment
from clamkit.data.dataset import Dataset
from clamkit.data.vision import torchvision
from clamkit.engine.config import RunConfig
from clamkit.engine.device import find_device
from clamkit.engine.loop import count, set_up, train_epoch
from clamkit.engine.models import build_model
from clamkit.lab.costs import SHAPES, flop_per_image, training_flop
from clamkit.lab.grids import Grid
from clamkit.lab.recipes import recipe
from clamkit.methods.weighters import CLAM
from measure import interleaved, one_thread, row

BATCH, SIDE = 128, 32
MEAN, STD = (0.5,) * 3, (0.25,) * 3
TEST_IMAGES = {"imagenet": 50_000, "inaturalist2018": 24_426}  # of the other datasets 10,000
v2 = torchvision.transforms.v2


class Stretch:
    """A stretch of training on noise, as `train` sets it up, and what it is compared with."""

    def __init__(self, steps: int, side: int = SIDE, batch: int = BATCH, **fields):
        self.device, self.steps, self.batch = find_device(), steps, batch
        y = torch.arange(steps * batch) % 10
        x = torch.randint(256, (len(y), 3, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        names = tuple(map(str, range(10)))
        dataset = Dataset("noise", x, y, x[:10], y[:10], class_names=names, mean=MEAN, std=STD, sha256="")
        self.config, self.held_out = RunConfig(**fields), (x[: len(y) // 10], y[: len(y) // 10])
        self.state = set_up(self.config, dataset, self.device)
        self.x, self.y = x.to(self.device), y.to(self.device)
        self.staged = next(self.state.batches.training(self.x, self.y, batch, torch.Generator().manual_seed(0)))

    def epoch(self, accuracy_from: str = "epoch") -> None:
        """Data, crop, flip, loss, counting, weight step."""
        state, generator = self.state, torch.Generator().manual_seed(0)
        weights = state.weighter.weights.clone()
        drawn_by = weights if self.config.draws_by_weights else None
        bounds = augment.bounds_by_weights(weights, 0.3) if self.config.crop_bounds else None
        batches = state.batches.training(self.x, self.y, self.batch, generator, drawn_by, bounds)
        train_epoch(state, batches, [0.01] * self.steps)
        if accuracy_from == "pass":
            count(state, state.batches.training(self.x, self.y, self.batch, generator))
        elif accuracy_from == "clean":
            count(state, state.batches.plain(self.x, self.y))
        elif accuracy_from == "holdout":  # a tenth as many images as are trained on
            count(state, state.batches.plain(*self.held_out))
        state.weighter.step()

    def limit(self) -> None:
        """Forward, backward and step alone, on one batch that is already there."""
        (x, y), state = self.staged, self.state
        state.model.train()
        for _ in range(self.steps):
            with torch.autocast(self.device.type, dtype=state.amp, enabled=state.amp is not None):
                loss = F.cross_entropy(state.model(x), y)
            state.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            state.optimizer.step()


class Conventional:
    """The loop one usually writes: each sample by itself in a DataLoader, counts in Python, a second pass for them."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, device: torch.device):
        transform = v2.Compose(
            [
                v2.RandomResizedCrop(SIDE, scale=(0.3, 1)),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )
        self.loader = DataLoader(Samples(x.cpu(), y.cpu(), transform), BATCH, shuffle=True, num_workers=2)
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


class Samples(torch.utils.data.Dataset):
    def __init__(self, x, y, transform):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        return self.transform(self.x[i]), int(self.y[i])


def engine(quick: bool) -> Iterator[dict]:
    """With one thread, as each process of a sweep on CPUs has; the conventional loop gets all there are."""
    steps, turns = (1, 1) if quick else (6, 41)
    clam, normal, limit = Stretch(steps), Stretch(steps, method="normal"), Stretch(steps)
    fields = {"model": "resnet18", "stem": "imagenet"}  # with the small stem a step takes 15 times as long
    large, large_limit = Stretch(1, **fields), Stretch(1, **fields)
    with one_thread():
        t = interleaved(turns, limit=limit.limit, clam=clam.epoch, normal=normal.epoch)
        looks = {"second_pass": lambda: clam.epoch("pass"), "clean": lambda: clam.epoch("clean")}
        more = interleaved(1 if quick else 9, normal=normal.epoch, **looks)
        big = interleaved(turns, limit=large_limit.limit, clam=large.epoch)
    usual = Conventional(clam.x, clam.y, clam.device)
    c = interleaved(1 if quick else 5, usual=usual.epoch, clam=clam.epoch, limit=limit.limit)
    yield row("engine / limit, tiny_resnet, 32 px", t["limit"] / t["clam"], "≥", 0.97)
    yield row("engine / limit, resnet18, 32 px", big["limit"] / big["clam"], "≥", 0.97)
    yield row("engine / limit, all threads", c["limit"] / c["clam"])
    yield row("engine / conventional loop, all threads", c["usual"] / c["clam"], "≥", 5)
    yield row("CLAM / Normal, seconds an epoch", t["clam"] / t["normal"], "≤", 1.01)
    yield row("… accuracies from a second pass", more["second_pass"] / more["normal"])
    yield row("… accuracies from a clean pass", more["clean"] / more["normal"])


def fast(quick: bool) -> Iterator[dict]:
    """The fast recipe on whole datasets: FLOP over the paper's, minutes by measured steps, engine over the limit."""
    for dataset, minutes in {"fashion_mnist": 10, "cifar10": 30, "cifar100": 45}.items():
        config, paper = (RunConfig(**recipe(name, dataset)) for name in ("fast", "paper"))
        images, _, side, _ = SHAPES[dataset]
        fields = config.model_dump(include={"model", "amp", "bias_lr", "lookahead", "label_smoothing"})
        stretch, limit = (Stretch(1, side, 100 if quick else config.batch_size, **fields) for _ in range(2))
        t = interleaved(1 if quick else 9, engine=stretch.epoch, limit=limit.limit)
        whole = images * config.epochs / stretch.batch / 60
        yield row(
            f"{dataset}, fast: FLOP of a run / the paper's", training_flop(config) / training_flop(paper), "≤", 0.005
        )
        yield row(f"{dataset}, fast: minutes of a run, all threads", whole * t["engine"], "≤", minutes)
        yield row(f"{dataset}, fast: engine / limit, all threads", t["limit"] / t["engine"], "≥", 0.97)


LEVERS: dict[str, dict] = {  # what is set otherwise than CLAM's weights on the loss
    "weights on the sampling": {"acts_on": "sampling"},
    "crop bounds by the weights": {"crop_bounds": "weights"},
    "crop bounds, half whole views": {"crop_bounds": "weights", "whole_views": 0.5},
    "CFOL": {"method": "cfol"},
    "group DRO": {"method": "group_dro"},
    "a tenth held out, looked at": {"accuracy_from": "holdout", "holdout": 1},
}


def levers(quick: bool) -> Iterator[dict]:
    """Seconds an epoch with each lever over those of Normal, all taking turns."""
    steps, turns = (1, 1) if quick else (6, 41)
    jobs = {"normal": Stretch(steps, method="normal").epoch}
    for name, fields in LEVERS.items():
        jobs[name] = partial(Stretch(steps, **fields).epoch, fields.get("accuracy_from", "epoch"))
    with one_thread():
        t = interleaved(turns, **jobs)
    for name in LEVERS:
        yield row(f"{name} / Normal, seconds an epoch", t[name] / t["normal"], "≤", 1.03)


def criterion(quick: bool) -> Iterator[dict]:
    """The weighted loss with its counts, forward and backward on logits as many as ImageNet's, against torch's loss."""
    batch, classes, turns, steps = (256, 1000, 1, 5) if quick else (256, 1000, 41, 50)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, classes, generator=generator).requires_grad_()
    y = torch.randint(0, classes, (batch,), generator=generator)

    def steps_of(loss: nn.Module) -> Callable[[], None]:
        def run() -> None:
            for _ in range(steps):
                logits.grad = None
                loss(logits, y).backward()

        return run

    with one_thread():
        t = interleaved(turns, torch=steps_of(nn.CrossEntropyLoss()), clam=steps_of(CLAM(classes)))
    yield row(f"criterion / CrossEntropyLoss, {batch} × {classes:,}", t["clam"] / t["torch"], "≤", 1.25)


def augmentation(quick: bool) -> Iterator[dict]:
    """A batch at once against torchvision image by image."""
    turns = 1 if quick else 15
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


def milliseconds(stretch: Stretch, turns: int) -> dict[str, float]:
    """Of the fastest turn, an image."""
    with one_thread():
        t = interleaved(turns, limit=stretch.limit, engine=stretch.epoch)
    return (1e3 * t.min() / (stretch.steps * stretch.batch)).to_dict()


def by_images(quick: bool) -> list[dict]:
    """Milliseconds an image, for sets of several sizes."""
    counts = (128, 256) if quick else (256, 512, 1024, 2048, 4096)
    return [{"images": n} | milliseconds(Stretch(n // BATCH), 1 if quick else 3) for n in counts]


def by_resolution(quick: bool) -> list[dict]:
    """Milliseconds an image, for images of several sides."""
    sides = (32, 48) if quick else (32, 48, 64, 96)
    return [{"side": side} | milliseconds(Stretch(2, side), 1 if quick else 4) for side in sides]


def projection(quick: bool) -> dict:
    """Days that all grids of the paper would take on this device at the rate ResNet-50 reaches on it."""
    side, cuda = (64 if quick else 224), torch.cuda.is_available()
    batch = 64 if cuda else 4
    stretch = Stretch(1, side, batch, model="resnet50", stem="imagenet", amp=cuda)
    seconds = statistics.median(interleaved(1 if quick else 3, step=stretch.limit)["step"])
    rate = batch * flop_per_image("resnet50", 1000, 3, "imagenet", side) / seconds
    learn = flop_per_image("resnet50", 1000, 3, "imagenet", 224)
    grids = sorted((paths.notebooks() / "sweeps").glob("paper_*.yaml"))
    configs = {config for grid in grids for config in Grid.load(grid).runs()}
    days = dict.fromkeys(sorted({config.dataset for config in configs}), 0.0)
    for config in configs:
        seen = SHAPES[config.dataset][0] + TEST_IMAGES.get(config.dataset, 10_000) / 3  # no backward pass for those
        days[config.dataset] += config.epochs * seen * learn / rate / 86_400
    return {
        "flops_per_image": learn,
        "flops_per_second": rate,
        "runs": len(configs),
        "days": days,
        "total_days": sum(days.values()),
    }
