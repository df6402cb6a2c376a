"""The diagnosis against hand-worked cases, scipy and brute force, and on the predictions of a real ResNet-50."""

import os
import re
import time
from html.parser import HTMLParser
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, fisher_exact

from clamkit import diagnose
from clamkit.errors import ClamkitError
from clamkit.metrics import class_changes, sampling_std, wilson

ROOT = Path(__file__).resolve().parents[1]
IMAGENET_VAL = Path(os.environ.get("CLAMKIT_SHARED") or ROOT.parent / "shared") / "data" / "imagenet_val"
fixed = settings(derandomize=True, deadline=None, max_examples=60)


def table(*rows: str, ids=None) -> pd.DataFrame:
    """Rows such as "cat→dog*3": three images of a cat taken for a dog."""
    parts = [re.fullmatch(r"(.+)→(.+?)(?:\*(\d+))?", row).groups() for row in rows]
    images = [(label, prediction) for label, prediction, times in parts for _ in range(int(times or 1))]
    frame = pd.DataFrame(images, columns=["label", "prediction"])
    return frame if ids is None else frame.assign(id=ids)


def csv(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------------ statistics


@fixed
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_is_scipys(right_seen, confidence):
    right, seen = right_seen
    expected = binomtest(right, seen).proportion_ci(confidence, method="wilson")
    low, high = wilson([right], [seen], confidence)
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def brute_force_corrections(p):
    """Holm and Benjamini–Hochberg by their definition: the smallest level at which a class is rejected."""
    order, k = np.argsort(p, kind="stable"), len(p)
    holm, bh = np.empty(k), np.empty(k)
    for place, i in enumerate(order):
        holm[i] = min(1, max(p[order[j]] * (k - j) for j in range(place + 1)))
        bh[i] = min(1, min(p[order[j]] * k / (j + 1) for j in range(place, k)))
    return holm, bh


counts = st.lists(st.tuples(*[st.integers(0, 12)] * 4), min_size=2, max_size=12)


@fixed
@given(counts)
def test_paired_changes_are_exact_mcnemar_with_corrections(rows):
    both, lost, won, none = np.array(rows).T
    none = none + 1
    seen = both + lost + won + none
    found = class_changes(both + lost, seen, both + won, seen, lost, won)
    expected = [binomtest(int(b), int(b + c)).pvalue if b + c else 1.0 for b, c in zip(lost, won, strict=True)]
    np.testing.assert_allclose(found["p"], expected, atol=1e-12)
    np.testing.assert_allclose(found["change"], (won - lost) / seen, atol=1e-12)
    holm, bh = brute_force_corrections(found["p"].to_numpy())
    np.testing.assert_allclose(found["p_holm"], holm, atol=1e-12)
    np.testing.assert_allclose(found["q"], bh, atol=1e-12)


@settings(fixed, max_examples=20)
@given(counts)
def test_unpaired_changes_are_fisher(rows):
    """All tables with the same margins that are no likelier than the one found."""
    right, wrong, right_after, wrong_after = np.array(rows).T
    wrong, wrong_after = wrong + 1, wrong_after + 1
    found = class_changes(right, right + wrong, right_after, right_after + wrong_after)
    for p, a, b, c, d in zip(found["p"], right, wrong, right_after, wrong_after, strict=True):
        chances = np.array(
            [comb(a + b, k) * comb(c + d, a + c - k) / comb(a + b + c + d, a + c) for k in range(a + c + 1)]
        )
        assert p == pytest.approx(chances[chances <= chances[a] * (1 + 1e-7)].sum())


def test_sampling_std_is_what_a_simulation_gives():
    rng = np.random.default_rng(0)
    drawn = rng.binomial(50, 0.8, size=(2000, 40))
    assert sampling_std(drawn[0], np.full(40, 50)) == pytest.approx((drawn / 50).std(axis=1, ddof=1).mean(), rel=0.1)


# ------------------------------------------------------------------------------------------------------- by hand


def test_one_file_by_hand():
    result = diagnose.diagnose(table("cat→cat*3", "cat→dog", "dog→dog*2", "dog→cat*2", "cow→cow*4"))
    assert list(result.classes.index) == ["cat", "cow", "dog"]
    assert list(result.classes["accuracy"]) == [0.75, 1.0, 0.5]
    assert list(result.classes["images"]) == [4, 4, 4]
    assert result.fairness.loc["average", "accuracy"] == pytest.approx(0.75)
    assert result.fairness.loc["worst", "accuracy"] == 0.5
    assert result.pairs.to_numpy().tolist() == [["dog", "cat", 2, 0.5], ["cat", "dog", 1, 0.25]]
    assert result.paired is None
    first = diagnose.sentences(result)[0]
    assert first == "12 images, 3 classes: 75.0 % right; class accuracies run from 50.0 % (dog) to 100.0 % (cow)."


def test_two_files_by_hand():
    """Ten lost and none won: p = 2/2¹⁰; with two classes Holm doubles it, Benjamini–Hochberg too."""
    before = table("cat→cat*10", "dog→dog*5", "dog→cat*5")
    after = table("cat→dog*10", "dog→dog*5", "dog→cat*4", "dog→dog")
    result = diagnose.diagnose(before, after)
    cat, dog = result.classes.loc["cat"], result.classes.loc["dog"]
    assert (cat.lost, cat.won, dog.lost, dog.won) == (10, 0, 0, 1)
    assert (cat.p, cat.p_holm, cat.q) == pytest.approx((2 / 1024, 4 / 1024, 4 / 1024))
    assert (cat.verdict, dog.verdict, dog.p) == ("hurt", "", 1.0)
    assert list(result.named("hurt").index) == ["cat"]
    assert result.named("helped").empty
    assert result.paired
    assert "same images" in result.notes[0]
    assert result.pairs.iloc[0].to_list() == ["cat", "dog", 0, 0.0, 10, 1.0]
    text = "\n".join(diagnose.sentences(result))
    assert "hurt 1 class (cat −100.0) and helped no class" in text
    assert "cat taken for dog, 0 % of its images, with augmentation 100 %" in text


def test_ids_pair_what_lies_in_another_order():
    before = table("a→a*6", "b→b*2", ids=range(8))
    after = table("b→b*2", "a→b*6", ids=[7, 6, *range(6)])
    result = diagnose.diagnose(before, after)
    assert result.paired
    assert "paired by id" in result.notes[0]
    assert result.classes.loc["a", "lost"] == 6
    without = diagnose.diagnose(before.drop(columns="id"), after.drop(columns="id"))
    assert without.paired is False
    assert "different orders" in without.notes[0]
    assert "Fisher" in without.notes[0]
    assert without.classes.loc["a", "p"] == pytest.approx(fisher_exact([[6, 0], [0, 6]]).pvalue)
    assert "lost" not in without.classes


def test_files_of_different_lengths_are_compared_unpaired():
    result = diagnose.diagnose(table("a→a*6", "b→b*2"), table("a→b*5", "b→b*2"))
    assert result.paired is False
    assert "8 and 7 rows" in result.notes[0]


def test_names_and_numbers_may_be_written_in_several_ways(tmp_path):
    by_number = csv(tmp_path / "n.csv", "Label, Prediction\n10,10.0\n2,2.0\n2,10.0\n")
    result = diagnose.diagnose(by_number)
    assert list(result.classes.index) == ["2", "10"], "numbers are in the order of numbers"
    assert list(result.classes["accuracy"]) == [0.5, 1.0]
    frame = pd.DataFrame({"label": ["NA", "None", "NA"], "pred_top1": ["NA", "None", "None"]})
    frame.to_parquet(tmp_path / "n.parquet")
    assert list(diagnose.diagnose(tmp_path / "n.parquet").classes["accuracy"]) == [0.5, 1.0], "names, not gaps"


# --------------------------------------------------------------------------------------------------------- the page


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


def test_page_is_whole_and_escapes_class_names(tmp_path):
    evil, dollars = "<script>alert(1)</script>", "a $x_{ & b $"
    before = table(f"{evil}→{evil}*9", f"{dollars}→{dollars}*9", f"{dollars}→{evil}")
    after = table(f"{evil}→{dollars}*9", f"{dollars}→{dollars}*9", f"{dollars}→{evil}")
    path = diagnose.write_html(diagnose.diagnose(before, after), tmp_path / "deep" / "page.html", title="<b>")
    page = Page(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "b" in page.tags  # the marks of the bars; the title's is text
    assert evil in page.text
    assert dollars in page.text
    assert "<b>" in page.text
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert page.tags.count("img") == 1


def test_every_prediction_right(tmp_path):
    result = diagnose.diagnose(table("a→a*3", "b→b*3"), table("a→a*3", "b→b*3"))
    text = Page(diagnose.html(result)).text
    assert "every prediction is right" in text
    assert "No class is shown to be hurt" in text
    assert "hurt no class and helped no class (significant at a false discovery rate of 5 %)." in text


def imagenet() -> pd.DataFrame:
    if not IMAGENET_VAL.is_dir():
        pytest.skip(f"needs resnet50_top1.csv.gz in {IMAGENET_VAL}: set CLAMKIT_SHARED to the folder above data")
    return pd.read_csv(IMAGENET_VAL / "resnet50_top1.csv.gz")


def test_fifty_thousand_real_predictions(tmp_path):
    """1,000 classes; the second file loses every image of class 0 and half the right ones of class 1 (made up)."""
    frame = imagenet()
    label, prediction = frame["label"], frame["pred_resnet50"]
    before = IMAGENET_VAL / "resnet50_top1.csv.gz"
    second = prediction.mask(label == 0, 1).mask((label == 1) & (frame.index % 2 == 0), 0)
    after = tmp_path / "after.csv"
    pd.DataFrame({"label": label, "prediction": second}).to_csv(after, index=False)
    start = time.perf_counter()
    text = diagnose.report(before, after, tmp_path / "page.html")
    assert time.perf_counter() - start < 20
    right = (label == prediction).groupby(label).mean()
    result = diagnose.diagnose(before, after)
    np.testing.assert_allclose(result.classes["accuracy"], right)
    assert f"{100 * (label == prediction).mean():.1f} % right" in text
    assert "hurt 2 classes (0 " in text
    assert set(result.named("hurt").index) == {"0", "1"}
    confused = result.pairs.set_index(["label", "prediction"])["count_wrong"]
    wrong = frame[label != prediction].astype(str).value_counts()
    assert confused[confused > 0].to_dict() == wrong.to_dict()
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.tags.count("img") == 2
    assert page.tags.count("tr") > 1000


# -------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file .*preds.csv"),
        ("", "preds.csv is empty"),
        ("label,prediction\n", "a header and no rows"),
        ("label,guess\n1,1\n", "no column prediction: .* has label, guess"),
        ("image;label;prediction\n", "no column label and no column prediction.* has image;label;prediction"),
        ("label,pred_a,pred_b\n1,1,1\n", "no column prediction"),
        ("label,prediction\na,a\nb,\nb,nan\n", r"no prediction in 2 of 3 rows \(first: line 3\)"),
        ("label,prediction\na,a\na,b\n", "all labels are 'a'"),
        ("label,prediction\n1,cat\n2,dog\n", "no prediction is among the labels: labels are like 1, 2.* like cat, dog"),
        ('label,prediction\na,a\n"b,b\n', "cannot be read as a table"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "preds.csv"
    if text is not None:
        csv(path, text)
    with pytest.raises(ClamkitError, match=message):
        diagnose.report(path, None, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (table("a→a", "b→b"), table("a→a", "c→c"), r"different classes: 1 only in the first \(b\)"),
        (table("a→a", "b→b"), table("a→a", "b→b", "c→c"), r"1 only in the second \(c\)"),
        (table("a→a", "b→b", ids=[1, 2]), table("a→a", "b→b", ids=[1, 3]), r"2 ids are in one file only \(2, 3\)"),
        (table("a→a", "b→b", ids=[1, 1]), table("a→a", "b→b", ids=[1, 2]), "first file has the id '1' more than once"),
        (table("a→a", "b→b", ids=[1, 2]), table("a→a", "b→b", ids=[2, 1]), "id '1' has another label"),
        (table("a→a", "b→b"), table("a→x", "b→y"), "no prediction of the second file is among the labels"),
    ],
)
def test_files_that_do_not_belong_together(before, after, message):
    with pytest.raises(ClamkitError, match=message):
        diagnose.diagnose(before, after)


def test_predictions_outside_the_labels_are_wrong_and_told():
    result = diagnose.diagnose(table("a→a", "a→zebra*2", "b→b"))
    assert result.classes.loc["a", "accuracy"] == pytest.approx(1 / 3)
    assert result.notes == ["2 predictions are no label of the data (zebra): counted as wrong."]
