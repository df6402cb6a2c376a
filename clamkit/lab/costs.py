"""What runs cost before they are made: FLOP, and hours on this machine, on one A100, and by the paper's recipe."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from clamkit.engine.config import RunConfig
from clamkit.lab.recipes import PAPER_HOURS

if TYPE_CHECKING:
    from clamkit.data.dataset import Dataset

Setting = tuple[str, int, int, str, int]  # model, classes, channels, stem, pixels a side
SHAPES = {  # training images, channels, pixels a side, classes
    "fashion_mnist_mini": (6_000, 1, 28, 10),
    "fashion_mnist_tail": (1_489, 1, 28, 10),
    "fashion_mnist": (60_000, 1, 28, 10),
    "cifar10": (50_000, 3, 32, 10),
    "cifar100": (50_000, 3, 32, 100),
    "mini_imagenet": (50_000, 3, 84, 100),
    "imagenet": (1_281_167, 3, 224, 1_000),
    "inaturalist2018": (437_513, 3, 224, 8_142),
}
A100_FLOP_PER_SECOND = {  # of one A100 in mixed precision, as published; by the network, whatever its width
    "fastnet": 3.6e14 / 3.29,  # FLOP and seconds of a network like it: K. Jordan, arXiv:2404.00498, 2024
    # 2,470 images of 224 px a second, a forward and two backward passes of 4.1e9 multiply-adds each: "ResNet50 v1.5 for
    # PyTorch", github.com/NVIDIA/DeepLearningExamples, training performance of one A100 80GB, 2021
    "resnet50": 2470 * 2 * 3 * 4.1e9,
}
MEASURED_IMAGES, MEASURED_STEPS, MEASURED_S = 16, 5, 4.0  # at most
UNITS_S = {3600: "hour", 60: "minute", 1: "second"}
LARGE_SIDE = 112  # pixels a side, beyond which fewer images are measured


def costs(configs: Iterable[RunConfig]) -> str:
    """A sentence: what these runs cost in all. Runs whose dataset has no known size are left out, and counted."""
    configs = list(configs)
    known = [config for config in configs if config.dataset in SHAPES]
    if not known:
        return "what these runs cost is not known, nor how many images their data has: `clamkit data show` counts them"
    flop = [training_flop(config) for config in known]
    models = [config.model.split("_")[0] for config in known]
    here = duration(sum(map(training_seconds, known)))
    hours = sum(PAPER_HOURS.get(config.dataset, 0) for config in known)
    others = ", ".join(sorted({config.dataset for config in known} - PAPER_HOURS.keys()))
    left_out = f" (runs of unknown size, not counted: {len(configs) - len(known)})" if len(known) < len(configs) else ""
    a100 = ""
    if set(models) <= A100_FLOP_PER_SECOND.keys():
        taken = sum(cost / A100_FLOP_PER_SECOND[model] for cost, model in zip(flop, models, strict=True))
        a100 = f", {duration(taken)} of one A100 at the speed published for {' and '.join(sorted(set(models)))}"
    paper = f"by the paper's own recipe {hours:,.0f} GPU hours (its appendix)"
    paper = f"the paper prints no hours for {others}" if others else paper
    return f"{sum(flop):.2g} FLOP{left_out}: some {here} of this machine by steps just measured{a100}; {paper}"


def duration(seconds: float) -> str:
    """For people: two digits, in the unit that suits."""
    unit, name = next((unit, name) for unit, name in UNITS_S.items() if seconds >= unit or unit == 1)
    amount = f"{seconds / unit:,.0f}" if seconds >= 9.95 * unit else f"{seconds / unit:.2g}"
    return f"{amount} {name}{'s' * (amount != '1')}"


def training_flop(config: RunConfig, data: Dataset | None = None) -> float:
    """FLOP of the training passes of a run, forward and backward: on its data, or else on a dataset of SHAPES."""
    images, setting = _setting(config, data)
    return flop_per_image(*setting) * images * config.epochs


def training_seconds(config: RunConfig, data: Dataset | None = None) -> float:
    """What the training passes of a run take on this machine, by steps just measured; reading files comes on top."""
    return training_flop(config, data) / flop_per_second(*_setting(config, data)[1], config.amp)


def _setting(config: RunConfig, data: Dataset | None) -> tuple[int, Setting]:
    """How many images a run trains on, and what."""
    if data:
        images, channels, side, classes = len(data.y_train), data.channels, data.x_train.shape[2], data.num_classes
    else:
        images, channels, side, classes = SHAPES[config.dataset]
        images = min(images - config.holdout * classes, (config.per_class or images) * classes)
    return images, (config.model, classes, channels, config.stem, config.image_size or side)


@cache
def flop_per_second(model: str, classes: int, channels: int, stem: str, side: int, amp: bool | str = False) -> float:
    """What this machine reaches when it trains a model: measured on some batches of noise.

    On a CPU by the processor's time of one thread, times the threads: what else runs now does not count.
    """
    import torch

    from clamkit.engine.device import find_device, mixed_precision
    from clamkit.engine.models import build_model

    device = find_device()
    threads = torch.get_num_threads()
    clock, cores = (time.process_time, threads) if device.type == "cpu" else (time.perf_counter, 1)
    dtype = mixed_precision(device, amp and "auto")  # where a run would be refused, its cost in float32
    network = build_model(model, classes, channels, stem, side).to(device)
    images = max(2, int(MEASURED_IMAGES * min(1, (LARGE_SIDE / side) ** 2)))
    x = torch.randn(images, channels, side, side, device=device)
    taken: list[float] = []
    torch.set_num_threads(1)
    try:
        while len(taken) < MEASURED_STEPS and sum(taken) < MEASURED_S:
            started = clock()
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                loss = network(x).float().logsumexp(1).sum()
            loss.backward()
            loss.item()  # waits for the device
            taken.append((clock() - started) / cores)
    finally:
        torch.set_num_threads(threads)
    return images * flop_per_image(model, classes, channels, stem, side) / min(taken)


@cache
def flop_per_image(model: str, classes: int, channels: int, stem: str, side: int) -> float:
    """FLOP of a model's training, forward and backward, counted by torch without computing anything."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from clamkit.engine.models import build_model

    network = build_model(model, classes, channels, stem, side).to("meta")
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(2, channels, side, side, device="meta")).sum().backward()
    return counter.get_total_flops() / 2
