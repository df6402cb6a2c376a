"""File formats: replicas in their true layout are read as what they hold; damage is named; decoding happens once."""

import gzip
import os
import pickle
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from clamkit.data import copies, own, readers
from clamkit.data.datasets import CIFAR10_CLASSES, DATASETS, load_data
from clamkit.data.vision import torchvision
from clamkit.errors import ClamkitError

# ----------------------------------------------------------------------------------------------------------- CIFAR


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
    (ten / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CIFAR10_CLASSES)}))
    for name, count in (("train", 200), ("test", 100)):
        (hundred / name).write_bytes(pickle.dumps(part(count, 100, "fine_labels")))
    names = [f"thing {i}" for i in range(100)]
    (hundred / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    # a replica has other MD5 sums than the real files
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
    loaded = load_data("cifar100", data_dir=tmp_path)
    assert loaded.num_classes == 100
    assert loaded.class_names[7] == "thing 7"
    first = pickle.loads((hundred / "train").read_bytes())["data"][0]
    assert torch.equal(loaded.x_train[0].flatten(), torch.from_numpy(first))
    with pytest.raises(ClamkitError, match="decode to other content"):  # only the real CIFAR-10 passes as CIFAR-10
        load_data("cifar10", data_dir=tmp_path)
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


# ----------------------------------------------------------------------------------------------------- image files


def test_centre_of_a_streamed_image_is_torchvisions_evaluation(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    smooth = Image.fromarray(noise).resize((300, 280), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.png")  # as a natural image: on noise two resamplings differ in more than one pixel
    ours = readers.Files([tmp_path / "a.png"], 224).read(0)
    v1 = torchvision.transforms
    theirs = v1.Compose([v1.Resize(256), v1.CenterCrop(224), v1.PILToTensor()])(Image.open(tmp_path / "a.png"))
    assert (ours.float() - theirs.float()).abs().mean() < 2


def test_a_box_of_a_streamed_image_is_the_box_of_the_file(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    asked = []
    read = readers.Files([tmp_path / "a.png"], 8).read(
        0, lambda height, width: asked.append((height, width)) or [3, 5, 8, 8]
    )
    assert asked == [(30, 40)]
    assert np.array_equal(read.numpy(), pixels[3:11, 5:13].transpose(2, 0, 1)), "8×8 at 8×8: nothing to resample"
    Image.fromarray(pixels[:8, :8]).save(tmp_path / "b.png")
    part = readers.Files([tmp_path / "b.png"], 8).read(0, lambda *_: [4, 4, 1, 1])
    assert np.array_equal(part.numpy()[:, 0, 0], pixels[4, 4]), "also of an image that has the size already"
    assert part.unique().numel() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "grey", "CMYK"])
@pytest.mark.parametrize("size", [70, 30, 15])
def test_a_smaller_decode_shows_the_same_box(tmp_path, kind, size):
    """JPEG files at 1/2 and 1/4 against a full decode resized by Pillow, on a smooth picture with an edge in it."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((301, 223), Image.Resampling.BICUBIC)
    picture.paste((250, 10, 10), (120, 80, 180, 140))
    picture = {"grey": picture.convert("L"), "CMYK": picture.convert("CMYK")}.get(kind, picture)
    picture.save(tmp_path / "a", "PNG" if kind == "PNG" else "JPEG", quality=95)
    top, left, height, width = 51, 83, 97, 120  # on no block's edge
    read = readers.Files([tmp_path / "a"], size).read(0, lambda *_: [top, left, height, width]).permute(1, 2, 0).numpy()
    whole = Image.open(tmp_path / "a").convert("RGB")
    box = (left, top, left + width, top + height)
    full = np.asarray(whole.crop(box).resize((size, size), Image.Resampling.BILINEAR)).astype(float)
    difference = np.abs(read - full)
    assert difference.mean() < (2 if size < 70 and kind != "PNG" else 0.5)
    shifted = whole.resize((size, size), Image.Resampling.BILINEAR, [edge + 2 for edge in box])
    assert np.abs(np.asarray(shifted) - full).mean() > 1.5 * difference.mean(), "two pixels aside is another box"


def test_folders_above_the_limit_are_streamed(make_folder, monkeypatch):
    folder = make_folder()
    assert isinstance(own.read_folder(folder, 12)["x_train"], np.ndarray)
    assert isinstance(own.read_folder(folder, 12, stream=True)["x_train"], readers.Files)
    monkeypatch.setattr(own, "STREAM_ABOVE", 12 * 3 * 12**2 - 1)
    streamed = own.read_folder(folder, 12)
    assert isinstance(streamed["x_train"], readers.Files)
    assert streamed["y_train"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert isinstance(own.read_folder(folder, None)["x_train"], np.ndarray), "without a size nothing can be cut"


def test_bad_inaturalist_files(inaturalist):
    good = (inaturalist / "val2018.json").read_text()
    (inaturalist / "val2018.json").write_text("{}")
    with pytest.raises(ClamkitError, match="not the annotation file of iNaturalist 2018"):
        load_data("inaturalist2018", data_dir=inaturalist, image_size=32)
    climbing = good.replace("train_val2018/Plantae/0/val0.jpg", "train_val2018/../../x.jpg")
    (inaturalist / "val2018.json").write_text(climbing)
    with pytest.raises(ClamkitError, match="outside its folder"):
        load_data("inaturalist2018", data_dir=inaturalist, image_size=32)


# ------------------------------------------------------------------------------------------------ IDX and the cache


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


def test_four_files_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "DEBIAN_FASHION_MNIST", tmp_path / "none")
    idx_files(tmp_path / "idx", np.random.default_rng(0))
    find = DATASETS["fashion_mnist"].find
    assert find(tmp_path / "idx") == tmp_path / "idx"
    file = tmp_path / "idx" / "t10k-labels-idx1-ubyte.gz"
    file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    file.unlink()
    assert find(tmp_path / "idx") == tmp_path / "idx", "one unpacked"
    assert len(readers.read_fashion_mnist(tmp_path / "idx")["y_test"]) == 6
    file.with_suffix("").unlink()
    assert find(tmp_path / "idx") is None


def test_a_place_needs_folders_where_the_layout_has_folders(tmp_path, imagenet, inaturalist):
    assert DATASETS["imagenet"].find(imagenet) == imagenet
    assert DATASETS["inaturalist2018"].find(inaturalist) == inaturalist
    assert DATASETS["imagenet"].find(inaturalist) is None
    for name in ("train", "val"):
        (tmp_path / name).write_text("no folder")
    assert DATASETS["imagenet"].find(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x09abc", b"\0\0\x08\x03\0\0"],
    ids=["empty", "head", "short", "cut"],
)
def test_damaged_idx_files_are_refused(tmp_path, content):
    plain, packed = tmp_path / "t10k-labels-idx1-ubyte", tmp_path / "t10k-labels-idx1-ubyte.gz"
    plain.write_bytes(content)
    packed.write_bytes(content)
    for file in (plain, packed):
        with pytest.raises(ClamkitError, match="not a sound IDX file"):
            readers.read_idx(file)


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


def test_a_long_tail_by_hand():
    """Three classes of 100, one image in 100 left of the last: 100, 10 and 1, the first of each."""
    y = np.tile(np.arange(3), 100)
    content = {"x_train": np.arange(300), "y_train": y, "x_test": "as it is"}
    tail = readers.long_tail(content)
    assert np.bincount(tail["y_train"]).tolist() == [100, 10, 1]
    assert tail["x_train"][tail["y_train"] == 1].tolist() == list(range(1, 31, 3))
    assert tail["x_test"] == "as it is"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no such names")
def test_file_names_that_are_no_utf8_can_be_streamed(tmp_path):
    for part in ("train", "val"):
        for name in "ab":
            (tmp_path / part / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / "x.png")
            os.rename(tmp_path / "x.png", os.fsencode(tmp_path / part / name) + b"/caf\xe9.png")
    assert len(load_data("imagenet", data_dir=tmp_path, image_size=16).sha256) == 64
    assert len(copies.digest([os.fsdecode(b"caf\xe9.png")])) == 64
