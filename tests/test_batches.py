"""Batches in memory and from files: every image once, same draws, bad files named."""

import gzip
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from test_data import make_imagenet, make_inaturalist

from clamkit import data, readers
from clamkit.augment import ColourJitter, RandomResizedCrop, normalise
from clamkit.batches import Batches
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.train import train

PLAIN = ((0.0,), (1 / 255,))  # leaves pixel values as they are


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_image_once_in_batches_of_nearly_equal_size():
    x = torch.arange(103, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    y = torch.arange(103) % 5
    batches = list(Batches(RandomResizedCrop(0.5), *PLAIN, "cpu").training(x, y, 25, generator()))
    assert [len(labels) for _, labels in batches] == [21, 21, 21, 20, 20]
    seen = torch.cat([images[:, 0, 0, 0] for images, _ in batches]).round().long()
    assert sorted(seen.tolist()) == list(range(103))
    assert torch.equal(torch.cat([labels for _, labels in batches]), seen % 5), "labels go with their images"
    assert seen.tolist() != list(range(103))


def test_three_means_repeat_a_grey_image():
    x = torch.randint(0, 256, (4, 1, 6, 6), dtype=torch.uint8)
    ((images, _),) = Batches(None, data.IMAGENET_MEAN, data.IMAGENET_STD, "cpu").plain(x, torch.zeros(4).long())
    assert torch.allclose(images, normalise(x.expand(-1, 3, -1, -1), data.IMAGENET_MEAN, data.IMAGENET_STD))


@pytest.fixture
def imagenet(tmp_path):
    return make_imagenet(tmp_path / "imagenet", np.random.default_rng(0))


def test_streamed_batches_are_a_function_of_the_generator(imagenet):
    dataset = data.load("imagenet", data_dir=imagenet, image_size=16)
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
    from PIL import Image

    dataset = data.load("imagenet", data_dir=imagenet, image_size=16)
    batches = Batches(RandomResizedCrop(1.0, flip=False), *PLAIN, "cpu")
    ((images, labels),) = batches.training(dataset.x_train, dataset.y_train, 8, generator())
    files = [
        Image.open(str(file)).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
        for file in dataset.x_train.files
    ]
    expected = {np.asarray(file).transpose(2, 0, 1).astype(np.float32).tobytes() for file in files}
    assert {image.contiguous().numpy().tobytes() for image in images} == expected
    assert labels.bincount().tolist() == [4, 4]


def test_files_that_do_not_decode_are_refused_or_left_out(imagenet, caplog):
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


def test_streamed_sets_train_and_resume_as_any_other(tmp_path):
    root = make_inaturalist(tmp_path / "inat", np.random.default_rng(0))
    config = RunConfig(
        dataset="inaturalist2018", data_dir=str(root), image_size=16, epochs=2, batch_size=3, method="ggf"
    )
    first, again = train(config, runs=tmp_path / "a"), train(config, runs=tmp_path / "b")
    assert first.history.equals(again.history)
    assert first.class_names == ["Species 0", "Species 1", "Species 2"]
    assert train(config.model_copy(update={"augmentation": "jitter"})).done


def test_counting_weights_and_metrics_at_8142_classes():
    """Counting, weight step and metrics at iNaturalist's size: 3 validation images in each class."""
    from clamkit.metrics import class_accuracy, fairness
    from clamkit.weighters import CLAM

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


def idx_files(folder, rng):
    """Fashion-MNIST's four files with a few random images; returns the training images."""
    folder.mkdir()
    for part, name in readers.FASHION_FILES.items():
        array = rng.integers(0, 256, (6, 5, 5) if part.startswith("x") else (6,), dtype=np.uint8)
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        (folder / f"{name}.gz").write_bytes(gzip.compress(head + array.tobytes()))
        if part == "x_train":
            images = array
    return images


def test_files_are_decoded_once_then_mapped(tmp_path, monkeypatch):
    images = idx_files(tmp_path / "idx", np.random.default_rng(0))
    first = readers.read_fashion_mnist(tmp_path / "idx")
    assert isinstance(first["x_train"], np.memmap)
    assert np.array_equal(first["x_train"], images)
    with monkeypatch.context() as patch:
        patch.setattr(readers, "read_idx", lambda file: pytest.fail("decoded a second time"))
        again = readers.read_fashion_mnist(tmp_path / "idx")
    assert np.array_equal(again["y_test"], first["y_test"])
    shutil.rmtree(tmp_path / "idx")
    images = idx_files(tmp_path / "idx", np.random.default_rng(1))
    assert np.array_equal(readers.read_fashion_mnist(tmp_path / "idx")["x_train"], images), "other files, other key"


def test_several_at_once_decode_once(tmp_path):
    made = []

    def make():
        made.append(1)
        time.sleep(0.2)
        return {"x": np.arange(5)}

    (tmp_path / "file").write_text("")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: readers.cached("some", [tmp_path / "file"], make), range(4)))
    assert len(made) == 1
    assert all(part["x"].tolist() == [0, 1, 2, 3, 4] for part in found)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLAMKIT_DATA", str(tmp_path / "file" / "cache"))
    images = idx_files(tmp_path / "idx", np.random.default_rng(0))
    assert np.array_equal(readers.read_fashion_mnist(tmp_path / "idx")["x_train"], images)
    assert "cannot be written" in caplog.text


def test_images_in_any_layout_are_not_copied(small_npz):
    arrays = readers.read_npz(small_npz)
    loaded = data._dataset("stripes", **arrays)
    assert np.shares_memory(loaded.x_train.numpy(), arrays["x_train"])
