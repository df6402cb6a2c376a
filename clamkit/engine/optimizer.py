"""How the max player learns: SGD with Nesterov momentum, the rate of each step, averaged weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from clamkit.engine.config import RunConfig

WARM_UP = 0.3  # share of the steps in which the one-cycle rate rises, from 1/25 of the peak; then a cosine to ~0
START, END = 1 / 25, 1e-5
LOW, PEAK = 0.2, 0.23  # the triangle's first rate, and the share of the steps at which it is 1; then down to 0
LOOK_EVERY = 5  # steps between two moves of the lookahead


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.SGD:
    """SGD for what learns in a model; biases in a group of their own where their rate is another."""
    learning = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": learning}]
    if config.bias_lr != 1:
        groups = [
            {"params": [p for p in learning if p.ndim > 1]},
            # lr × weight decay is the same for both groups
            {
                "params": [p for p in learning if p.ndim == 1],
                "multiple": config.bias_lr,
                "weight_decay": config.weight_decay / config.bias_lr,
            },
        ]
    momentum, decay = config.momentum, config.weight_decay
    return torch.optim.SGD(groups, config.lr, momentum, weight_decay=decay, nesterov=momentum > 0, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("multiple", 1)


def learning_rate(schedule: str, step: int, steps: int) -> float:
    """Share of the peak rate at a step of the whole training: constant, a triangle, or torch's OneCycleLR."""
    if schedule == "constant":
        return 1.0
    if schedule == "triangle":
        done = step / steps
        return LOW + (1 - LOW) * done / PEAK if done < PEAK else (1 - done) / (1 - PEAK)
    rise = WARM_UP * steps - 1
    if step <= rise:
        return 1 + (START - 1) * (1 + math.cos(math.pi * step / rise)) / 2
    end = START * END
    return end + (1 - end) * (1 + math.cos(math.pi * (step - rise) / (steps - 1 - rise))) / 2


class Lookahead:
    """Every five steps the network moves to the running mean of its weights, which gets slower towards the end.

    decay   share of the mean that is kept over one step, at the end of the training
    steps   of the whole training
    """

    def __init__(self, model: nn.Module, decay: float, steps: int):
        self.fast = [value for value in model.state_dict().values() if value.is_floating_point()]
        self.slow = [value.clone() for value in self.fast]
        self.decay, self.steps, self.done = decay, steps, 0

    @torch.no_grad()
    def step(self) -> None:
        self.done += 1
        if self.done % LOOK_EVERY == 0:
            kept = self.decay**LOOK_EVERY * (self.done / self.steps) ** 3
            torch._foreach_lerp_(self.slow, self.fast, 1 - kept)
            torch._foreach_copy_(self.fast, self.slow)

    def state_dict(self) -> dict[str, Any]:
        return {"slow": self.slow, "done": self.done}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.done = saved["done"]
        torch._foreach_copy_(self.slow, saved["slow"])
