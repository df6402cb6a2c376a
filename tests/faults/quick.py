"""`train` in milliseconds: the real loop and all its writing, round a network that learns by drawing numbers.

What an epoch draws is a function of seed and epoch, so a run that goes on still ends with the bits of an unbroken one.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from unittest import mock

import torch

from clamkit import paths
from clamkit.engine import loop
from clamkit.engine.config import RunConfig
from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError
from clamkit.lab import execution
from clamkit.lab.grids import Grid
from tests.faults import checkout

CLASSES = 3
dataset = cache(loop.load_config_data)
LABELS = torch.arange(30) % CLASSES


def draw_epoch(scale, state, batches, rates):
    """In place of `train_epoch`: the weights of the network move at random, the accuracies are those of a guess."""
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter += scale * torch.randn_like(parameter)
    state.weighter.observe(torch.randn(len(LABELS), CLASSES), LABELS)
    return torch.zeros(1)


def guess(state, part="test", *, logits=False):
    """In place of `predict`: logits that are a function of the network."""
    scores = torch.outer(torch.arange(1.0, 31.0), state.model.bias.detach()).sin()
    return tuple(t.numpy() for t in (LABELS, scores.argmax(1), *([scores.half()] if logits else [])))


def execute_notebook(notebook, output, *, parameters, environment, **_):
    """In place of papermill in a process of its own: writes the notebook as it does, and trains here."""
    output.write_text("{}")
    fields = {key: value for key, value in parameters.items() if key in RunConfig.model_fields}
    try:
        loop.train(RunConfig(**fields | parameters["options"]), runs=environment["CLAMKIT_RUNS"], progress=False)
    except ClamkitError as error:
        return str(error)
    finally:
        output.write_text('{"cells": []}')
    return ""


@contextmanager
def training(folder: Path, data: Path, scale: float = 1.0) -> Iterator[None]:
    """`train` and `sweep` are quick; the notebook is that of `folder`, the committed results are below `data`.

    scale: of the numbers drawn; another one gives other bits, as another machine would.
    """
    places = {
        "train_epoch": partial(draw_epoch, scale),
        "version": cache(loop.version),
        "predict": guess,
        "load_config_data": dataset,
        "build_model": lambda *_: torch.nn.Linear(4, CLASSES),
    }
    with (
        mock.patch.multiple(loop, **places),
        mock.patch.object(torch, "manual_seed", torch.default_generator.manual_seed),  # asks no GPU
        mock.patch.object(execution, "execute_notebook", execute_notebook),
        mock.patch.object(paths, "embedded", return_value=data),
        mock.patch.object(paths, "notebooks", return_value=folder),
    ):
        yield


def make(folder: Path, runs: int, epochs: int) -> Grid:
    """A dataset, a notebook by name, and a grid of some runs."""
    checkout.dataset(folder / "stripes.npz")
    checkout.tiny_notebook(folder)
    fixed = {"dataset": str(folder / "stripes.npz"), "method": "clam_kl", "epochs": epochs}
    return Grid("tiny", "tiny", {"seed": list(range(runs))}, fixed)


def content(run: RunFolder) -> dict:
    """What must be the same bit for bit of a finished run; raises where a file is not what was written."""
    return {
        "config": run.config.identity(),
        "history": run.history.to_numpy().tobytes(),
        "predictions": run.predictions.to_numpy().tobytes(),
        "logits": [values.tobytes() for values in run.logits],
        "summary": {key: value for key, value in run.summary.items() if key != "seconds"},
    }


def saved_epochs(run: RunFolder) -> int:
    """Epochs in the newest checkpoint that is sound; nothing is set aside."""
    files = [run.folder / name for name in ("checkpoint.pt", "checkpoint.previous.pt")]
    return max([_epochs_in(file.read_bytes()) for file in files if file.is_file()], default=0)


@cache
def _epochs_in(checkpoint: bytes) -> int:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(checkpoint)
        try:
            return len(RunFolder.read_checkpoint(Path(file.name))["history"])
        except Exception:  # damaged in any of the ways of zip, pickle and torch
            return 0


def unbroken(grid: Grid, folder: Path) -> dict[RunConfig, dict]:
    """The content of each run of a grid when nothing happens to it."""
    return {config: content(loop.train(config, runs=folder, progress=False)) for config in grid.configs()}
