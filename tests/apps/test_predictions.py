"""Predictions from files, arrays and runs; what is read is what was written."""

import re
import sys

import numpy as np
import pandas as pd
import pytest

from clamkit.apps.diagnose import diagnose
from clamkit.apps.diagnose_page import html, report
from clamkit.apps.fix import fix
from clamkit.apps.predictions import read
from clamkit.cli import main
from clamkit.engine.config import RunConfig
from clamkit.engine.store import Logits, RunStore
from clamkit.errors import ClamkitError
from clamkit.methods.posthoc import fit_biases
from tests.methods.logits import images

NAMES = ("top", "middle", "bottom")


@pytest.fixture
def finished(tmp_path):
    """finished(method, holdout): the folder of a run that nobody trained, and its logits."""

    def make(method, holdout=60):
        config = RunConfig(method=method, holdout=holdout, crop_lower_bound=0.3, seed=2)
        run = RunStore(tmp_path / "runs").run(config)
        held = images(holdout, [3.0, 2.0, 1.5], held_down=[0, 0, 1], seed=1)
        test = images(50, [3.0, 2.0, 1.5], held_down=[0, 0, 1], seed=len(method))
        logits = Logits(test[0].astype(np.float16), test[1], held[0].astype(np.float16), held[1])
        with run.locked():
            run.claim(config)
            for name in ("history.parquet", "checkpoint.pt"):
                (run.folder / name).write_bytes(b"-")
            predicted = pd.DataFrame({"label": test[1], "prediction": logits.test.argmax(1)})
            run.finish({"class_names": list(NAMES)}, predicted, logits)
        return run.folder, logits

    return make


def test_a_run_brings_its_names_title_and_held_out_images(finished):
    folder, logits = finished("normal")
    for path in (folder, folder / "logits.npz", folder / "predictions.parquet"):
        found = read(path)
        assert found.title == "Normal, fashion_mnist_mini, crop 0.3, seed 2"
        assert found.names == NAMES
        assert set(found.table["label"]) == set(NAMES)
        np.testing.assert_array_equal(found.labels, logits.test_labels)
    fitted = fit_biases(logits.holdout, logits.holdout_labels, max_cost=0.005)
    np.testing.assert_array_equal(fix(folder).biases.values, fitted.values)


def test_two_runs_stand_side_by_side(finished, tmp_path):
    found = report([finished("normal")[0], finished("clam")[0]], tmp_path / "page.html")
    assert found.result.titles == [f"{method}, fashion_mnist_mini, crop 0.3, seed 2" for method in ("Normal", "CLAM")]
    assert "top" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_run_of_a_method_is_not_told_to_begin_with_it(finished, tmp_path):
    folders = {method: finished(method, holdout=0)[0] for method in ("normal", "clam_kl")}
    last = {method: report([folder], None).advice[-1] for method, folder in folders.items()}
    assert "train with CLAM, gently" in last["normal"]
    assert "try other settings of clam_kl by held-out images (`clamkit sweep GRID --select all`)" in last["clam_kl"]


def test_a_run_without_held_out_images_gets_no_biases(finished):
    with pytest.raises(ClamkitError, match="no held-out images to fit biases on.*--holdout 50"):
        fix(finished("clam", holdout=0)[0])


def test_arrays_and_tables_of_the_same_predictions_agree(tmp_path):
    label, prediction = np.array([0, 1, 2, 2, 1, 0]), np.array([0, 1, 2, 1, 1, 2])
    np.savez(tmp_path / "p.npz", y_true=label, y_pred=prediction, class_names=np.array(NAMES))
    named = np.array(NAMES)
    frame = pd.DataFrame({"label": named[label], "prediction": named[prediction]})
    for other in (tmp_path / "p.npz", frame):
        assert read(other).table.to_numpy().tolist() == frame.to_numpy().tolist()


COLUMNS = {"label": ["cat", "dog", "cat"], "prediction": ["dog", "dog", "cat"], "id": ["1", "2", "3"]}


@pytest.mark.parametrize("kind", ["semicolons", "tabs", "index", "other names", "sentences"])
def test_tables_as_other_programs_write_them(kind, tmp_path):
    frame, file = pd.DataFrame(COLUMNS), tmp_path / "x.csv"
    other = {"label": "y_true", "prediction": "y_pred"} if kind == "other names" else {}
    other = {"label": "Target", "prediction": "Predicted class", "id": "IDs"} if kind == "sentences" else other
    sign = {"semicolons": ";", "tabs": "\t"}.get(kind, ",")
    frame.rename(columns=other).to_csv(file, index=kind == "index", sep=sign)
    pd.testing.assert_frame_equal(read(file).table.astype(str), frame.astype(str))


@pytest.mark.parametrize("prefix", ["", "logit_"])
def test_an_index_is_no_class(prefix, tmp_path):
    """Row numbers are larger than any score: as a class, the index would be all that is predicted."""
    scores = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["cat", "index"])
    labels = np.repeat(["cat", "index"], 20)  # a class may have that name
    for classes in (["cat", "index"], ["cat", "dog"]):
        frame = scores.set_axis([prefix + name for name in classes], axis=1)
        frame["label"] = np.where(labels == "cat", *classes)
        frame.to_csv(tmp_path / "x.csv")
        found = read(tmp_path / "x.csv")
        assert list(found.names) == classes
        np.testing.assert_allclose(found.scores, scores)
    if not prefix:
        frame.reset_index().to_csv(tmp_path / "x.csv", index=False)
        assert list(read(tmp_path / "x.csv").names) == ["cat", "dog"]


def test_decimal_commas_go_with_semicolons(tmp_path):
    (tmp_path / "x.csv").write_text("label;logit_a;logit_b\na;1,5;-0,25\nb;1;2,0\n", encoding="utf-8")
    assert read(tmp_path / "x.csv").scores.tolist() == [[1.5, -0.25], [1, 2]]


@pytest.mark.parametrize("scores", [{"logits": np.eye(2)}, {"predictions": [0, 1]}])
def test_numbers_find_names_in_either_form_of_unicode(scores, tmp_path):
    """é as one character (NFC) and as e with an accent (NFD), both behind class numbers."""
    forms = ["caf\u00e9", "the\u0301"]
    np.savez(tmp_path / "x.npz", labels=[0, 1], class_names=forms, **scores)
    assert read(tmp_path / "x.npz").table.to_numpy().tolist() == [["caf\u00e9"] * 2, ["th\u00e9"] * 2]


def test_calibration_by_brute_force():
    logits, labels = images(40, [3.0, 2.0, 1.0])
    model = read(pd.DataFrame(logits, columns=[f"logit_{n}" for n in NAMES]).assign(label=np.array(NAMES)[labels]))
    classes = diagnose(model).classes
    for c, name in enumerate(NAMES):
        sure, right = [], []
        for z, y in zip(logits, labels, strict=True):
            if z.argmax() == c:
                sure.append(np.exp(z[c]) / sum(np.exp(z)))
                right.append(y == c)
        expected = (np.mean(sure), np.mean(right), np.mean(sure) - np.mean(right))
        assert tuple(classes.loc[name, ["confidence", "precision", "gap"]]) == pytest.approx(expected)


@pytest.mark.parametrize("form", ["s.npz", "s.csv", "s.parquet"])
def test_what_is_only_called_scores_is_what_its_numbers_are(form, tmp_path):
    """scikit-learn calls probabilities scores, other libraries logits."""
    logits, labels = images(50, [3.0, 2.0, 1.5])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for kind, values in (("logits", logits), ("probabilities", p)):
        columns = pd.DataFrame(values, columns=["score_0", "score_1", "score_2"])
        if form == "s.npz":
            np.savez(tmp_path / form, scores=values, labels=labels)
        elif form == "s.csv":
            columns.assign(label=labels).to_csv(tmp_path / form, index=False)
        else:
            pd.DataFrame({"label": labels, "scores": list(values)}).to_parquet(tmp_path / form)
        found = read(tmp_path / form)
        assert found.kind == kind
        np.testing.assert_allclose(np.exp(found.scores) / np.exp(found.scores).sum(1, keepdims=True), p, atol=1e-9)


def test_predictions_that_are_not_the_largest_score_are_told():
    frame = pd.DataFrame({"label": ["a", "b"], "prediction": ["a", "a"], "logit_a": [1.0, 0], "logit_b": [0, 1.0]})
    assert diagnose(frame).notes == ["1 predictions are not the class with the largest score: taken as given."]
    tied = frame.assign(prediction=["b", "b"], logit_a=[1.0, 0], logit_b=[1.0, 1.0])  # as logits of a run, in float16
    assert diagnose(tied).notes == [], "one of several largest scores is no contradiction"


def test_profile_by_hand():
    frame = pd.DataFrame({"label": list("aaaabbbb"), "prediction": list("aabbbbbb")})
    assert diagnose(frame).profile["accuracy"].to_dict() == {
        0.1: 0, 0.2: 0, 0.3: 0, 0.4: 0, 0.5: 0, 0.6: 0.5, 0.7: 0.5, 0.8: 0.5, 0.9: 0.5, 0.95: 0.5,
    }  # fmt: skip


@pytest.mark.slow
def test_ten_thousand_classes_make_a_page_below_a_megabyte():
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(10_000), 5)
    tables = [
        pd.DataFrame({"label": label, "prediction": np.where(rng.random(len(label)) < 0.7, label, (label + 1) % 9_999)})
        for _ in range(2)
    ]
    page = html(diagnose(*tables))
    assert len(page.encode()) < 1_000_000
    assert "the first 1,000, --json has all" in page


@pytest.mark.parametrize("command", ["diagnose", "fix"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"logit_a": [1.0], "logit_b": [2.0]}, "has scores and no column label"),
        (
            {"label": ["a", "b"], "prob_a": [0.9, 0.4], "prob_b": [0.3, 0.6]},
            "1 of 2 images of x.csv are negative or do not",
        ),
        (  # percentages, sigmoids: in columns that no name calls logits
            {"label": ["a", "b"], "a": [90.0, 40.0], "b": [10.0, 60.0]},
            r"2 of 2 images of x.csv are negative or do not sum to 1 \(row 1: 100\)",
        ),
        ({"label": ["a", "b"], "a": [0.9, 0.4], "b": [0.3, 0.9]}, "2 of 2 images of x.csv are negative or do not"),
        ({"label": ["a"] * 9, "prob_a": [1.0] * 9}, "one class|all labels are 'a'"),
        ({"label": ["a"], "logit_a": [1.0], "logit_b": [2.0]}, "all labels are 'a'|fewer than 4 images"),
        (
            {"label": ["a", "b"], "logit_a": [1.0, "x"], "logit_b": [1.0, 2.0]},
            r"not all finite numbers \(first: nan in row 2, class a\)",
        ),
        (
            {"label": ["a", "z"], "logit_a": [1.0, 1.0], "logit_b": [1.0, 2.0]},
            r"1 labels of x.csv have no column .*\(z\)",
        ),
    ],
)
def test_bad_input_exits_2_with_one_paragraph(command, columns, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(columns).to_csv("x.csv", index=False)
    monkeypatch.setattr(sys, "argv", ["clamkit", command, "x.csv"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.strip()
    assert (ended.value.code, len(said.splitlines())) == (2, 1)
    assert re.search(message, said), said
