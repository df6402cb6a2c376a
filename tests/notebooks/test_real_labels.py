"""ReaL labels: by hand, and for a real network where its predictions are at hand."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clamkit.errors import ClamkitError
from helpers import real_labels
from helpers.real_labels import real_accuracy, real_top1

SHARED = Path(os.environ.get("CLAMKIT_SHARED") or Path(__file__).resolve().parents[3] / "shared")
IMAGENET_VAL = SHARED / "data" / "imagenet_val"
REAL = [[0], [], [0, 1], [2], [1], [2, 0]]


def test_by_hand():
    original = [0, 0, 1, 1, 2, 2]
    pred = [0, 0, 0, 1, 2, 0]  # right, left out, right, wrong, wrong, right
    np.testing.assert_allclose(real_accuracy(pred, REAL, original), [1, 0.5, 0.5])
    np.testing.assert_allclose(real_accuracy(pred, REAL, original, num_classes=4), [1, 0.5, 0.5, np.nan])
    assert real_top1(pred, REAL) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("pred", "real", "original", "says"),
    [
        ([0] * 6, REAL[:5], [0] * 6, "5 ReaL label lists for predictions of shape (6,)"),
        ([0] * 6, REAL, [0] * 5, "6 predictions but original labels of shape (5,)"),
        ([0] * 6, [[]] * 6, [0] * 6, "no image has a ReaL label"),
        ([0] * 6, REAL, [0, 0, 0, 0, 0, 7], "0..2"),
    ],
)
def test_refuses(pred, real, original, says):
    with pytest.raises(ClamkitError, match=re.escape(says)):
        real_accuracy(pred, real, original, num_classes=3)


@pytest.mark.skipif(
    not (IMAGENET_VAL / "real.json").is_file(),
    reason=f"needs real.json and resnet50_top1.csv.gz in {IMAGENET_VAL}: set CLAMKIT_SHARED to the folder above data",
)
def test_a_real_resnet50_on_imagenet():
    real = json.loads((IMAGENET_VAL / "real.json").read_text())
    frame = pd.read_csv(IMAGENET_VAL / "resnet50_top1.csv.gz")
    assert 100 * real_top1(frame["pred_resnet50"], real) == pytest.approx(81.98, abs=0.005)
    per_class = real_accuracy(frame["pred_resnet50"], real, frame["label"])
    kept = np.array([len(labels) > 0 for labels in real])
    assert (~kept).sum() == 3163
    images = np.bincount(frame["label"][kept], minlength=1000)
    assert 100 * np.average(per_class, weights=images) == pytest.approx(81.98, abs=0.005)
    with pytest.raises(ClamkitError, match="49999 ReaL label lists"):
        real_accuracy(frame["pred_resnet50"], real[:-1], frame["label"])


def test_the_example_separates_guessing_from_seeing():
    table = real_labels.spread(real_labels.example())
    assert len(real_labels.example()) == 3 * 20
    by_real = table.xs("real", level=1)
    assert by_real.loc["first"].tolist() == pytest.approx(by_real.loc["guesses better"].tolist()), "sees no better"
    assert table.loc[("guesses better", "original"), "std"] < table.loc[("sees better", "original"), "std"]
    assert by_real.loc["sees better", "std"] < by_real.loc["first", "std"]


def test_the_committed_network_is_that_of_the_predictions():
    """50 images of each class, by both kinds of labels: recomputed from the predictions where they are at hand."""
    committed = real_labels.measured()
    assert len(committed) == 1000
    assert (50 * committed["original"]).round(6).apply(float.is_integer).all(), "50 images of each class"
    if not (IMAGENET_VAL / "real.json").is_file():
        pytest.skip(f"the predictions are not in {IMAGENET_VAL}")
    images = pd.read_csv(IMAGENET_VAL / "resnet50_top1.csv.gz")
    lists = json.loads((IMAGENET_VAL / "real.json").read_text())
    rows = zip(images["label"], images["pred_resnet50"], lists, strict=True)
    right = [(label == found, found in own if own else None) for label, found, own in rows]
    by_hand = pd.DataFrame(right, columns=["original", "real"], dtype=float).groupby(images["label"]).mean()
    assert committed[["original", "real"]].to_numpy() == pytest.approx(by_hand.to_numpy(), abs=1e-6)


def test_without_predictions_no_run_counts(memory_run):
    assert real_labels.of_runs([memory_run([0.5, 0.6], dataset="imagenet")], None, ["std"]).empty
