"""DROPS against plain loops, what fitted biases can do, and what bad input gets."""

import json
from math import exp, log

import numpy as np
import pytest

from clamkit.errors import ClamkitError
from clamkit.methods.posthoc import Biases, fit_biases, fit_drops
from tests.methods.logits import SMALL, UNEVEN, images, measured

# DROPS


def plain_drops(logits, labels, prior, delta, iterations, step, decay):
    """DROPS as loops: (log α, centred; λ)."""
    n = len(logits[0])
    g, lam, eta = [1 / n] * n, 1.0, step
    alpha = [g[c] / prior[c] for c in range(n)]
    for _ in range(iterations):
        wrong, seen = [0] * n, [0] * n
        for z, y in zip(logits, labels, strict=True):
            p = [exp(x - max(z)) for x in z]
            scaled = [alpha[c] * p[c] / sum(p) for c in range(n)]
            wrong[y] += scaled.index(max(scaled)) != y
            seen[y] += 1
        divergence = sum(g[c] * log(g[c] * n) for c in range(n))
        raw = [exp(wrong[c] / seen[c] / lam) / n for c in range(n)]
        g = [x / sum(raw) for x in raw]
        lam += eta * (divergence - delta)
        eta *= decay
        alpha = [g[c] / prior[c] for c in range(n)]
    values = np.log(alpha)
    return values - values.mean(), lam


@pytest.mark.parametrize("prior", [None, [6, 3, 1]])
@pytest.mark.parametrize(
    "setting",
    [{}, {"delta": 0.05, "step": 0.2, "decay": 0.9, "iterations": 7}, {"delta": 0.9, "step": 10, "decay": 0.95}],
)
def test_drops_is_the_plain_loop(prior, setting):
    logits, labels = images(30, [3.0, 2.0, 1.0], seed=5)
    full = {"delta": 0.2, "iterations": 25, "step": 0.1, "decay": 1.0} | setting
    shares = np.full(3, 1 / 3) if prior is None else np.array(prior) / 10
    expected, lam = plain_drops(logits, labels, shares, **full)
    biases = fit_drops(logits, labels, prior=prior, **setting)
    assert biases.values == pytest.approx(expected, abs=1e-9)
    assert ("below 0" in repr(biases)) == (lam < 0)
    assert biases.path.index.tolist() == list(range(full["iterations"] + 1))
    assert biases.path["average"].iloc[-1] == pytest.approx(measured(logits, labels, expected)["average"])
    assert biases.path["average"].iloc[0] == pytest.approx(measured(logits, labels)["average"])
    assert not biases.along[0].any()


def test_drops_raises_the_worst_class_but_not_by_the_command_of_its_readme():
    logits, labels = images(200, [3.0, 2.0, 1.0])
    biases, command = fit_drops(logits, labels), fit_drops(logits, labels, delta=0.9, step=10, decay=0.95)
    assert biases.values.argmax() == 2
    assert biases.gain > 0.05
    assert biases.measured == "Measured on the images of the fit."
    assert np.abs(command.values).max() < 0.02
    assert "λ ended at" in repr(command)


# the result


def test_apply_and_predict():
    biases = fit_biases(*UNEVEN)
    logits = UNEVEN[0][:6]
    for kind in (np.float16, np.float32, np.float64):
        found = biases.apply(logits.astype(kind))
        assert found.dtype == kind
        assert found == pytest.approx(logits.astype(kind) + biases.values, rel=2e-3, abs=2e-3)
    assert biases.apply([[0, 0, 0, 0]]).tolist() == [biases.values.tolist()]
    assert biases.predict(logits).tolist() == (logits + biases.values).argmax(1).tolist()
    assert biases.predict(logits.reshape(2, 3, 4)).shape == (2, 3)
    assert biases.predict(logits[0]) == (logits[0] + biases.values).argmax()
    with pytest.raises(ClamkitError, match=r"shape \(6, 3\): the last dimension must be 4"):
        biases.predict(logits[:, :3])


@pytest.mark.parametrize("names", [None, ["a", "é", "c d", "4"]])
def test_json_round_trip(names):
    biases = fit_biases(*UNEVEN, class_names=names)
    text = biases.to_json()
    back = Biases.from_json(text)
    assert (back.values == biases.values).all()
    assert back.path.equals(biases.path)
    assert back.path.index.name == "strength"
    assert repr(back) == repr(biases)
    assert back.class_names == (None if names is None else tuple(names))
    assert back.to_json() == text
    assert json.loads(text)["gain"] == biases.gain
    with pytest.raises(ClamkitError, match="fit again to walk along the path"):
        back.at(1.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"values": [0, 1]}', '{"class_names": null, "path": 3}'])
def test_other_json(text):
    with pytest.raises(ClamkitError, match="this is no JSON of biases.*give what Biases.to_json wrote"):
        Biases.from_json(text)


def test_json_with_a_strength_that_its_path_does_not_have():
    content = json.loads(fit_biases(*UNEVEN).to_json())
    with pytest.raises(ClamkitError, match="this is no JSON of biases.*give what Biases.to_json wrote"):
        Biases.from_json(json.dumps(content | {"strength": 99.0}))


def test_the_result_in_words():
    biases = fit_biases(*UNEVEN, class_names=["cat", "dog", "owl", "bee"])
    assert repr(biases).startswith("Biases for 4 classes (average-std), from -")
    for part in (
        "(owl)",
        "average ",
        "std ",
        "worst ",
        "→",
        "The best strength on held-out images.",
        "5 times 2 parts",
    ):
        assert part in repr(biases)
    assert "class 2" in repr(fit_biases(*UNEVEN))


# bad input


def changed(logits=None, **cells):
    found = np.array(SMALL[0] if logits is None else logits)
    for place, value in cells.items():
        found[tuple(map(int, place.strip("_").split("_")))] = value
    return found


@pytest.mark.parametrize("fit", [fit_biases, fit_drops])
@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (SMALL[0], np.where(SMALL[1] == 1, 0, SMALL[1]), r"class 1 has no image \(1 of 3 classes have none\)"),
        (changed(_3_1=np.nan), SMALL[1], "the logits of 1 of 60 images have nan or infinite values"),
        (changed(_3_1=-np.inf, _5_0=np.inf), SMALL[1], "2 of 60 images have nan or infinite.*add 1e-12 before the log"),
        (SMALL[0], SMALL[1] + 1, r"labels run from 1 to 3: with 3 classes they must lie in 0\.\.2"),
        (SMALL[0], SMALL[1] - 1, "labels run from -1 to 1"),
        (SMALL[0], SMALL[1][:-1], r"labels have shape \(59,\): give one label for each of the 60"),
        (SMALL[0], SMALL[1] * 1.0, "labels are of type float64: give class numbers from 0 to 2"),
        (SMALL[0], SMALL[1].astype(str), "labels are of type <U"),
        (SMALL[0][:, :1], SMALL[1] * 0, "logits have 1 column: biases need at least two classes"),
        (SMALL[0][:, 0], SMALL[1], r"logits have shape \(60,\) and type float64"),
        (SMALL[0].astype(str), SMALL[1], r"logits have shape \(60, 3\) and type <U"),
        (SMALL[0][:0], SMALL[1][:0], "class 0 has no image"),
    ],
)
def test_bad_logits_and_labels(fit, logits, labels, message):
    with pytest.raises(ClamkitError, match=message):
        fit(logits, labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "worst-tale"}, "unknown objective 'worst-tale'. Did you mean 'worst-tail'?"),
        ({"max_cost": -0.01}, "max_cost=-0.01 is not allowed: it must lie between 0 and 1. 0.005 is half a point"),
        ({"max_cost": 5}, "max_cost=5 is not allowed"),
        ({"max_cost": np.nan}, "max_cost=nan"),
        ({"trade": -1}, "trade=-1: it must be a finite number ≥ 0"),
        ({"strength": -1}, "strength=-1: it must be a finite number ≥ 0"),
        ({"tail": 0}, "tail=0 is not a share"),
        ({"folds": 21}, "folds=21 with 20 images of class 0: every part needs one of each class"),
        ({"folds": 1}, "folds=1 with 20 images.*at least 2"),
        ({"folds": 2.5}, "folds=2.5: it must be a whole number"),
        ({"repeats": 0}, "repeats=0: it must be a whole number, at least 1"),
        ({"class_names": ["a", "b"]}, "2 class names were given for 3 classes"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ClamkitError, match=message.replace("?", r"\?")):
        fit_biases(*SMALL, **options)


def test_a_missing_class_is_named():
    with pytest.raises(ClamkitError, match="class 'owl' has no image"):
        fit_biases(SMALL[0][:40], SMALL[1][:40], class_names=["cat", "dog", "owl"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0}, "delta=0: it must be a finite number above 0"),
        ({"step": -1}, "step=-1"),
        ({"decay": np.inf}, "decay=inf"),
        ({"iterations": 0}, "iterations=0: it must be a whole number"),
        ({"prior": [1, 2]}, r"prior has shape \(2,\), smallest 1: give .* for each of 3 classes"),
        ({"prior": [1, 2, 0]}, r"prior has shape \(3,\), smallest 0: .* all above 0"),
        ({"delta": 0.1, "step": 10}, "exactly 0 with step=10 and delta=0.1: change one"),
    ],
)
def test_bad_options_of_drops(options, message):
    with pytest.raises(ClamkitError, match=message):
        fit_drops(*SMALL, **options)
