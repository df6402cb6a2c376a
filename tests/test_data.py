"""The data layer: known sets by content, users' own files, and what bad ones get."""

import numpy as np
import pytest
import torch
from PIL import Image

from clamkit import data
from clamkit._vision import torchvision
from clamkit.errors import ClamkitError


def test_embedded_data_is_a_balanced_part_of_fashion_mnist():
    mini = data.load("fashion_mnist_mini")
    assert mini.x_train.shape == (6000, 1, 28, 28)
    assert mini.x_test.shape == (4000, 1, 28, 28)
    assert mini.x_train.dtype == torch.uint8
    assert (mini.sizes == 600).all()
    assert torch.bincount(mini.y_test).tolist() == [400] * 10
    assert mini.class_names[6] == "Shirt"
    assert data.load("fashion_mnist_mini") is mini, "loaded once"


@pytest.mark.skipif(
    not data.DEBIAN_FASHION_MNIST.is_dir(), reason="Debian package dataset-fashion-mnist is not installed"
)
def test_fashion_mnist_is_what_torchvision_reads(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in data.DEBIAN_FASHION_MNIST.glob("*.gz"):
        (raw / file.name).symlink_to(file)
    full = data.load("fashion_mnist", data_dir=tmp_path)
    # torchvision wants the unpacked files beside the archives
    import gzip

    for file in raw.glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    theirs = torchvision.datasets.FashionMNIST(tmp_path, train=True)
    assert torch.equal(full.x_train[:, 0], theirs.data)
    assert torch.equal(full.y_train, theirs.targets)
    assert list(full.class_names) == theirs.classes
    mini = data.load("fashion_mnist_mini")
    assert torch.equal(mini.x_train[mini.y_train == 3], full.x_train[full.y_train == 3][:600])


def test_offline_error_names_every_place(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "debian")

    def refused(*args, **kwargs):
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", refused)
    with pytest.raises(ClamkitError) as caught:
        data.load("fashion_mnist", data_dir=tmp_path / "mine")
    for part in ("mine", "cache", "debian", "no network", "dataset-fashion-mnist", "fashion_mnist_mini"):
        assert part in str(caught.value)


def test_damaged_known_data_is_refused(tmp_path, monkeypatch):
    import dataclasses

    changed = dataclasses.replace(data.KNOWN["fashion_mnist_mini"], sha256="0" * 64)
    monkeypatch.setitem(data.KNOWN, "other", changed)
    with pytest.raises(ClamkitError, match="decode to other content"):
        data.load("other")
    broken = tmp_path / "t10k-labels-idx1-ubyte"
    broken.write_bytes(b"\0\0\x08\x01\0\0\0\x09abc")
    with pytest.raises(ClamkitError, match="not a sound IDX file"):
        data._read_idx(broken)


def test_own_npz_in_every_layout(tmp_path, small_npz):
    with np.load(small_npz) as archive:
        arrays = dict(archive)
    expected = data.load(small_npz)
    assert expected.class_names == ("top", "middle", "bottom")
    assert expected.x_train.shape == (60, 3, 12, 12)
    assert torch.equal(expected.x_train, torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2))
    assert expected.mean == pytest.approx((arrays["x_train"] / 255).mean(axis=(0, 1, 2)), abs=1e-5)
    channels_first = arrays | {k: arrays[k].transpose(0, 3, 1, 2) for k in ("x_train", "x_test")}
    np.savez(tmp_path / "first.npz", **channels_first)
    assert data.load(tmp_path / "first.npz").sha256 == expected.sha256
    gray = {k: v[..., 0] if k.startswith("x") else v for k, v in arrays.items() if k != "class_names"}
    np.savez(tmp_path / "gray.npz", **gray)
    loaded = data.load(str(tmp_path / "gray.npz"))
    assert loaded.channels == 1
    assert loaded.class_names == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, "lacks x_test"),
        ({"y_train": lambda y: y + 1}, r"train labels run from 1 to 3; with 3 classes they must lie in 0\.\.2"),
        ({"y_test": lambda y: y - 1}, "test labels run from -1"),
        ({"y_train": lambda y: np.where(y == 1, 0, y)}, "no training image.*'middle'"),
        ({"y_train": lambda y: y.astype(float)}, "labels must be whole numbers"),
        ({"y_train": lambda y: y[:5]}, "60 train images, but 5 labels"),
        ({"x_train": lambda x: x / 255}, "must be uint8"),
        ({"x_train": lambda x: x[:, :, :6]}, "training images are"),
        ({"x_train": lambda x: x.reshape(60, -1)}, r"shape \(60, 432\)"),
        ({"x_train": lambda x: np.array([{}], dtype=object)}, "cannot be read"),
    ],
)
def test_bad_npz(tmp_path, small_npz, change, message):
    with np.load(small_npz) as archive:
        arrays = dict(archive)
    for key, how in change.items():
        arrays[key] = how(arrays[key]) if how else arrays.pop(key)
        if how is None:
            arrays.pop(key)
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ClamkitError, match=message):
        data.load(tmp_path / "bad.npz")


def make_folder(root, sizes=(12,), test="test"):
    for part, count in (("train", 4), (test, 2)):
        for label, name in enumerate(("ant", "bee")):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                size = sizes[i % len(sizes)]
                Image.new("RGB", (size, size), (100 * label, 50, i)).save(root / part / name / f"{i}.png")
    return root


@pytest.mark.parametrize("test", ["test", "val"])
def test_own_folder(tmp_path, test):
    folder = make_folder(tmp_path / "insects", test=test)
    loaded = data.load(folder)
    assert loaded.class_names == ("ant", "bee")
    assert loaded.x_train.shape == (8, 3, 12, 12)
    assert loaded.x_train[5, :, 0, 0].tolist() == [100, 50, 1]
    assert loaded.y_test.tolist() == [0, 0, 1, 1]
    assert data.load(folder).sha256 == loaded.sha256, "the second time from the cache"
    Image.new("RGB", (12, 12), (9, 9, 9)).save(folder / "train" / "ant" / "0.png")
    assert data.load(folder).x_train[0, 0, 0, 0] == 9, "a changed file is seen"


def test_own_folder_of_many_sizes_wants_a_size(tmp_path):
    folder = make_folder(tmp_path / "insects", sizes=(12, 20))
    with pytest.raises(ClamkitError, match="differ in size.*image_size"):
        data.load(folder)
    assert data.load(folder, image_size=16).x_train.shape == (8, 3, 16, 16)


def test_bad_folders(tmp_path):
    with pytest.raises(ClamkitError, match="must hold train"):
        data.load(tmp_path)
    folder = make_folder(tmp_path / "insects")
    (folder / "train" / "ant" / "bad.png").write_bytes(b"not an image")
    with pytest.raises(ClamkitError, match=r"bad\.png does not decode"):
        data.load(folder)
    (folder / "train" / "ant" / "bad.png").unlink()
    (folder / "train" / "cat").mkdir()
    with pytest.raises(ClamkitError, match="no training image.*'cat'"):
        data.load(folder)
    (folder / "test" / "dog").mkdir()
    with pytest.raises(ClamkitError, match="classes that train/ has not: dog"):
        data.load(folder)


def test_unknown_dataset():
    with pytest.raises(ClamkitError, match=r"unknown dataset 'fashion_mnist_mimi'. Did you mean 'fashion_mnist_mini'"):
        data.load("fashion_mnist_mimi")
