"""Large datasets: the embedded photographs in their layouts, read back file by file; what the real ones ask for."""

import numpy as np
import pytest

from clamkit import RunConfig, load_data
from clamkit.data.readers import Files
from clamkit.engine.loop import load_config_data
from clamkit.errors import ClamkitError
from helpers import large

PIXELS = 4  # mean difference that JPEG at this quality may make, of 255


def test_imagenets_layout():
    config = RunConfig(**large.write_layout("imagenet"))
    data, embedded = load_config_data(config), load_data("fashion_mnist_mini")
    assert isinstance(data.x_train, Files)
    assert (len(data.x_train), len(data.x_test), data.num_classes) == (10 * large.TRAINING, 10 * large.TEST, 10)
    label = data.class_names.index("Bag")
    image = data.x_train.read(
        int((data.y_train == label).nonzero()[0]), box=lambda height, width: (0, 0, height, width)
    )
    same = [embedded.class_names[int(y)] == "Bag" for y in embedded.y_train]
    differences = np.abs(embedded.x_train[same].numpy().astype(int) - image.numpy()[:1].astype(int)).mean((1, 2, 3))
    assert differences.min() < PIXELS, "one of the embedded bags"


def test_inaturalists_layout_has_a_tail():
    data, tail = load_config_data(RunConfig(**large.write_layout("inaturalist2018"))), load_data("fashion_mnist_tail")
    assert isinstance(data.x_train, Files)
    assert data.sizes.tolist() == tail.sizes.tolist()
    assert data.y_test.bincount().tolist() == [large.TEST] * 10
    assert data.class_names[0] == "T-shirt or top"


def test_what_the_real_one_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "costs", lambda configs: f"{configs[0].model} on {configs[0].dataset}")
    said = large.preparation("inaturalist2018", str(tmp_path))
    assert "lacks train2018.json, 2018/ or train_val2018/" in said
    assert "120 GB" in said
    assert "resnet50 on inaturalist2018" in said
    assert "set data_dir" in large.preparation("imagenet")
    (tmp_path / "train").mkdir()
    assert "lacks val/ or test/" in large.preparation("imagenet", str(tmp_path))
    (tmp_path / "val").mkdir()
    assert "has all it needs" in large.preparation("imagenet", str(tmp_path))
    with pytest.raises(ClamkitError, match="unknown large dataset 'cifar10'"):
        large.preparation("cifar10")
    with pytest.raises(ClamkitError, match="unknown layout 'cifar10'"):
        large.write_layout("cifar10")
