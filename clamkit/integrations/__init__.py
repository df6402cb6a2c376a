"""CLAM in other people's tools; each module needs the library it is named after, nothing else does.

`huggingface`, `lightning`: callbacks for their trainers; `torchmetrics`, `sklearn`: metrics, scorers and class biases;
`tensorboard`: curves of each class.

A plain loop needs none: a weighter is a criterion, `loss = weighter(output, target)`, with `weighter.step()` after
each epoch, before the checkpoint is saved. docs/trainers.md has the lines for timm, accelerate and others.

Import this before timm and transformers where torch is CPU-only and torchvision is not: it lets torchvision load.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

import clamkit.data.vision  # noqa: F401  lets torchvision load
from clamkit.errors import ClamkitError
from clamkit.methods.weighters import Weighter

COUNTS = ("correct", "seen", "loss_sum")


def weighter_state(weighter: Weighter) -> dict[str, list | float]:
    """Weights, counts and the rest as plain numbers for JSON, bit for bit; the counts are those of all ranks."""
    state = weighter.state_dict() | dict(zip(COUNTS, weighter.totals(), strict=True))
    return {name: tensor.tolist() for name, tensor in state.items()}


def load_weighter_state(weighter: Weighter, state: dict[str, list | float]) -> None:
    """Back from `weighter_state`, on any number of ranks: the first one takes the counts of all."""
    own = weighter.state_dict()
    try:
        weighter.load_state_dict(
            {name: torch.tensor(v, dtype=own[name].dtype if name in own else None) for name, v in state.items()}
        )
    except RuntimeError as error:
        raise ClamkitError(
            f"the class weights of the checkpoint are not those of this {type(weighter).__name__} for "
            f"{weighter.num_classes} classes: build it with the settings of the first run ({error})."
        ) from error
    if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
        weighter.forget()
