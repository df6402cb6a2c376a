"""Images of one's own: data nobody has split, manifests, files that do not decode, and what bad ones get."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clamkit.data import own
from clamkit.data.datasets import load_data
from clamkit.errors import ClamkitError


def paint(file: Path, colour: int = 0, side: int = 8) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (colour, 50, 50)).save(file)
    return file


@pytest.fixture
def insects(tmp_path) -> Path:
    """Ten ants and five bees in two folders; the red of an image is its number."""
    for name, count in (("ant", 10), ("bee", 5)):
        for i in range(count):
            paint(tmp_path / "insects" / name / f"{i}.png", i)
    return tmp_path / "insects"


def write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


# ------------------------------------------------------------------------------------------------------- the split


def test_a_fifth_of_each_class_by_the_smallest_hashes(insects, caplog):
    """Worked out from the definition: SHA-256 of "0 <class>/<file>", the two and the one smallest."""
    expected = {}
    for name, count, share in (("ant", 10, 2), ("bee", 5, 1)):
        names = [f"{name}/{i}.png" for i in range(count)]
        drawn = sorted(names, key=lambda n: hashlib.sha256(f"0 {n}".encode()).hexdigest())[:share]
        expected[name] = sorted(int(Path(n).stem) for n in drawn)
    loaded = load_data(insects)
    assert loaded.class_names == ("ant", "bee")
    for label, name in enumerate(loaded.class_names):
        assert loaded.x_test[loaded.y_test == label][:, 0, 0, 0].tolist() == expected[name]
    assert len(loaded.x_train) == 12
    assert "3 of 15, 20% of each class" in caplog.text
    assert "seed 0" in caplog.text
    caplog.clear()
    assert load_data(insects, holdout=1).sha256 != loaded.sha256
    assert caplog.text.count("20% of each class") == 1, "said whenever it is loaded, once"


def test_a_split_depends_on_names_alone(insects, tmp_path):
    loaded = load_data(insects)
    (tmp_path / "only").mkdir()
    insects.rename(tmp_path / "only" / "train")
    moved = load_data(tmp_path / "only")
    assert moved.sha256 == loaded.sha256, "elsewhere, and below train/"
    before = set(moved.x_test[moved.y_test == 0][:, 0, 0, 0].tolist())
    paint(tmp_path / "only" / "train" / "ant" / "new.png", 99)
    after = load_data(tmp_path / "only")
    now = set(after.x_test[after.y_test == 0][:, 0, 0, 0].tolist())
    assert len(before - now) <= 1, "one more image moves at most one"
    assert after.x_test[after.y_test == 1].equal(moved.x_test[moved.y_test == 1])


def test_folders_that_others_call_otherwise(insects, tmp_path, caplog):
    """Training/ and Validation/ are a split, not two classes; a class may be called train."""
    (tmp_path / "data").mkdir()
    insects.rename(tmp_path / "data" / "Training")
    for part in ("Validation", "test"):
        for name in ("ant", "bee"):
            paint(tmp_path / "data" / part / name / "x.png")
    loaded = load_data(tmp_path / "data")
    assert (len(loaded.x_train), len(loaded.x_test)) == (15, 2)
    assert "images of the split val are not used" in caplog.text
    for name in ("car", "train"):
        paint(tmp_path / "vehicles" / name / "0.png")
        paint(tmp_path / "vehicles" / name / "1.png")
    assert load_data(tmp_path / "vehicles").class_names == ("car", "train")


def test_what_systems_leave_behind_is_no_class_and_no_image(insects):
    paint(insects / ".ipynb_checkpoints" / "0.png")
    paint(insects / "__MACOSX" / "0.png")
    (insects / "ant" / "._0.png").write_bytes(b"resource fork")
    assert load_data(insects).class_names == ("ant", "bee")


def test_folders_that_cannot_be_split(insects, tmp_path):
    paint(insects / "wasp" / "0.png")
    with pytest.raises(ClamkitError, match=r"1 of 3 classes have one image only \(first: 'wasp'\)"):
        load_data(insects)
    paint(tmp_path / "all" / "pets" / "train" / "cat" / "0.png")
    with pytest.raises(ClamkitError, match=r"holds datasets, not classes \(pets/"):
        load_data(tmp_path / "all")
    paint(tmp_path / "flat" / "0.png")
    with pytest.raises(ClamkitError, match=r"no folder for each class: give .*CSV"):
        load_data(tmp_path / "flat")
    paint(tmp_path / "untrained" / "test" / "cat" / "0.png")
    with pytest.raises(ClamkitError, match="has test/ and no train/"):
        load_data(tmp_path / "untrained")
    for part in ("train", "val", "valid"):
        paint(tmp_path / "double" / part / "cat" / "0.png")
    with pytest.raises(ClamkitError, match="has val/ and valid/, both the split val"):
        load_data(tmp_path / "double")
    paint(tmp_path / "one" / "cat" / "0.png")
    paint(tmp_path / "one" / "cat" / "1.png")
    with pytest.raises(ClamkitError, match="one has 1 class: there must be at least two"):
        load_data(tmp_path / "one")


# ------------------------------------------------------------------------------------------------- bad image files


def test_what_is_left_out_is_said_every_time(insects, caplog):
    (insects / "ant" / "bad.png").write_bytes(b"no image")
    (insects / "bee" / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(ClamkitError, match=r"do not decode.*skip_bad_images=True"):
        load_data(insects)
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        loaded = load_data(insects, skip_bad_images=True)
        assert len(loaded.x_train) + len(loaded.x_test) == 15
        assert "2 of 17 image files do not decode" in caplog.text
        assert "They are left out." in caplog.text


def test_a_class_without_test_images_is_named(insects, tmp_path, caplog):
    paint(tmp_path / "split" / "test" / "ant" / "0.png")
    insects.rename(tmp_path / "split" / "train")
    assert load_data(tmp_path / "split").num_classes == 2
    assert "1 of 2 classes have no test image (bee)" in caplog.text


def test_nothing_but_bad_files(tmp_path):
    for name in ("ant", "bee"):
        for i in range(2):
            (tmp_path / "bad" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "bad" / name / f"{i}.png").write_bytes(b"no image")
    with pytest.raises(ClamkitError, match=r"2 of 2 image files do not decode: .*Repair or remove them\.$"):
        load_data(tmp_path / "bad", skip_bad_images=True)


# ------------------------------------------------------------------------------------------------------- manifests


def test_a_manifest_is_what_it_says(insects, tmp_path):
    rows = [f"insects/ant/{i}.png,10,train" for i in range(4)] + [f"insects/bee/{i}.png,9,train" for i in range(4)]
    file = write(
        tmp_path / "mine.csv", "path,label,split", *rows, "insects/ant/7.png,10,TEST", "insects/bee/4.png,9,test"
    )
    loaded = load_data(file)
    assert loaded.name == "mine"
    assert loaded.class_names == ("9", "10"), "numbers in their order"
    assert loaded.y_train.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert loaded.x_test[:, 0, 0, 0].tolist() == [7, 4]
    other = write(tmp_path / "other.csv", "split;label;path", *(";".join(row.split(",")[::-1]) for row in rows))
    assert load_data(other).num_classes == 2, "columns in any order, semicolons, no test rows: drawn"
    renamed = write(
        tmp_path / "renamed.csv", "path,label", *(row.rsplit(",", 1)[0].replace(",10", ",ant") for row in rows)
    )
    assert load_data(renamed).class_names == ("9", "ant"), "other labels are not read from the cache"


def test_labels_are_compared_in_composed_form(insects, tmp_path):
    words = ("caf\u00e9", "cafe\u0301")
    rows = [f"insects/ant/{i}.png,{words[i % 2]}" for i in range(4)] + [f"insects/bee/{i}.png,bee" for i in range(4)]
    assert load_data(write(tmp_path / "m.csv", "path,label", *rows)).class_names == ("bee", "caf\u00e9")


def test_missing_files_of_a_manifest(insects, tmp_path, caplog):
    rows = [f"insects/{name}/{i}.png,{name}" for name in ("ant", "bee") for i in range(7)]
    file = write(tmp_path / "m.csv", "path,label", *rows)
    with pytest.raises(
        ClamkitError, match=r"2 of the 14 files that m.csv names are not there: insects/bee/5.png, .*rela"
    ):
        load_data(file)
    loaded = load_data(file, skip_bad_images=True)
    assert len(loaded.y_train) + len(loaded.y_test) == 12
    assert "2 of the 14 files that m.csv names are not there" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has none"),
        ("path,label\n", "a header and no rows"),
        ("file,class\na.png,ant\n", "needs the columns path and label.*has file, class.*clamkit diagnose"),
        ("path,label,label\n", "each once"),
        ("path,label\na,b.png,ant\n", "line 2 of m.csv has 3 fields, its header 2: put quotes"),
        ("path,label\ninsects/ant/0.png,\n", "line 2 of m.csv has no label"),
        ("path,label,split\ninsects/ant/0.png,ant,train\ninsects/ant/1.png,ant,dev\n", "line 3 .*the split 'dev'"),
        ("path,label,split\ninsects/ant/0.png,ant,train\ninsects/ant/1.png,ant,\n", "line 3 of m.csv has no split"),
        ("path,label\ninsects/ant/0.png,a\n./insects/ant/0.png,b\n", "lines 2 and 3 of m.csv name the same image"),
        ("path,label\ninsects/ant/0.png,a\ninsects/ant/1.png,a\n", "m has 1 class"),
        ("path,label\nnone/0.png,a\nnone/1.png,b\n", "2 of the 2 files"),
        ("path,label,split\ninsects/ant/0.png,a,test\n", "no row of the split train"),
        ("path,label,split\ninsects/ant/0.png,a,train\ninsects/ant/1.png,b,test\n", "training images have not: b"),
        ('path,label\n"insects/ant/0.png,a\n', "cannot be read as a CSV file"),
    ],
)  # fmt: skip
def test_bad_manifests_get_one_paragraph(insects, tmp_path, text, message):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(ClamkitError, match=message):
        load_data(tmp_path / "m.csv")


def test_a_manifest_of_another_encoding(tmp_path):
    (tmp_path / "m.csv").write_bytes("path,label\ncafé.png,é\n".encode("latin-1"))
    with pytest.raises(ClamkitError, match="as a CSV file in UTF-8"):
        load_data(tmp_path / "m.csv")


def test_the_draw_is_fair():
    """Over many names each image is as likely as another: a fifth of 5,000 in each half of them, within 4 sigma."""
    names = [f"{i}.png" for i in range(5000)]
    test = own.draw_test(names, np.zeros(5000, dtype=np.int64), ["only"])
    assert test.sum() == 1000
    assert abs(test[:2500].sum() - 500) < 4 * np.sqrt(2500 * 0.2 * 0.8 / 2)


def test_what_lies_in_a_hidden_folder_is_no_image(insects):
    before = own.list_folder(insects).shown
    paint(insects / "ant" / ".ipynb_checkpoints" / "0-checkpoint.png", 200)
    paint(insects / "ant" / "more" / "._0.png", 200)
    assert own.list_folder(insects).shown == before


def test_labels_that_are_the_same_number_have_an_order(insects):
    """Whatever the order of the rows and of a set: "01", "001" and "1" are three classes."""
    names = ["1", "01", "001", "0001", "2", "002"]
    rows = [f"ant/{i}.png,{name}" for i, name in enumerate(names)]
    found = [
        own.list_manifest(write(insects / "list.csv", "path,label", *order)).classes for order in (rows, rows[::-1])
    ]
    assert found == [["0001", "001", "01", "1", "002", "2"]] * 2


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_pixels_of_16_bits_are_taken_down_to_8(tmp_path, kind):
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for name in ("ant", "bee"):
        for i in range(2):
            file = tmp_path / "deep" / name / f"{i}.{kind}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(ramp).save(file)
    for options in ({}, {"image_size": 8}):
        pixels = load_data(tmp_path / "deep", **options).x_train[0]
        assert np.array_equal(pixels.numpy(), np.broadcast_to(ramp // 256, (3, 8, 8))), "not white from 255 on"


def test_pixels_of_32_bits_are_refused(insects):
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(insects / "ant" / "float.tif")
    with pytest.raises(ClamkitError, match=r"1 of 13 image files do not decode: .*float\.tif"):
        load_data(insects)


def test_images_of_many_sizes_are_refused_before_all_are_decoded(insects, monkeypatch):
    paint(insects / "ant" / "0.png", side=9)
    decoded = []
    convert = Image.Image.convert
    monkeypatch.setattr(Image.Image, "convert", lambda self, mode: decoded.append(self) or convert(self, mode))
    monkeypatch.setattr(own, "ThreadPoolExecutor", lambda: InOrder())
    with pytest.raises(ClamkitError, match=r"2 sizes, from \(8, 8\) to \(9, 9\)"):
        load_data(insects)
    assert len(decoded) < 15


class InOrder:
    """A pool of no threads."""

    map = staticmethod(map)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_names_in_capitals(insects, tmp_path):
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in sorted(insects.rglob("*.png"))]
    assert load_data(write(tmp_path / "DATA.CSV", "path,label", *lines)).num_classes == 2
