"""The same small training for all integrations, in a plain loop: the class weights must come out as here."""

import subprocess
import sys
from functools import lru_cache

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from clamkit import CLAM, load_data

IMAGES, BATCH, EPOCHS = 200, 20, 2


class Images(Dataset):
    """The first images of the embedded data, as (x, y) or, for the Trainer, as {x:, labels:}."""

    def __init__(self, named: bool = False, size: int = IMAGES):
        embedded = load_data("fashion_mnist_mini")
        self.x = torch.as_tensor(embedded.x_train[:size]).float().reshape(size, -1) / 255
        self.y = torch.as_tensor(embedded.y_train[:size]).long()
        self.named = named

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]} if self.named else (self.x[i], self.y[i])


class Model(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def loader() -> DataLoader:
    return DataLoader(Images(), BATCH)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@lru_cache(maxsize=1)
def skip_without_bf16() -> None:
    """Some virtual machines announce a matrix unit (AMX) that torch then cannot use.

    Asked in a process of its own: where it fails, no later convolution of the process works either.
    """
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
    if subprocess.run([sys.executable, "-c", code], capture_output=True).returncode:
        pytest.skip("torch cannot multiply bfloat16 here: try with ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16")


def plain(accumulate: int = 1, bf16: bool = False) -> CLAM:
    """The reference: loss and count written out, nothing of `forward`."""
    model, weighter = Model(), CLAM(10)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(loader()):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                logits = model(x)
                loss = weighter.loss(logits, y)
            (loss / accumulate).backward()
            weighter.observe(logits, y)
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        weighter.step()
    assert weighter.weights.max() - weighter.weights.min() > 0.3, "the weights must have something to disagree about"
    return weighter


def assert_same(weighter, reference):
    assert weighter.epoch == reference.epoch == EPOCHS
    assert torch.allclose(weighter.weights, reference.weights, rtol=0, atol=1e-12)
