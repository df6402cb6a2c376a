"""One training on several processes, as torchrun starts them: each takes its part of every batch.

All processes draw the same order and the same crops, and number r of W takes the samples r, r + W, r + 2W, … of each
batch. Together they see each image once whatever their number, so a run may go on with more or fewer of them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from clamkit.errors import ClamkitError

T = TypeVar("T")


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


@contextmanager
def group(device: torch.device) -> Iterator[torch.device]:
    """Join the other processes torchrun has started, if it has; gives this one's device. Alone, nothing happens."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
        dist.barrier()  # nobody leaves before the first one has written
    except RuntimeError as error:  # what gloo and NCCL raise when the other end is gone
        raise ClamkitError(
            f"process {rank()} of {world_size()} lost another one and stops ({str(error).splitlines()[0][:120]}). "
            "The same torchrun command, with any number of processes, goes on from the last checkpoint."
        ) from error
    finally:
        gc.collect()  # whoever still holds the group, or its threads may outlive the interpreter
        dist.destroy_process_group()


def gather(part: Tensor) -> Tensor:
    """All samples in their order, from every process's share of them (see `data.batches`)."""
    if world_size() == 1:
        return part
    total = torch.tensor(len(part), device=part.device)
    dist.all_reduce(total)
    samples = part.new_zeros(int(total), *part.shape[1:])
    samples[rank() :: world_size()] = part
    dist.all_reduce(samples)
    return samples


def main_process_first(make: Callable[[], T]) -> T:
    """What `make` returns, called by the first process before the others: it downloads, sets aside, writes for all."""
    if rank() > 0:
        dist.barrier()
    made = make()
    if world_size() > 1 and rank() == 0:
        dist.barrier()
    return made


def loss_scale(count: int, device: torch.device) -> Tensor | float:
    """`count` samples here over everyone's mean: with it, the mean of the processes' means is that of the batch."""
    if world_size() == 1:
        return 1.0
    total = torch.tensor(count, device=device)
    dist.all_reduce(total)
    return count * world_size() / total


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Give everyone the first process's values."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)
