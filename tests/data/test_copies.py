"""The smaller copy: same names, shorter side, whole or not used, and never the original's cost."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from clamkit.apps.fetch import image_files
from clamkit.apps.prepare import prepare
from clamkit.cli import app
from clamkit.data.augment import RandomResizedCrop
from clamkit.data.batches import Batches
from clamkit.data.copies import MARKER
from clamkit.data.datasets import load_data
from clamkit.errors import ClamkitError

SIDE = 32  # of the copies here; the images of `imagenet` are 40 to 61 wide and 50 high


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def make(name: str, place: Path, size: int = SIDE, **options) -> str:
    return prepare(*image_files(name, place), size, jobs=1, **options)


@pytest.fixture
def copy(imagenet) -> Path:
    make("imagenet", imagenet)
    return imagenet.with_name(f"imagenet-{SIDE}px")


def test_a_copy_has_the_names_and_the_pixels_of_a_resize(imagenet):
    Image.new("RGB", (20, 20), (9, 8, 7)).save(imagenet / "train" / "n01443537" / "small.JPEG")
    Image.new("RGBA", (60, 90), (200, 100, 50, 10)).save(imagenet / "train" / "n01443537" / "other.png")
    before = tree(imagenet)
    assert "holds 14 images" in make("imagenet", imagenet)
    assert tree(imagenet) == before, "the original stays as it is"
    copied = tree(imagenet.with_name(f"imagenet-{SIDE}px"))
    assert set(copied) == {*before, MARKER}
    for name in before:
        old, new = (Image.open(root / name) for root in (imagenet, imagenet.with_name(f"imagenet-{SIDE}px")))
        assert min(new.size) == min(SIDE, *old.size)
        assert new.width / new.height == pytest.approx(old.width / old.height, abs=0.03)
        resized = np.asarray(old.convert("RGB").resize(new.size, Image.Resampling.BILINEAR)).astype(float)
        assert np.abs(np.asarray(new.convert("RGB")) - resized).mean() < 12, "JPEG, of noise"
    assert copied["train/n01443537/small.JPEG"] == before["train/n01443537/small.JPEG"]


def test_images_with_a_palette_are_averaged_not_sampled(imagenet):
    board = np.indices((64, 64)).sum(0) % 2 * 255
    Image.fromarray(board.astype(np.uint8)).convert("P").save(imagenet / "train" / "n01443537" / "board.png")
    make("imagenet", imagenet)
    copied = Image.open(imagenet.with_name(f"imagenet-{SIDE}px") / "train" / "n01443537" / "board.png")
    assert np.asarray(copied.convert("L")).mean() == pytest.approx(127, abs=15)


def test_training_finds_the_copy_and_says_so(imagenet, copy, caplog):
    large = load_data("imagenet", data_dir=imagenet, image_size=40)
    assert not large.x_train.copy, "32 pixels are not enough for 40"
    small = load_data("imagenet", data_dir=imagenet, image_size=28)
    assert f"its {SIDE}-px copy in {copy} is read" in caplog.text
    assert repr(small).endswith(f"from a {SIDE}-px copy")
    assert all(file.startswith(f"{copy}{os.sep}") for part in (small.x_train, small.x_test) for file in part.files)
    assert small.part(2).hold_out(1).x_train.copy == f"{SIDE}-px copy"
    itself = load_data("imagenet", data_dir=copy, image_size=28)
    assert itself.sha256 == small.sha256, "a copy is a dataset itself"
    shutil.move(copy, copy.with_name("elsewhere"))
    original = load_data(
        "imagenet", data_dir=imagenet, image_size=28, skip_bad_images=True
    )  # not the one kept in memory
    assert original.sha256 != small.sha256, "other pixels, another dataset"
    assert original.y_train.tolist() == small.y_train.tolist()


def test_the_smallest_copy_that_is_enough(imagenet):
    for size in (48, 40, 33):
        make("imagenet", imagenet, size)
    assert load_data("imagenet", data_dir=imagenet, image_size=32).x_train.copy == "40-px copy"


def test_annotations_come_along_and_own_folders_work(inaturalist, make_folder):
    make("inaturalist2018", inaturalist)
    place = inaturalist.with_name(f"inat-{SIDE}px")
    through, itself = (load_data("inaturalist2018", data_dir=root, image_size=16) for root in (inaturalist, place))
    assert through.sha256 == itself.sha256
    assert itself.class_names == ("Species 0", "Species 1", "Species 2")
    folder = make_folder()
    assert "holds 12 images" in prepare(*image_files(folder), SIDE, jobs=1)
    assert not hasattr(load_data(folder, image_size=12).x_train, "copy"), "in memory it is the files themselves"


def test_a_stopped_copy_goes_on_where_it_was(imagenet, copy, caplog):
    names = sorted(name for name in tree(copy) if name != MARKER)
    whole, state = tree(copy), json.loads((copy / MARKER).read_text())
    (copy / MARKER).write_text(json.dumps(state | {"finished": False}))
    missing, empty, *kept = map(copy.joinpath, names)
    missing.unlink()
    missing.with_name(f".{missing.name}.part").write_bytes(whole[names[0]][:50])
    empty.write_bytes(b"")
    kept = [file for file in kept if "train" in file.parts]
    before = [file.stat().st_mtime_ns for file in kept]
    assert not load_data("imagenet", data_dir=imagenet, image_size=16).x_train.copy
    assert "is not finished (`clamkit data prepare`) and is not used" in caplog.text
    with pytest.raises(ClamkitError, match=r"a copy that was not finished: `clamkit data prepare`"):
        load_data("imagenet", data_dir=copy, image_size=16)
    shutil.rmtree(copy / "val")
    with pytest.raises(ClamkitError, match=r"a copy that was not finished: `clamkit data prepare`"):
        load_data(copy)
    make("imagenet", imagenet)
    assert tree(copy) == whole
    assert [file.stat().st_mtime_ns for file in kept] == before, "what was there is not made again"


def test_a_copy_of_what_is_no_longer_there_is_not_used(imagenet, copy, caplog):
    shutil.copy(imagenet / "val" / "n01440764" / "n01440764_0.JPEG", imagenet / "train" / "n01440764" / "new.JPEG")
    assert not load_data("imagenet", data_dir=imagenet, image_size=16).x_train.copy
    assert "has other files than the data now and is not used" in caplog.text
    with pytest.raises(ClamkitError, match="is a copy of other files than are in .*delete it or move it away"):
        make("imagenet", imagenet)


def test_files_that_do_not_decode_are_listed_though_the_copy_was_stopped(imagenet, monkeypatch):
    """Stopped when those that do not decode had been copied as they are, and the copy was not yet called finished."""
    (imagenet / "train" / "n01440764" / "n01440764_1.JPEG").write_bytes(b"broken")
    with monkeypatch.context() as patched:
        patched.delattr(os, "sync")
        with pytest.raises(AttributeError):
            make("imagenet", imagenet)
    assert "1 do not decode" in make("imagenet", imagenet)


def test_files_that_do_not_decode_are_listed_and_stay_so(imagenet, caplog):
    (imagenet / "train" / "n01440764" / "n01440764_1.JPEG").write_bytes(b"broken")
    (imagenet / "val" / "n01443537" / "n01443537_0.JPEG").write_bytes(b"")
    said = make("imagenet", imagenet)
    assert "2 do not decode" in said
    assert "train/n01440764/n01440764_1.JPEG" in said
    copy = imagenet.with_name(f"imagenet-{SIDE}px")
    assert len(json.loads((copy / MARKER).read_text())["unreadable"]) == 2
    dataset = load_data("imagenet", data_dir=imagenet, image_size=28)
    assert dataset.x_train.copy
    batches = Batches(RandomResizedCrop(0.5), (0.0,), (1.0,), "cpu")
    with pytest.raises(ClamkitError, match=r"1 of 8 image files do not decode: .*_1.JPEG.*skip_bad_images=True"):
        list(batches.plain(dataset.x_train, dataset.y_train))
    batches.skip_bad = True
    assert sum(len(y) for _, y in batches.plain(dataset.x_train, dataset.y_train)) == 7


def test_a_copy_that_does_not_fit_is_refused(imagenet, monkeypatch):
    usage = shutil.disk_usage(imagenet)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=20_000))
    with pytest.raises(ClamkitError, match=r"needs about 5.*e-05 GB more, and only 2e-05 GB are free at .*--to"):
        make("imagenet", imagenet)
    assert not tree(imagenet.with_name(f"imagenet-{SIDE}px"))


def test_a_disk_that_fills_up_is_said_and_the_copy_goes_on_later(imagenet, monkeypatch):
    def full(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(ClamkitError, match="No space left on device.*free some space, and the same command goes"):
            make("imagenet", imagenet)
    assert "holds 12 images" in make("imagenet", imagenet)


def test_where_a_copy_may_lie(imagenet, tmp_path):
    for inside in (imagenet, imagenet / "small", tmp_path):
        with pytest.raises(ClamkitError, match="must lie outside"):
            make("imagenet", imagenet, to=inside)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(ClamkitError, match="holds files that are no copy of ours"):
        make("imagenet", imagenet, to=tmp_path / "full")
    (tmp_path / "file").write_text("")
    with pytest.raises(ClamkitError, match=r"cannot be written \(Not a directory\): give another folder with --to"):
        make("imagenet", imagenet, to=tmp_path / "file" / "copy")
    with pytest.raises(ClamkitError, match="size=8 is not allowed: from 32"):
        make("imagenet", imagenet, 8)


def test_the_command(imagenet, small_npz):
    words = ["data", "prepare", "imagenet", "--data-dir", str(imagenet), "--size", str(SIDE), "--jobs", "1"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert f"imagenet-{SIDE}px holds 12 images" in said.output
    for name in (str(small_npz), "fashion_mnist_mini"):
        with pytest.raises(ClamkitError, match="is no folder of image files"):
            image_files(name)
