"""The diagnosis in the browser, without one: what uploads are taken, that controls follow, that names stay text."""

import gzip
import io
import json
import zipfile
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: pip install 'clamkit[notebooks]'")

from clamkit import RunConfig, train
from clamkit.errors import ClamkitError
from helpers import diagnose_explorer as page
from helpers.downloads import link

from .widgets import controls

NAMES = ["<script>alert(1)</script>", "a & b", "plain"]


def table(names=NAMES, rows: int = 60) -> bytes:
    label = [names[i % 3] for i in range(rows)]
    prediction = [names[i % 3 if i % 5 else 0] for i in range(rows)]
    return pd.DataFrame({"label": label, "prediction": prediction}).to_csv(index=False).encode()


@pytest.fixture
def logits() -> bytes:
    """Three classes, the last held down by a bias."""
    rng, labels = np.random.default_rng(0), np.arange(600) % 3
    scores = rng.normal(size=(600, 3)) + 2 * np.eye(3)[labels] - [0, 0, 1.5]
    np.savez(packed := io.BytesIO(), logits=scores.astype(np.float32), labels=labels, class_names=np.array(NAMES))
    return packed.getvalue()


def send(widget, side: str, name: str, content: bytes) -> None:
    """What the browser does with a file that was chosen."""
    file = {
        "name": name,
        "type": "",
        "size": len(content),
        "content": memoryview(content),
        "last_modified": datetime(2024, 1, 1),
    }
    widget[f"{side}: a file"].value = (file,)


@pytest.mark.parametrize("name", ["mine.csv", "MINE.CSV", "folder/mine.csv", "C:\\data\\mine.csv"])
def test_a_table_is_read_and_keeps_its_name(name):
    found = page.read_upload(name, table())
    assert found.title.lower() == "mine.csv"
    assert len(found.table) == 60
    assert len(page.read_upload("mine.csv.gz", gzip.compress(table())).table) == 60


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", b"label,prediction\n", "notes.txt is no file that can be read here: give one of the types .csv"),
        ("model.pkl", b"", "no file that can be read here"),
        ("large.csv", b"0" * 9_000_001, "large.csv is larger than 9 MB"),
        ("mine.npz", b"no zip", "mine.npz is damaged, or not what its name says"),
        ("mine.csv.gz", b"no gzip", "damaged, or not what its name says"),
        ("mine.csv", b"", "mine.csv is empty"),
        ("mine.csv", b"a,b\n1,2\n", "mine.csv has no column label"),
        ("mine.parquet", b"no parquet", "mine.parquet cannot be read as a table"),
    ],
)
def test_bad_uploads_get_one_paragraph(name, content, message):
    with pytest.raises(ClamkitError, match=message):
        page.read_upload(name, content)


def test_what_unpacks_to_very_much_is_refused_before_it_does(monkeypatch):
    monkeypatch.setattr(page, "MOST_UNPACKED", 10_000)
    with zipfile.ZipFile(packed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", b"0" * 20_000)
    for name, content in (("bomb.npz", packed.getvalue()), ("bomb.csv.gz", gzip.compress(b"0" * 20_000))):
        with pytest.raises(ClamkitError, match="unpacks to more than"):
            page.read_upload(name, content)


def test_names_are_text_wherever_they_are_shown():
    explorer = page.diagnose_explorer()
    widgets = controls(explorer)
    send(widgets, "model", "<img src=x onerror=alert(2)>.csv", table())
    shown = [child.value for child in walk(explorer) if isinstance(getattr(child, "value", None), str)]
    assert any("diagnosis" in text for text in shown)
    for text in shown:
        assert "<script>" not in text
        assert "<img src=x" not in text
    frame = next(text for text in shown if "<iframe" in text)
    assert "<iframe sandbox " in frame, "no script runs in it"
    assert "&amp;lt;script&amp;gt;" in frame, "escaped in the page, and the page in the frame"


def walk(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


@pytest.mark.slow
def test_the_slider_moves_along_the_front(logits):
    explorer = page.diagnose_explorer()
    widgets = controls(explorer)
    send(widgets, "model", "mine.npz", logits)
    found = page.find_out(page.read_upload("mine.npz", logits))
    path, slider, image = found.fixed.biases.path, widgets["cost"], widgets["Image"]
    assert slider.value == list(path.index).index(found.fixed.biases.strength)
    assert (path["average"].iloc[0] - path["average"].iloc[found.front()]).max() <= page.DEAREST
    before = image.value
    slider.value = 1
    assert image.value != before
    texts = [child.value for child in walk(explorer) if isinstance(getattr(child, "value", None), str)]
    saved = next(text for text in texts if "save biases.json" in text)
    assert saved.count("download=") == 3
    biases = found.at(1).biases
    assert json.loads(biases.to_json())["values"] == pytest.approx(biases.values)
    assert found.classes(1)["bias"].tolist() == pytest.approx(
        list(pd.Series(biases.values, NAMES)[found.classes(1).index])
    )
    assert any(f"{100 * path['worst'].iloc[1]:.1f} %" in text for text in texts)


@pytest.mark.slow
def test_two_models_and_a_bad_one_after_them(logits):
    explorer = page.diagnose_explorer()
    widgets = controls(explorer)
    said = next(child for child in walk(explorer) if "clamkit-said" in getattr(child, "_dom_classes", ()))
    assert "Choose a file" in said.value
    send(widgets, "against", "old.npz", logits)
    assert "Now choose a model" in said.value
    send(widgets, "model", "new.npz", logits)
    assert "new.npz against old.npz" in said.value
    send(widgets, "model", "bad.csv", b"a,b\n")
    assert "no column label" in said.value
    assert not any("<iframe" in str(getattr(child, "value", "")) for child in walk(explorer)), "no page of another file"


@pytest.mark.slow
def test_finished_runs_are_offered(small_npz):
    run = train(RunConfig(dataset=str(small_npz), method="clam", epochs=1))
    widgets = controls(page.diagnose_explorer())
    title = "CLAM, stripes, crop 0.3, seed 0"
    assert title in [label for label, _ in widgets["or model"].options]
    widgets["or model"].value = str(run.folder)
    assert widgets["cost"].disabled, "a run without held-out images has nothing to fit on"


def test_the_example_has_the_problem_and_biases_mend_it():
    found = page.find_out(page.example())
    assert found.fixed.useful
    assert found.result.worst().index[0] == "Shirt"


def test_a_link_says_what_it_saves():
    assert (
        link(b"a,b", "x.csv", "save <x>") == '<a download="x.csv" href="data:text/csv;base64,YSxi">save &lt;x&gt;</a>'
    )


def test_the_same_file_can_be_chosen_again_after_something_else():
    """A browser that sends what the button already holds changes nothing: it must have been emptied before."""
    explorer = page.diagnose_explorer()
    widgets = controls(explorer)
    said = next(child for child in walk(explorer) if "clamkit-said" in getattr(child, "_dom_classes", ()))
    send(widgets, "model", "mine.csv", table())
    widgets["or model"].value = page.EXAMPLE
    assert "linear model of a long tail" in said.value
    send(widgets, "model", "mine.csv", table())
    assert "mine.csv" in said.value
    assert widgets["or model"].value == "", "the list shows nothing else"
