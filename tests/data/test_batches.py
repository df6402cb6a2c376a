"""Batches in memory and from files: every image once, same draws, bad files named."""

import multiprocessing

import numpy as np
import pytest
import torch
from PIL import Image

from clamkit.data.augment import ColourJitter, RandomResizedCrop, normalise
from clamkit.data.batches import WORKERS, Batches
from clamkit.data.dataset import IMAGENET
from clamkit.data.datasets import load_data
from clamkit.data.readers import Files
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import set_up, train
from clamkit.errors import ClamkitError
from clamkit.methods.weighters import CLAM
from clamkit.metrics import class_accuracy, fairness

PLAIN = ((0.0,), (1 / 255,))  # leaves pixel values as they are


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def numbered(count):
    """Images whose pixels are their number, and labels that follow from it."""
    x = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return x, torch.arange(count) % 5


def test_every_image_once_in_batches_of_nearly_equal_size():
    x, y = numbered(103)
    batches = list(Batches(RandomResizedCrop(0.5), *PLAIN, "cpu").training(x, y, 25, generator()))
    assert [len(labels) for _, labels in batches] == [21, 21, 21, 20, 20]
    seen = torch.cat([images[:, 0, 0, 0] for images, _ in batches]).round().long()
    assert sorted(seen.tolist()) == list(range(103))
    assert torch.equal(torch.cat([labels for _, labels in batches]), seen % 5), "labels go with their images"
    assert seen.tolist() != list(range(103))


@pytest.mark.parametrize("transform", [RandomResizedCrop(0.5), ColourJitter(0.0)])
def test_processes_share_every_batch_of_one(transform):
    """Three processes with the same generator have, batch by batch, what one process alone has."""
    x, y = numbered(32)
    alone = list(Batches(transform, *PLAIN, "cpu").training(x, y, 11, generator()))
    shares = [
        list(Batches(transform, *PLAIN, "cpu", rank=rank, world=3).training(x, y, 11, generator())) for rank in range(3)
    ]
    for i, (images, labels) in enumerate(alone):
        together, theirs = torch.empty_like(images), torch.empty_like(labels)
        for rank, share in enumerate(shares):
            together[rank::3], theirs[rank::3] = share[i]
        assert torch.equal(together, images)
        assert torch.equal(theirs, labels)
    tested = [torch.cat([y for _, y in Batches(transform, *PLAIN, "cpu", rank=r, world=3).plain(x, y)]) for r in (0, 2)]
    assert torch.equal(tested[0], y[0::3])
    assert torch.equal(tested[1], y[2::3])


def test_three_means_repeat_a_grey_image():
    x = torch.randint(0, 256, (4, 1, 6, 6), dtype=torch.uint8)
    batches = Batches(RandomResizedCrop(1.0), *IMAGENET, "cpu")
    ((images, _),) = batches.plain(x, torch.zeros(4).long())
    assert torch.allclose(images, normalise(x.expand(-1, 3, -1, -1), *IMAGENET))


def test_plain_batches_keep_the_order_and_take_the_size():
    x = torch.randint(0, 256, (1203, 1, 6, 6), dtype=torch.uint8, generator=generator())
    batches = list(Batches(RandomResizedCrop(0.1), *PLAIN, "cpu", size=3).plain(x, torch.arange(1203)))
    assert [len(labels) for _, labels in batches] == [500, 500, 203]
    assert torch.equal(torch.cat([labels for _, labels in batches]), torch.arange(1203))
    means = torch.nn.functional.avg_pool2d(x.float(), 2)  # halving by linear interpolation is the mean of 2×2
    assert torch.allclose(torch.cat([images for images, _ in batches]), means, atol=1e-3)


def test_streamed_batches_are_a_function_of_the_generator(imagenet):
    dataset = load_data("imagenet", data_dir=imagenet, image_size=16)
    for transform in (RandomResizedCrop(0.3), ColourJitter(0.3)):
        batches = Batches(transform, *PLAIN, "cpu")
        first, again, other = (
            list(batches.training(dataset.x_train, dataset.y_train, 3, generator(seed))) for seed in (0, 0, 1)
        )
        assert [len(y) for _, y in first] == [3, 3, 2]
        assert torch.cat([y for _, y in first]).bincount().tolist() == [4, 4]
        for (x, y), (x2, y2) in zip(first, again, strict=True):
            assert torch.equal(x, x2)
            assert torch.equal(y, y2)
        assert not torch.equal(first[0][0], other[0][0])


def test_streamed_crop_is_cut_from_the_whole_file(imagenet):
    """Without a crop and a flip, the streamed image is the file itself, resized."""
    dataset = load_data("imagenet", data_dir=imagenet, image_size=32)  # 40×50 and more: too near for a smaller decode
    batches = Batches(RandomResizedCrop(1.0, flip=False), *PLAIN, "cpu")
    ((images, labels),) = batches.training(dataset.x_train, dataset.y_train, 8, generator())
    files = [
        Image.open(str(file)).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
        for file in dataset.x_train.files
    ]
    expected = np.stack([np.asarray(file).transpose(2, 0, 1) for file in files]).astype(float)
    apart = np.abs(images.numpy()[:, None] - expected).max((2, 3, 4))  # of each image to each file
    assert (apart <= 1).sum(0).tolist() == [1] * 8, "torch and Pillow round differently, by one grey level"
    assert (apart <= 1).sum(1).tolist() == [1] * 8
    assert labels.bincount().tolist() == [4, 4]


def test_the_processes_that_decode_stay_from_epoch_to_epoch(imagenet):
    """And what layers draw from torch's own generator does not depend on when they started."""
    dataset = load_data("imagenet", data_dir=imagenet, image_size=16)
    batches = Batches(RandomResizedCrop(0.5), *PLAIN, "cpu")
    torch.manual_seed(0)
    started, drawn = [], []
    for epoch in range(3):
        list(batches.training(dataset.x_train, dataset.y_train, 4, generator(epoch)))
        list(batches.plain(dataset.x_train, dataset.y_train))
        started.append({child.pid for child in multiprocessing.active_children()})
        drawn.append(torch.rand(1))
    assert len(started[0]) > 0
    assert started[0] == started[1] == started[2]
    torch.manual_seed(0)
    assert drawn == [torch.rand(1) for _ in range(3)]
    first = next(batches.training(dataset.x_train, dataset.y_train, 4, generator(0)))  # left in the middle
    again = next(
        Batches(RandomResizedCrop(0.5), *PLAIN, "cpu").training(dataset.x_train, dataset.y_train, 4, generator(0))
    )
    assert torch.equal(first[0], again[0])
    batches = None
    assert not started[0] & {child.pid for child in multiprocessing.active_children()}, "they end with the batches"


def test_a_fastnet_is_whitened_by_the_processes_that_decode_for_training(imagenet):
    config = RunConfig(dataset="imagenet", data_dir=str(imagenet), image_size=24, model="fastnet_small")
    dataset = load_data("imagenet", data_dir=imagenet, image_size=24)
    before = set(multiprocessing.active_children())
    state = set_up(config, dataset, torch.device("cpu"))
    whitening = set(multiprocessing.active_children()) - before
    assert len(whitening) == WORKERS
    list(state.batches.training(dataset.x_train, dataset.y_train, 4, generator(0)))
    assert set(multiprocessing.active_children()) - before == whitening


def test_every_second_image_from_files_and_from_memory(imagenet):
    dataset = load_data("imagenet", data_dir=imagenet, image_size=16)
    batches = Batches(RandomResizedCrop(0.5), *PLAIN, "cpu")
    ((whole, labels),) = batches.plain(dataset.x_train, dataset.y_train)
    ((half, half_labels),) = batches.plain(dataset.x_train, dataset.y_train, every=2)
    assert torch.equal(half, whole[::2])
    assert torch.equal(half_labels, labels[::2])
    x = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1)
    ((_, labels),) = batches.plain(x, torch.arange(5), every=2)
    assert labels.tolist() == [0, 2, 4]


def test_streamed_files_that_do_not_decode_are_refused_or_left_out(imagenet, caplog):
    (imagenet / "train" / "n01440764" / "n01440764_1.JPEG").write_bytes(b"broken")
    dataset = load_data("imagenet", data_dir=imagenet, image_size=16)
    assert isinstance(dataset.x_train, Files)
    strict, lenient = (Batches(RandomResizedCrop(0.5), *PLAIN, "cpu", skip_bad=skip) for skip in (False, True))
    with pytest.raises(ClamkitError, match=r"1 of 8 image files do not decode: .*_1.JPEG.*skip_bad_images=True"):
        list(strict.plain(dataset.x_train, dataset.y_train))
    ((images, labels),) = lenient.plain(dataset.x_train, dataset.y_train)
    assert len(images) == 7
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 1], "labels stay with their images"
    assert "1 of 8 image files do not decode" in caplog.text


@pytest.mark.slow
def test_training_on_files_that_do_not_decode(imagenet, caplog):
    (imagenet / "train" / "n01440764" / "n01440764_1.JPEG").write_bytes(b"broken")
    (imagenet / "val" / "n01443537" / "n01443537_0.JPEG").write_bytes(b"")
    config = RunConfig(dataset="imagenet", data_dir=str(imagenet), image_size=16, epochs=1, batch_size=4)
    with pytest.raises(
        ClamkitError, match=r"1 of 8 image files do not decode: .*n01440764_1.JPEG.*skip_bad_images=True"
    ):
        train(config)
    run = train(config.model_copy(update={"skip_bad_images": True}))
    assert "1 of 8 image files do not decode" in caplog.text
    assert len(run.predictions) == 3


@pytest.mark.slow
def test_streamed_sets_train_and_resume_as_any_other(inaturalist, tmp_path):
    config = RunConfig(
        dataset="inaturalist2018", data_dir=str(inaturalist), image_size=16, epochs=2, batch_size=3, method="ggf"
    )
    first, again = train(config, runs=tmp_path / "a"), train(config, runs=tmp_path / "b")
    assert first.history.equals(again.history)
    assert first.class_names == ["Species 0", "Species 1", "Species 2"]
    assert train(config.model_copy(update={"augmentation": "jitter"})).done


@pytest.mark.slow
def test_counting_weights_and_metrics_at_8142_classes():
    """Counting, weight step and metrics at iNaturalist's size: 3 validation images in each class."""
    n = 8142
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n), 3)
    predictions = np.where(rng.random(3 * n) < 0.4, labels, rng.integers(0, n, 3 * n))
    weighter = CLAM(n, projection="kl")
    for rows in np.array_split(rng.permutation(3 * n), 40):
        logits = torch.zeros(len(rows), n)
        logits[torch.arange(len(rows)), torch.from_numpy(predictions[rows])] = 1.0
        weighter.observe(logits, torch.from_numpy(labels[rows]))
    accuracy, _ = weighter.counted()
    assert accuracy == pytest.approx(class_accuracy(labels, predictions, n))
    weighter.step()
    assert weighter.weights.sum().item() == pytest.approx(n)
    assert fairness(accuracy)["range"] == 1.0
