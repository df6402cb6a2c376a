"""Notebook 42's table and decision, by hand."""

import pandas as pd
import pytest

from helpers import fix_story
from helpers.class_names import imagenet_names, readable

CLASSES = pd.DataFrame(
    {"as it is": [0.2, 0.8, 0.8], "biases": [0.5, 0.7, 0.6], "gentle CLAM": [0.53, 0.8, 0.5]}, ["a", "b", "c"]
)


def test_costs_by_hand():
    table = fix_story.costs(CLASSES)
    assert table.loc["as it is", "average"] == pytest.approx(60)
    assert table.loc["biases", "Δ average"] == pytest.approx(0)
    assert table.loc["gentle CLAM", "Δ worst"] == pytest.approx(30)
    assert table.loc["biases", "Δ range"] == pytest.approx(-40)


def test_who_pays():
    biases, clam = fix_story.who_pays(CLASSES)
    assert biases == "biases: gain 1 class (a +30.0); pay 2 classes (c −20.0, b −10.0)."
    assert clam == "gentle CLAM: gain 1 class (a +33.0); pay 1 class (c −30.0)."


@pytest.mark.parametrize(
    ("remedies", "images", "max_cost", "decided"),
    [
        (
            {"biases": [0.5, 0.7, 0.6], "gentle CLAM": [0.53, 0.8, 0.55]},
            100,
            0.5,
            "Take biases, which need no training",
        ),
        ({"biases": [0.5, 0.7, 0.6], "gentle CLAM": [0.53, 0.8, 0.55]}, 10_000, 0.5, "Take gentle CLAM: worst tenth"),
        ({"biases": [0.3, 0.7, 0.6], "gentle CLAM": [0.5, 0.7, 0.5]}, 100, 0.5, "Leave it"),
        ({"biases": [0.3, 0.7, 0.6], "gentle CLAM": [0.5, 0.7, 0.5]}, 100, 5, "Take gentle CLAM"),
        ({"biases": [0.1, 0.9, 0.8]}, 100, 5, "Leave it"),
    ],
)
def test_the_decision(remedies, images, max_cost, decided):
    """Within the price, by the worst class; biases where the difference is below sqrt(2 p (1 − p) / images)."""
    classes = pd.DataFrame({"as it is": CLASSES["as it is"].to_numpy(), **remedies}, ["a", "b", "c"])
    assert fix_story.decision(classes, images, max_cost).startswith(decided)


def test_many_classes_show_those_that_move_most():
    classes = pd.DataFrame(
        {"as it is": [0.5] * 40, "biases": [0.5 + i / 100 for i in range(40)]}, [f"c{i}" for i in range(40)]
    )
    (axis,) = fix_story.figure_remedies(classes).axes
    assert {text.get_text() for text in axis.get_yticklabels()} == {f"c{i}" for i in range(25, 40)}


def test_names_of_imagenet():
    names = imagenet_names()
    assert len(names) == len(set(names.values())) == 1000
    assert list(names) == sorted(names), "the order of the labels"
    assert readable("n01440764") == "tench"
    assert readable("Shirt") == "Shirt"
    assert readable("aquarium_fish") == "aquarium fish"


def test_predictions_are_found_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(fix_story.paths, "project", lambda: tmp_path / "project")
    monkeypatch.delenv("CLAMKIT_REAL", raising=False)
    assert fix_story.imagenet_predictions() is None
    pd.DataFrame({"label": [0, 1], "pred_resnet50": [0, 0]}).to_csv(tmp_path / "resnet50_top1.csv.gz", index=False)
    found = fix_story.imagenet_predictions(tmp_path)
    assert found.table["label"].tolist() == ["tench", "goldfish"]
    assert found.table["prediction"].tolist() == ["tench", "tench"]


def test_long_sentences_break_between_words(capsys):
    fix_story.say("What next:", "one word after another " * 9, "`clamkit train --method clam_kl`", bullet="- ")
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "What next:"
    assert max(map(len, rest)) <= 98
    assert [line[:2] for line in rest] == ["- ", "  ", "  ", "- "]
    fix_story.say("x" * 95 + " 5 % of it")
    assert capsys.readouterr().out.splitlines() == ["x" * 95, "5 % of it"], "a number keeps its percent sign"
    assert " ".join(" ".join(rest[:3]).split()) == "- " + " ".join(["one word after another"] * 9)
