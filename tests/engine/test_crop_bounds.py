"""Crops with a bound for each class: given, or set by the weights."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from clamkit.data.augment import RandomResizedCrop, bounds_by_weights, crop_boxes
from clamkit.data.batches import Batches
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import load_config_data, set_up, train, train_epoch
from clamkit.engine.store import RunStore
from clamkit.errors import ClamkitError
from clamkit.lab import results


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_bounds_set_by_weights():
    """b + (1 − b)·(1 − 1/w) for w above 1: at w = 2 half of the way from 0.2 to 1, at 4 three quarters."""
    bounds = bounds_by_weights(torch.tensor([1.0, 2.0, 4.0, 0.5, 0.0]), 0.2)
    assert bounds.tolist() == pytest.approx([0.2, 0.6, 0.8, 0.2, 0.2])
    assert bounds_by_weights(torch.ones(3), 0.3).tolist() == [0.3] * 3, "to the bit"


def test_each_box_is_that_of_its_own_bound():
    """The same draws with one bound for all, box by box; no bound of 1 among those, which draws nothing."""
    bounds = torch.tensor([0.1, 0.3, 0.55, 0.999] * 50, dtype=torch.float64)
    mixed = crop_boxes(200, 28, 20, bounds, generator())
    for bound in (0.1, 0.3, 0.55, 0.999):
        alone = crop_boxes(200, 28, 20, bound, generator())
        assert torch.equal(mixed[bounds == bound], alone[bounds == bound])
    whole = crop_boxes(3, 28, 20, torch.tensor([1.0, 0.3, 1.0]).double(), generator())
    assert whole[[0, 2]].tolist() == [[0, 0, 28, 20]] * 2
    assert whole[1].tolist() != [0, 0, 28, 20]


def test_images_are_cropped_by_the_bound_of_their_class():
    """A crop of a ramp keeps less of its range; class 1 keeps all of it."""
    x = torch.arange(0, 240, 10, dtype=torch.uint8).view(1, 1, 1, 24).expand(40, 1, 24, 24)
    y = torch.arange(40) % 2
    batches = Batches(RandomResizedCrop(0.2), (0.0,), (1 / 255,), "cpu")
    bounds = torch.tensor([0.2, 1.0]).double()
    for images, labels in batches.training(x, y, 16, generator(), None, bounds):
        ranges = images.amax((1, 2, 3)) - images.amin((1, 2, 3))
        assert (ranges[labels == 1] > 229).all()
        assert ranges[labels == 0].mean() < 220


def test_the_share_of_whole_views_is_that_of_every_class():
    """Of crops of a large image none is whole by chance; the others are those of a run without whole views."""
    bounds = torch.tensor([0.2, 0.5, 0.8] * 2000, dtype=torch.float64)
    _, plain = RandomResizedCrop(0.2).draw(6000, 600, 600, generator(), bounds)
    _, boxes = RandomResizedCrop(0.2, whole_views=0.3).draw(6000, 600, 600, generator(), bounds)
    whole, by_chance = ((part == torch.tensor([0, 0, 600, 600])).all(1) for part in (boxes, plain))
    assert torch.equal(boxes[~whole], plain[~whole])
    for bound in (0.2, 0.5, 0.8):
        assert by_chance[bounds == bound].float().mean() < 0.02
        share = whole[(bounds == bound) & ~by_chance].float().mean().item()
        assert share == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 2000) ** 0.5), "4 standard errors"
    one = [RandomResizedCrop(0.2, whole_views=0.5).box(60, 60, random.Random(seed)) for seed in range(200)]
    assert 70 < one.count([0, 0, 60, 60]) < 130, "image files too"


def test_whole_views_make_another_run_and_none_the_same(config):
    assert config.model_copy(update={"whole_views": 0.0}).folder() == config.folder()
    mixed = config.model_copy(update={"whole_views": 0.5, "epochs": 1})
    plain = train(config.model_copy(update={"epochs": 1}))
    assert train(mixed).history["train_loss"].tolist() != plain.history["train_loss"].tolist()


@pytest.mark.parametrize("fields", [{"crop_bounds": (0.3, 0.3, 0.3)}, {"crop_bounds": "weights", "method": "normal"}])
@pytest.mark.parametrize("accuracy_from", ["epoch", "pass"])
def test_equal_bounds_give_the_bits_of_a_plain_run(config, fields, accuracy_from, same_bits):
    config = config.model_copy(update={"accuracy_from": accuracy_from, "epochs": 2})
    bounded = train(config.model_copy(update=fields))
    plain = train(config.model_copy(update={"method": fields.get("method", config.method)}))
    assert bounded.folder != plain.folder
    same_bits(bounded, plain)


@pytest.mark.parametrize(("bounds", "whole"), [("weights", 0.0), ((0.3, 0.6, 1.0), 0.0), ("weights", 0.4)])
def test_a_stopped_run_goes_on_with_the_same_bits(config, interrupted, tmp_path, same_bits, bounds, whole):
    config = config.model_copy(update={"crop_bounds": bounds, "whole_views": whole, "tau": 3.0, "lr": 0.01})
    interrupted(config, 2)
    whole = train(config, runs=tmp_path / "whole")
    assert np.ptp(whole.wide("weight").loc[3]) > 0.1
    same_bits(train(config), whole)


@pytest.mark.parametrize(("bounds", "factors"), [("weights", [1, 1, 1]), ((0.3, 0.6, 1.0), [2, 0.5, 0.5])])
def test_weights_that_set_the_bounds_leave_the_loss_alone(config, bounds, factors):
    config = config.model_copy(update={"crop_bounds": bounds})
    state = set_up(config, load_config_data(config), torch.device("cpu"))
    state.weighter.weights.copy_(torch.tensor([2.0, 0.5, 0.5]))
    x, y = state.dataset.x_train, state.dataset.y_train
    ((images, labels),) = batches = list(state.batches.training(x, y, 60, generator()))
    (loss,) = train_epoch(state, batches, [0.0])
    losses = torch.nn.functional.cross_entropy(state.model.train()(images), labels, reduction="none")
    assert loss.item() == pytest.approx((torch.tensor(factors)[labels] * losses).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_bounds": (0.3, 0.0, 1)}, r"crop_bounds=\(0.3, 0.0, 1.0\) is not allowed: .* above 0 and at most 1"),
        ({"crop_bounds": (0.3, 1.2)}, "above 0 and at most 1"),
        ({"crop_bounds": "weight"}, "crop_bounds='weight' is not allowed: give a number for each class, or 'weights'"),
        ({"crop_bounds": ()}, "is not allowed"),
        ({"crop_bounds": 0.5}, "crop_bounds=0.5 is not allowed"),
        ({"crop_bounds": (0.3, float("nan"))}, "is not allowed"),
        ({"crop_bounds": (0.3, 0.5), "augmentation": "jitter"}, "with augmentation='jitter' nothing is cropped"),
        ({"crop_bounds": "weights", "acts_on": "sampling"}, "the weights act on one of them"),
        ({"whole_views": 0.5, "augmentation": "jitter"}, "whole_views are of crops: with augmentation='jitter'"),
        (
            {"whole_views": 0.5, "crop_bounds": (0.3, 1.0)},
            "whole_views=0.5 is the share of every class, but a bound of 1",
        ),
        ({"whole_views": 1.0}, "whole_views=1.0 is not allowed"),
    ],
)
def test_bad_bounds(fields, message):
    with pytest.raises(ClamkitError, match=message):
        RunConfig(**fields)


def test_bounds_that_do_not_fit_the_data(config, tmp_path):
    wrong = config.model_copy(update={"crop_bounds": (0.3, 0.5)})
    with pytest.raises(ClamkitError, match="crop_bounds has 2 numbers, but stripes has 3 classes: give one for each"):
        train(wrong)
    assert not RunStore().run(wrong).folder.exists()


def test_bounds_need_images_in_memory(tmp_path):
    for part in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (9, 9)).save(tmp_path / part / name / "0.png")
    with pytest.raises(ClamkitError, match="crop_bounds work on images in memory: imagenet is read file by file"):
        train(RunConfig(dataset="imagenet", data_dir=str(tmp_path), image_size=8, crop_bounds="weights"))


def test_bounds_as_text_are_the_same_run(config, tmp_path, monkeypatch):
    """From the command line, from a run's config.json, and from the committed table."""
    bounded = config.model_copy(update={"crop_bounds": (0.3, 0.6, 1.0), "epochs": 1})
    fields = bounded.identity()
    for text in ("0.3,0.6,1", "(0.3, 0.6, 1.0)", "[0.3, 0.6, 1]", [0.3, 0.6, 1]):
        assert RunConfig(**fields | {"crop_bounds": text}) == bounded
    run = train(bounded)
    assert RunStore().runs()[0].config == bounded
    for _ in range(2):  # read, then from the index
        assert RunStore().frame().loc[0, "crop_bounds"] == "(0.3, 0.6, 1.0)"
    monkeypatch.setattr("clamkit.paths.embedded", lambda: tmp_path / "data")
    results.save("small", [run])
    (committed,) = results.committed_runs("small")
    assert committed.config == bounded
    assert committed.config.folder().as_posix() == committed.name
