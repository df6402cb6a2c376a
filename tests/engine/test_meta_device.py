"""GPU paths without a GPU: on torch's meta device a read-back to the host, or a mix of devices, raises.

One epoch's batches, forward, loss, counts, backward and step, and evaluation, of every method, lever and augmentation.
What the engine reads back once an epoch (counts, predictions) is left out: that much is wanted.
"""

from contextlib import nullcontext

import pytest
import torch

from clamkit.data.datasets import load_data
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import count, forward, set_up, train_epoch
from clamkit.engine.models import FastNet
from clamkit.methods.specs import METHODS

META = torch.device("meta")
GIVEN = {"fixed": {"class_weights": (1, 2, 3)}}  # settings a method cannot do without
LEVERS = {
    "crop": {},
    "no crop": {"crop_lower_bound": 1.0},
    "jitter": {"augmentation": "jitter"},
    "no jitter": {"augmentation": "jitter", "jitter_strength": 0.0},
    "another size": {"image_size": 16},
    "jitter, another size": {"augmentation": "jitter", "image_size": 16},
    "sampling": {"acts_on": "sampling"},
    "bounds": {"crop_bounds": (0.3, 0.5, 1.0)},
    "bounds by weights": {"crop_bounds": "weights"},
    "released": {"protocol": "released"},
    "smoothing": {"label_smoothing": 0.1},
    "held out": {"holdout": 2},
    "ResNet": {"model": "resnet18"},
    "ViT": {"model": "tiny_vit"},
    "fastnet": {"model": "fastnet_small", "bias_lr": 64, "image_size": 32},
    "lookahead": {"lookahead": 0.95},
}


@pytest.fixture(autouse=True)
def _what_knows_no_meta_device(monkeypatch):
    """autocast, not even to be switched off there; the eigenvectors by which a fastnet is set up, once."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: nullcontext())
    monkeypatch.setattr(FastNet, "whiten", lambda self, images: None)


def epoch_on_meta(small_npz, **fields) -> None:
    config = RunConfig(dataset=str(small_npz), batch_size=25, epochs=1, **fields)
    dataset = load_data(small_npz, holdout=config.holdout)
    state = set_up(config, dataset, META)
    for group in state.optimizer.param_groups:
        group["fused"] = False  # that one knows no meta device
    x, y = dataset.x_train.to(META), dataset.y_train
    weights = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)
    drawn_by = weights if config.draws_by_weights else None
    bounds = {"weights": weights / 2, None: None}.get(config.crop_bounds, torch.tensor([0.3, 0.5, 1.0]).double())
    generator = torch.Generator().manual_seed(0)
    batches = list(state.batches.training(x, y, config.batch_size, generator, drawn_by, bounds))
    assert [len(images) for images, _ in batches] in ([20] * 3, [18] * 3)
    assert all(part.is_meta for batch in batches for part in batch)
    losses = train_epoch(state, batches, [0.1] * len(batches))
    assert losses.is_meta
    count(state, state.batches.plain(x, y))
    with torch.inference_mode():
        predicted = [
            forward(state, images).argmax(1) for images, _ in state.batches.plain(dataset.x_test, dataset.y_test)
        ]
    assert [len(part) for part in predicted] == [30]


def test_the_meta_device_refuses_what_would_make_a_gpu_wait():
    there = torch.ones(3, device=META)
    for read_back in (lambda: there.sum().item(), lambda: there.cpu(), lambda: there.tolist(), lambda: there.nonzero()):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read_back()
    with pytest.raises((RuntimeError, NotImplementedError)):
        there + torch.ones(3)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.every != "batch"])
def test_every_method(small_npz, method):
    epoch_on_meta(small_npz, method=method, **GIVEN.get(method, {}))


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.every == "batch"])
def test_methods_that_move_every_batch_read_back_and_nowhere_else(small_npz, method):
    """Their rule is numpy's: losses or errors of the classes come to the host with every batch. The rest does not."""
    with pytest.raises(NotImplementedError, match=r"Cannot copy out of meta tensor|nonzero\(\)") as caught:
        epoch_on_meta(small_npz, method=method)
    assert "_count" in [entry.name for entry in caught.traceback], "where a batch is counted, and the rule moves by it"
    epoch_on_meta(small_npz, method=method, start_epoch=1)  # before they move


@pytest.mark.parametrize(
    "lever", [pytest.param(name, marks=[pytest.mark.slow] * (name == "ResNet")) for name in LEVERS]
)
def test_every_lever(small_npz, lever):
    epoch_on_meta(small_npz, **LEVERS[lever])
