"""The page: whole, escaped, with the right figures, and on the predictions of a real ResNet-50."""

import os
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from clamkit.apps.diagnose import diagnose
from clamkit.apps.diagnose_page import figure_changes, figure_classes, html, report
from clamkit.errors import ClamkitError

from .tables import table


@pytest.fixture
def imagenet_val(root) -> Path:
    """The folder with a ResNet-50's predictions of the 50,000 validation images."""
    folder = Path(os.environ.get("CLAMKIT_SHARED") or root.parent / "shared") / "data" / "imagenet_val"
    if not folder.is_dir():
        pytest.skip(f"needs resnet50_top1.csv.gz in {folder}: set CLAMKIT_SHARED to the folder above data")
    return folder


class Page(HTMLParser):
    """Tags and attributes as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def test_page_is_whole_and_escapes_class_names():
    evil, dollars = "<script>alert(1)</script>", "a $x_{ & b $"
    before = table(f"{evil}→{evil}*9", f"{dollars}→{dollars}*9", f"{dollars}→{evil}")
    after = table(f"{evil}→{dollars}*9", f"{dollars}→{dollars}*9", f"{dollars}→{evil}")
    page = Page(html(diagnose(before, after), title="<b>"))
    assert "script" not in page.tags
    assert "b" in page.tags  # the marks of the bars; the title's is text
    assert evil in page.text
    assert dollars in page.text
    assert "<b>" in page.text
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert page.tags.count("img") == 1


def test_every_prediction_right(tmp_path):
    result = diagnose(table("a→a*3", "b→b*3"), table("a→a*3", "b→b*3"))
    text = Page(html(result)).text
    assert "every prediction is right" in text
    assert "No class is shown to be hurt" in text
    assert "No class is shown to be hurt or helped (at a false discovery rate of 5 %)." in text


@pytest.mark.slow
def test_fifty_thousand_real_predictions(tmp_path, imagenet_val):
    """1,000 classes; the second file loses every image of class 0 and half the right ones of class 1 (made up)."""
    before = imagenet_val / "resnet50_top1.csv.gz"
    frame = pd.read_csv(before)
    label, prediction = frame["label"], frame["pred_resnet50"]
    second = prediction.mask(label == 0, 1).mask((label == 1) & (frame.index % 2 == 0), 0)
    after = tmp_path / "after.csv"
    pd.DataFrame({"label": label, "prediction": second}).to_csv(after, index=False)
    text = report([before, after], tmp_path / "page.html").text
    right = (label == prediction).groupby(label).mean()
    result = diagnose(before, after)
    np.testing.assert_allclose(result.classes["accuracy"], right)
    assert f"{100 * (label == prediction).mean():.1f} % right" in text
    assert "hurt 2 classes (0 " in text
    assert set(result.others[0].named("hurt").index) == {"0", "1"}
    wrong = frame[label != prediction].astype(str).value_counts()
    assert result.confused["count"].to_dict() == wrong.to_dict()
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.tags.count("img") == 2
    assert page.tags.count("tr") > 1000


def many(classes: int, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """50 images of each class; the second model loses all of class 0."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(classes), 50)
    right = rng.random(label.size) < 0.5 + 0.5 * rng.random(classes)[label]
    first = pd.DataFrame({"label": label, "prediction": np.where(right, label, (label + 1) % classes)})
    return first, first.assign(prediction=first["prediction"].mask(first["label"] == 0, 1))


def test_the_page_names_the_test_of_each_model():
    """The second model has the images of the first, the third has others."""
    first = table("cat→cat*30", "cat→dog*10", "dog→dog*40")
    tables = [first, first.assign(prediction="cat"), table("cat→cat*30", "dog→dog*30", "dog→cat*5")]
    text = Page(html(diagnose(*tables, titles=["x", "y", "z"]))).text
    reading = text[text.index("How to read this") :]
    assert "p for y is McNemar's exact test" in reading
    assert "p for z is Fisher's exact test" in reading
    alone = Page(html(diagnose(*tables[:2], titles=["x", "y"]))).text
    assert "p for y is McNemar's exact test" in alone
    assert "Fisher" not in alone


def test_few_classes_are_drawn_by_name_worst_first():
    """Points are the accuracies, lines their Wilson intervals; two models side by side."""
    before = table("cat→cat*3", "cat→dog", "dog→dog*2", "dog→cat*2", "cow→cow*4")
    after = table("cat→cat*1", "cat→dog*3", "dog→dog*2", "dog→cat*2", "cow→cow*4")
    result = diagnose(before, after, titles=["old", "new"])
    for given, lines in ((diagnose(before), 1), (result, 2)):
        figure = figure_classes(given)
        (axis,) = figure.axes
        names = [text.get_text() for text in sorted(axis.get_yticklabels(), key=lambda text: -text.get_position()[1])]
        assert names == ["dog", "cat", "cow"]
        assert axis.get_xlabel() == "accuracy, 95 % interval"
        assert len(axis.lines) == len(axis.collections) == lines
        assert list(axis.lines[0].get_xdata()) == [0.5, 0.75, 1.0]
        low, high = given.classes.loc["dog", ["low", "high"]]
        assert axis.collections[0].get_segments()[0][:, 0] == pytest.approx([low, high])
        plt.close(figure)
    figure = figure_classes(result)
    assert list(figure.axes[0].lines[1].get_xdata()) == [0.5, 0.25, 1.0], "in the order of the first model"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["old", "new"]
    plt.close(figure)


def test_many_classes_are_drawn_as_curve_and_profile():
    before, after = many(40)
    result = diagnose(before, after)
    figure = figure_classes(result)
    curve, profile = figure.axes
    for line, model in zip(curve.lines, result.models, strict=True):
        assert list(line.get_ydata()) == sorted(model.classes["accuracy"])
    assert (curve.get_xlabel(), curve.get_ylabel()) == ("classes, worst first", "accuracy")
    assert [text.get_text() for text in curve.texts] == ["worst 10 %", "best 10 %"]
    assert (profile.get_title("left"), profile.get_ylabel()) == ("profile", "classes at or below it")
    assert len(profile.lines) == 2
    for line, model in zip(profile.lines, result.models, strict=True):
        x, y = line.get_data()
        for limit in (0.31, 0.6, 0.77, 0.95):  # the step that holds at the limit
            assert y[x <= limit][-1] == pytest.approx((model.classes["accuracy"] <= limit).mean())
    plt.close(figure)


def test_changes_are_drawn_by_verdict():
    result = diagnose(*many(40), titles=["old", "new"])
    (new,) = result.others
    figure = figure_changes(result, new)
    scatter, names = figure.axes
    counts = new.changes["verdict"].value_counts()
    legend = [text.get_text() for text in scatter.get_legend().get_texts()]
    expected = (("no change shown", ""), ("helped", "helped"), ("hurt", "hurt"))
    assert legend == [f"{text} ({counts.get(verdict, 0)})" for text, verdict in expected]
    assert new.named("hurt").index[0] == "0"
    points = np.concatenate([np.asarray(dots.get_offsets()) for dots in scatter.collections])
    np.testing.assert_allclose(np.sort(points[:, 1]), np.sort(new.classes["accuracy"]))
    assert (scatter.get_xlabel(), scatter.get_ylabel()) == ("accuracy old", "accuracy new")
    assert len(names.get_yticklabels()) == 16
    assert names.get_yticklabels()[0].get_text() == "0", "the largest loss on top"
    plt.close(figure)


def test_a_page_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClamkitError, match=r"cannot write the page .*file.*page\.html"):
        report([table("a→a", "b→b")], tmp_path / "file" / "page.html")


def test_report_names_the_files_and_the_page(tmp_path):
    table("a→a*3", "b→a", "b→b", ids=[1, 1, 2, 3, 4]).to_csv(tmp_path / "preds.csv", index=False)
    text = report([tmp_path / "preds.csv"], tmp_path / "page.html").text.splitlines()
    assert text[0].startswith("5 images, 2 classes: 80.0 % right")
    assert any(line.startswith("Some ids come more than once (1)") for line in text)
    assert text[-1] == f"page: {tmp_path / 'page.html'}"
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "preds.csv" in page.text
    assert "Some ids come more than once (1)" in page.text
