"""The diagnosis against hand-worked cases, scipy and brute force."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import fisher_exact

from clamkit.apps.diagnose import diagnose, sentences
from clamkit.apps.diagnose_page import report
from clamkit.apps.words import share
from clamkit.errors import ClamkitError

from .tables import table


def csv(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_one_file_by_hand():
    result = diagnose(table("cat→cat*3", "cat→dog", "dog→dog*2", "dog→cat*2", "cow→cow*4"))
    assert list(result.classes.index) == ["cat", "cow", "dog"]
    assert list(result.classes["accuracy"]) == [0.75, 1.0, 0.5]
    assert list(result.classes["images"]) == [4, 4, 4]
    assert result.fairness.loc["average", "value"] == pytest.approx(0.75)
    assert result.fairness.loc["worst", "value"] == 0.5
    assert list(result.pairs.index) == [("dog", "cat"), ("cat", "dog")]
    assert result.pairs.to_numpy().tolist() == [[2, 0.5], [1, 0.25]]
    assert result.changes is None
    first = sentences(result)[0]
    assert first == "12 images, 3 classes: 75.0 % right; class accuracies run from 50.0 % (dog) to 100.0 % (cow)."


def test_two_files_by_hand():
    """Ten lost and none won: p = 2/2¹⁰; with two classes Holm doubles it, Benjamini–Hochberg too."""
    before = table("cat→cat*10", "dog→dog*5", "dog→cat*5")
    after = table("cat→dog*10", "dog→dog*5", "dog→cat*4", "dog→dog")
    result = diagnose(before, after, titles=["old", "new"])
    (new,) = result.others
    cat, dog = new.changes.loc["cat"], new.changes.loc["dog"]
    assert (cat.lost, cat.won, dog.lost, dog.won) == (10, 0, 0, 1)
    assert (cat.p, cat.p_holm, cat.q) == pytest.approx((2 / 1024, 4 / 1024, 4 / 1024))
    assert (cat.verdict, dog.verdict, dog.p) == ("hurt", "", 1.0)
    assert list(new.named("hurt").index) == ["cat"]
    assert new.named("helped").empty
    assert new.paired
    assert "same images" in result.notes[0]
    assert result.pairs.index[0] == ("cat", "dog")
    assert result.pairs.iloc[0].to_list() == [0, 0.0, 10, 1.0]
    text = "\n".join(sentences(result))
    assert "hurt 1 class (cat −100.0) and helped no class" in text
    assert "Confused most in new: cat taken for dog, 100 % of its images; old: none." in text


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([0, 1], "No class is shown to be hurt or helped (at a false discovery rate of 5 %)."),
        ([10, 0], "rate of 5 %; it passes Holm's stricter correction."),
        ([10, 10], "; both pass Holm's"),
        ([10, 10, 10], "; all 3 pass Holm's"),
        ([6, 6], "; none of the 2 passes Holm's"),
        ([10, 6, 6], "; 1 of the 3 passes Holm's"),
        ([10, 10, 6, 6], "; 2 of the 4 pass Holm's"),
    ],
)
def test_how_many_pass_holm_is_a_sentence(lost, said):
    """Six lost, p = 1/32, pass Benjamini–Hochberg where all do as well; Holm multiplies them by how many are left."""
    before, after = (table(*(f"{i}→{i}*20" for i in range(len(lost)))) for _ in range(2))
    for label, count in enumerate(lost):
        after.loc[after["label"].eq(str(label)).to_numpy().nonzero()[0][:count], "prediction"] = "none"
    assert said in sentences(diagnose(before, after))[4]


def test_of_two_models_the_first_is_named_in_the_first_sentences():
    one, *_ = sentences(diagnose(table("a→a*9", "b→b*9"), titles=["old.csv"]))
    assert "old.csv" not in one
    first, second, third, other, *_ = sentences(
        diagnose(table("a→a*9", "b→b*9"), table("a→a*9", "b→a*9"), titles=["old.csv", "new.csv"])
    )
    assert first.startswith("18 images, 2 classes: old.csv gets 100.0 % right")
    assert second.startswith("The worst 10 % of its classes")
    assert third.startswith("Its std over classes")
    assert other.startswith("new.csv ")


def test_several_models_are_each_compared_with_the_first():
    """Three models are one diagnosis: each comparison is that of the pair, and what is wrong names its file."""
    tables = table("a→a*9", "b→b*9"), table("a→b*9", "b→b*9"), table("a→a*9", "b→b*4", "b→a*5")
    result = diagnose(*tables, titles=["x", "y", "z"])
    assert result.titles == ["x", "y", "z"]
    for model, own in zip(result.others, tables[1:], strict=True):
        pd.testing.assert_frame_equal(model.changes, diagnose(tables[0], own).others[0].changes)
    assert len(result.notes) == 1, "the same note once"
    text = sentences(result)
    assert [line.split(" ")[0] for line in text[3:9:3]] == ["y", "z"]
    assert text[-1] == "Confused most in y: a taken for b, 100 % of its images; x: none; z: none."
    with pytest.raises(ClamkitError, match="1 only in z"):
        diagnose(*tables[:2], table("a→a", "b→b", "c→c"), titles=["x", "y", "z"])


def test_ids_pair_what_lies_in_another_order():
    before = table("a→a*6", "b→b*2", ids=range(8))
    after = table("b→b*2", "a→b*6", ids=[7, 6, *range(6)])
    result = diagnose(before, after)
    assert result.others[0].paired
    assert "paired by id" in result.notes[0]
    assert result.others[0].changes.loc["a", "lost"] == 6
    without = diagnose(before.drop(columns="id"), after.drop(columns="id"))
    assert without.others[0].paired is False
    assert "different orders" in without.notes[0]
    assert "Fisher" in without.notes[0]
    assert without.others[0].changes.loc["a", "p"] == pytest.approx(fisher_exact([[6, 0], [0, 6]]).pvalue)
    assert "lost" not in without.others[0].changes


def test_rows_of_data_frames_are_paired_by_their_place_whatever_their_index_is():
    """A part of a table, or one that was split at random, keeps the index of the whole."""
    before, after = table("a→a*6", "b→b*2", "b→a"), table("a→b*6", "b→b*3")
    moved = diagnose(before.set_axis(range(90, 81, -1)), after.set_axis([0] * 9)).others[0]
    assert moved.paired
    assert moved.table[["lost", "won"]].to_numpy().tolist() == [[6, 0], [0, 1]]


def test_files_of_different_lengths_are_compared_unpaired():
    result = diagnose(table("a→a*6", "b→b*2"), table("a→b*5", "b→b*2"))
    assert result.others[0].paired is False
    assert "has 8 rows, " in result.notes[0]
    assert " 7: images cannot be paired." in result.notes[0]


def test_names_and_numbers_may_be_written_in_several_ways(tmp_path):
    by_number = csv(tmp_path / "n.csv", "Label, Prediction\n10,10.0\n2,2.0\n2,10.0\n")
    result = diagnose(by_number)
    assert list(result.classes.index) == ["2", "10"], "numbers are in the order of numbers"
    assert list(result.classes["accuracy"]) == [0.5, 1.0]
    frame = pd.DataFrame({"label": ["NA", "None", "NA"], "pred_top1": ["NA", "None", "None"]})
    frame.to_parquet(tmp_path / "n.parquet")
    assert list(diagnose(tmp_path / "n.parquet").classes["accuracy"]) == [0.5, 1.0], "names, not gaps"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file .*preds.csv"),
        ("", "preds.csv is empty"),
        ("label,prediction\n", "a header and no rows"),
        ("label,guess\n1,1\n", "no column prediction: .* has label, guess"),
        ("image|label|prediction\n", r"no column label and no column prediction.* has image\|label\|prediction"),
        ("label,pred_a,pred_b\n1,1,1\n", "no column prediction"),
        ("label,prediction\na,a\nb,\nb,nan\n", r"no prediction in 2 of 3 rows \(first: line 3\)"),
        ("label,prediction\na,a\na,b\n", "all labels are 'a'"),
        ("label,prediction\n1,cat\n2,dog\n", "no prediction is among the labels: labels are like 1, 2.* like cat, dog"),
        ('label,prediction\na,a\n"b,b\n', "cannot be read as a table"),
        ("label,prediction\na,a\nb,b,c\n", r"line 3, saw 3\): give CSV"),
        ("label,Label,prediction\na,a,a\n", "more than one column label"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "preds.csv"
    if text is not None:
        csv(path, text)
    with pytest.raises(ClamkitError, match=message):
        report([path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (table("a→a", "b→b"), table("a→a", "c→c"), r"different classes: 1 only in the table \(1\) \(b\)"),
        (table("a→a", "b→b"), table("a→a", "b→b", "c→c"), r"1 only in the table \(2\) \(c\)"),
        (table("a→a", "b→b", ids=[1, 2]), table("a→a", "b→b", ids=[1, 3]), r"2 ids are in only one of .* \(2, 3\)"),
        (
            table("a→a", "b→b", ids=[1, 1]),
            table("a→a", "b→b", ids=[1, 2]),
            r"the table \(1\) has the id '1' more than once",
        ),
        (
            table("a→a", "b→b", ids=[1, 2]),
            table("a→a", "b→b", ids=[2, 1]),
            r"id '1' has another label in the table \(2\)",
        ),
        (table("a→a", "b→b"), table("a→x", "b→y"), r"no prediction of the table \(2\) is among the labels"),
    ],
)
def test_files_that_do_not_belong_together(before, after, message):
    with pytest.raises(ClamkitError, match=message):
        diagnose(before, after)


def test_predictions_outside_the_labels_are_wrong_and_told():
    result = diagnose(table("a→a", "a→zebra*2", "b→b"))
    assert result.classes.loc["a", "accuracy"] == pytest.approx(1 / 3)
    assert result.notes == ["2 predictions are no label of the data (zebra): counted as wrong."]


def test_what_is_confused_is_never_called_zero_percent():
    """One image of 300 is 0.3 %; where two models differ, the worse one is told first."""
    rare = diagnose(table("cat→cat*299", "cat→dog", "dog→dog"))
    assert sentences(rare)[-1] == "Confused most: cat taken for dog, below 1 % of its images."
    before, after = table("cat→cat*5", "cat→dog*5", "dog→dog*2"), table("cat→cat*9", "cat→dog", "dog→dog*2")
    told = sentences(diagnose(before, after, titles=["old", "new"]))[-1]
    assert told == "Confused most in old: cat taken for dog, 50 % of its images; new: 10 %."
    told = sentences(diagnose(before, before))[-1]
    assert told == "Confused most: cat taken for dog, 50 % of its images, in both."
    assert [share(value) for value in (0, 1e-9, 0.0099, 0.01, 0.5, 0.9901, 0.9999, 1)] == [
        "none", "below 1 %", "below 1 %", "1 %", "50 %", "above 99 %", "above 99 %", "100 %",
    ]  # fmt: skip


def test_an_id_that_comes_twice_is_told():
    """In one file, and in two where only one has ids to pair by."""
    twice = table("a→a*3", "b→b", ids=["x", "y", "x", "x"])
    note = "Some ids come more than once (x): each row is counted as an image of its own."
    assert diagnose(twice).notes == [note]
    assert diagnose(table("a→a", "b→b", ids=[1, 2])).notes == []
    second = diagnose(table("a→a*3", "b→b"), twice).notes
    assert second[1] == note.replace("ids", "ids of the table (2)")


def test_a_name_is_the_same_however_its_accents_are_written(tmp_path):
    """é as one character or as e and an accent: one class, and no confusion."""
    composed, parts = "caf\u00e9", "cafe\u0301"
    result = diagnose(table(f"{composed}→{parts}*2", f"{parts}→{composed}", "bar→bar"))
    assert list(result.classes.index) == ["bar", composed]
    assert list(result.classes["accuracy"]) == [1, 1]
    file = csv(tmp_path / "p.csv", f"label,prediction\n{parts},{composed}\nbar,bar\n")
    assert diagnose(file).pairs.empty


def test_odd_class_names_are_names():
    """A superscript is a digit for Python, but no number."""
    assert list(diagnose(table("m²→m²", "²→²", "--3→--3", "-3→-3", "10→10", "9→9")).classes.index) == [
        "-3", "9", "10", "--3", "m²", "²",
    ]  # fmt: skip


@pytest.mark.slow
def test_reading_and_diagnosing_needs_neither_torch_nor_matplotlib():
    code = "import sys, clamkit.apps.diagnose; print(*({'torch', 'matplotlib', 'pandas'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["pandas"]
