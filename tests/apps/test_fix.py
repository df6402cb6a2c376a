"""Class biases for files of logits: against plain loops and fits by hand, applied by the lines that are printed."""

import json
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from clamkit.apps.fix import figure_front, fix, lines_of_code, read_target, report, sentences
from clamkit.apps.predictions import read
from clamkit.errors import ClamkitError
from clamkit.methods.posthoc import Biases, fit_biases
from tests.methods.logits import UNEVEN, images, measured

NAMES = ("cat", "dog", "cow", "hen")


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "logits.npz"
    np.savez(path, logits=UNEVEN[0], labels=UNEVEN[1], class_names=np.array(NAMES))
    return path


def test_every_form_of_the_same_logits_gives_the_same_biases(npz, tmp_path):
    """npz, CSV with logits, with probabilities and with columns named like classes, Parquet with lists."""
    logits, labels = UNEVEN
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    named = np.array(NAMES)[labels]
    forms = ["p.npz", "l.parquet"]
    np.savez(tmp_path / "p.npz", probs=p, y=labels)
    for file, prefix, values in (("l.csv", "logit_", logits), ("p.csv", "prob.", p), ("bare.csv", "", p)):
        frame = pd.DataFrame(values, columns=[prefix + name for name in NAMES]).assign(label=named)
        frame.to_csv(tmp_path / file, index=False)
        forms.append(file)
    pd.DataFrame({"label": labels, "logits": list(logits)}).to_parquet(tmp_path / "l.parquet")
    expected = fix(npz)
    for file in forms:
        found = fix(tmp_path / file)
        np.testing.assert_allclose(found.biases.values, expected.biases.values, atol=1e-6, err_msg=file)
        assert found.kind == ("probabilities" if file[0] in "pb" else "logits")
    assert expected.biases.class_names == NAMES


def test_a_file_named_like_a_run_is_a_file(npz):
    named = npz.rename(npz.with_name("Normal, cats, crop 0.3, seed 1.npz"))
    assert fix(named).measured.startswith("Fitted on one half of the images")


def test_what_is_reported_comes_from_the_other_half(npz):
    """Recomputed: each half's numbers are those of biases fitted on the other; what is given is fitted on all."""
    logits, labels = UNEVEN
    found = fix(npz, max_cost=0.01)
    np.testing.assert_array_equal(found.biases.values, fit_biases(logits, labels, max_cost=0.01).values)
    order, half = np.random.default_rng(0).permutation(len(labels)), np.zeros(len(labels), dtype=bool)
    for c in range(4):
        half[[i for i in order if labels[i] == c][::2]] = True
    with_biases, without = [], []
    for side in (half, ~half):
        values = fit_biases(logits[~side], labels[~side], max_cost=0.01).values
        with_biases.append(measured(logits[side], labels[side], values))
        without.append(measured(logits[side], labels[side]))
    np.testing.assert_allclose(found.metrics["with"], sum(with_biases) / 2)
    np.testing.assert_allclose(found.metrics["without"], sum(without) / 2)
    assert found.useful


def test_a_target_takes_the_weakest_biases_that_reach_it(npz):
    whole = fit_biases(*UNEVEN)
    found = fix(npz, target=("worst", 0.7)).biases
    reached = whole.path.index[whole.path["worst"] >= 0.7]
    assert found.strength == reached[0]
    even = fix(npz, target=("std", 0.1)).biases
    assert even.strength == whole.path.index[whole.path["std"] <= 0.1][0]
    with pytest.raises(ClamkitError, match="no biases reach worst=0.95 on held-out images: without it is 54.7%"):
        fix(npz, target=("worst", 0.95))
    met = fix(npz, target=("worst", 0.5))
    assert not met.biases.values.any()
    assert sentences(met)[1] == "worst=0.5 is reached without biases: it is 54.7%. So none are written."
    dear = images(300, [3.0, 1.0, 2.0, 1.5], calibrated=True)  # argmax is the best average there is
    frame = pd.DataFrame(dear[0], columns=[f"logit_{i}" for i in range(4)]).assign(label=dear[1])
    with pytest.raises(ClamkitError, match="costs .* of average, more than the 0.01% allowed"):
        fix(frame, max_cost=0.0001, target=("worst", fit_biases(*dear).path["worst"].max()))


@pytest.mark.parametrize(
    ("classes", "per_class", "said"),
    [
        (10, 60, "Nothing to gain at a cost of at most 0.50% of average"),
        (3, 100, "do not confirm it: nothing is shown"),
    ],
)
def test_nothing_to_gain_is_said_and_nothing_written(classes, per_class, said, tmp_path):
    """Classes that are equally hard: nothing is chosen, or what is chosen by luck is not confirmed by other images."""
    logits, labels = images(per_class, [2.0] * classes, seed=1)
    np.savez(tmp_path / "l.npz", logits=logits, labels=labels)
    assert said in report(tmp_path / "l.npz", tmp_path / "biases.json", tmp_path)[1]
    assert not (tmp_path / "biases.json").exists()
    assert (tmp_path / "fix_front.png").exists()
    (tmp_path / "biases.json").write_text("of another model", encoding="utf-8")
    assert "biases.json was there before" in report(tmp_path / "l.npz", tmp_path / "biases.json", tmp_path)[1]
    assert (tmp_path / "biases.json").read_text(encoding="utf-8") == "of another model"


def test_the_printed_lines_apply_the_biases(npz, tmp_path):
    _, text = report(npz, tmp_path / "biases.json", tmp_path, target="worst=70%")
    biases = Biases.from_json((tmp_path / "biases.json").read_text(encoding="utf-8"))
    logits = UNEVEN[0].astype(np.float32)
    expected = (logits + biases.values.astype(np.float32)).argmax(1)
    assert (biases.apply(logits).argmax(1) == expected).all()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    class Session:
        def __init__(self, out):
            self.out = out

        def run(self, outputs, inputs):
            return [self.out]

    for kind, given in (("logits", logits), ("probabilities", p)):
        lines = lines_of_code(tmp_path / "biases.json", kind)
        x = torch.tensor(given)
        names = {"json": json, "torch": torch, "np": np, "x": x, "model": lambda x: x, "inputs": {}}
        names |= {"logits": given, "probabilities": given, "session": Session(given)}
        for line in lines.values():
            assert kind == "probabilities" or line in text
            exec(line, names)
            assert (np.asarray(names["prediction"]) == expected).mean() > 0.999, line


def test_a_run_is_fitted_on_its_held_out_images():
    """Held-out images and test images are other images: here class 2 is held down in both."""
    test = images(50, [3.0, 2.2, 1.2, 2.6], held_down=[0.0, 0.0, 0.3, 0.5], seed=1)
    data = read(pd.DataFrame(test[0], columns=[f"logit_{n}" for n in NAMES]).assign(label=np.array(NAMES)[test[1]]))
    found = fix(replace(data, held_out=UNEVEN))
    np.testing.assert_array_equal(found.biases.values, fit_biases(*UNEVEN, max_cost=0.005).values)
    np.testing.assert_allclose(found.metrics["with"], measured(*test, found.biases.values))
    assert "held-out" in sentences(found)[0]


def test_biases_for_the_worst_tenth():
    """Chosen by the worst tenth within the cost that is allowed; useful if that tenth gains, whatever std does."""
    test = images(50, [3.0, 2.2, 1.2, 2.6], held_down=[0.0, 0.0, 0.3, 0.5], seed=1)
    data = read(pd.DataFrame(test[0], columns=[f"logit_{n}" for n in NAMES]).assign(label=np.array(NAMES)[test[1]]))
    found = fix(replace(data, held_out=UNEVEN), by="worst-tail", max_cost=0.05)
    expected = fit_biases(*UNEVEN, objective="worst-tail", max_cost=0.05)
    np.testing.assert_array_equal(found.biases.values, expected.values)
    assert found.biases.objective == "worst-tail"
    assert found.useful
    lost = found.metrics.assign(**{"with": found.metrics["without"]})
    lost.loc["std", "with"] -= 0.1
    assert not replace(found, metrics=lost).useful
    with pytest.raises(ClamkitError, match=r"ask for worst=0\.7 or for worst-tail, not both"):
        fix(data, by="worst-tail", target=("worst", 0.7))
    with pytest.raises(ClamkitError, match="unknown objective 'worst-tial'. Did you mean 'worst-tail'"):
        fix(replace(data, held_out=UNEVEN), by="worst-tial")


def test_the_front_shows_cost_and_gain(npz):
    found = fix(npz, target=("worst", 0.7))
    figure = figure_front(found)
    worst, std = figure.axes
    path = found.biases.path
    np.testing.assert_allclose(worst.lines[0].get_ydata(), path["worst"])
    np.testing.assert_allclose(std.lines[0].get_ydata(), path["std"])
    np.testing.assert_allclose(worst.lines[0].get_xdata(), 100 * (path["average"] - path["average"].iloc[0]))
    assert worst.lines[2].get_ydata()[0] == path.loc[found.biases.strength, "worst"]
    assert worst.get_xlabel() == "change of average accuracy, points"
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["biases, ever stronger", "without", "chosen", "target"]
    plt.close(figure)


@pytest.mark.parametrize("text", ["worst", "worst=-1", "worst=a", "=0.5", "worst<0.5", "worst=1.2.3"])
def test_a_target_with_a_typo_is_told(text):
    with pytest.raises(ClamkitError, match="give a metric and the accuracy that it shall reach"):
        read_target(text)


def test_a_target_that_other_images_miss_is_told(npz):
    """One half of the images finds no biases that reach a std of 0.05, so that what is measured falls short of it."""
    for target, missed in ((("worst", 0.7), False), (("std", 0.1), False), (("std", 0.05), True)):
        found = fix(npz, target=target)
        value = found.metrics.loc[target[0], "with"]
        assert (value < target[1] if target[0] == "worst" else value > target[1]) == missed
        said = f"Measured as above it is {100 * value:.1f} %: ask for more to be sure."
        assert (said in sentences(found)) == missed


def test_targets():
    assert read_target("worst = 60 %") == ("worst", pytest.approx(0.6))
    with pytest.raises(ClamkitError, match="unknown metric of a target 'wrost'. Did you mean 'worst'"):
        read_target("wrost=0.6")
    with pytest.raises(ClamkitError, match="accuracies are fractions. Say 0.6 or 60%"):
        read_target("worst=60")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": np.zeros((8, 2))}, "no array labels: .* has logits"),
        ({"labels": [0, 1]}, "no array predictions, logits or probabilities"),
        ({"logits": np.zeros((8, 2)), "labels": [0, 1]}, r"do not belong together \(label \(2,\), logits \(8, 2\)\)"),
        ({"logits": np.zeros(2), "labels": [0, 1]}, r"logits of l.npz have shape \(2,\)"),
        ({"probs": np.full((8, 2), 0.6), "labels": [0, 1] * 4}, "8 of 8 images of l.npz are negative or do not sum to"),
        ({"logits": np.full((8, 2), np.nan), "labels": [0, 1] * 4}, "not all finite numbers .first: nan in row 1"),
        ({"logits": np.zeros((8, 2)), "labels": [0, 5] * 4}, r"4 labels of l.npz have no column of logits \(5\)"),
        ({"logits": np.zeros((8, 2)), "labels": [0] * 8}, "1 of 2 classes of l.npz have fewer than 4 images"),
        ({"logits": np.zeros((1, 2)), "labels": [0]}, "2 of 2 classes of l.npz have fewer than 4 images"),
        ({"logits": np.zeros((8, 1)), "labels": [0] * 8}, "at least two classes"),
        ({"logits": np.zeros((0, 2)), "labels": np.zeros(0, int)}, "has no images"),
        ({"predictions": [0, 1], "labels": [0, 1]}, "predictions only: biases are added to logits"),
        ({"logits": np.zeros((8, 2)), "labels": [0, 1] * 4, "class_names": ["a"] * 2}, "1 different class names"),
        ({"logits": np.zeros((8, 2)), "labels": np.array([None] * 8)}, "cannot be read as an .npz file"),
    ],
)
def test_bad_input_is_told_in_a_sentence(arrays, message, tmp_path):
    np.savez(tmp_path / "l.npz", **arrays)
    with pytest.raises(ClamkitError, match=message):
        fix(tmp_path / "l.npz")


def test_of_unequal_classes_the_share_of_images_right_is_said_too():
    """900 and 100 images; the bias lifts the small class and costs the large one, and so most images."""
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], [900, 100])
    logits = rng.normal(size=(1000, 2)) + 2 * np.eye(2)[labels] + [2, 0]
    frame = pd.DataFrame(logits, columns=["logit_a", "logit_b"]).assign(label=np.array(["a", "b"])[labels])
    found = fix(frame)
    (line,) = [line for line in sentences(found) if line.startswith("  images right")]
    without, after = (0.9 * found.classes.loc["a", name] + 0.1 * found.classes.loc["b", name] for name in found.metrics)
    assert f"{100 * without:.1f} %" in line
    assert f"{100 * after:.1f} %" in line
    assert after < without, "while the average over classes rises"
    assert found.metrics.loc["average", "with"] > found.metrics.loc["average", "without"]
    even = fix(frame.groupby("label").head(100))
    assert "images right" not in "\n".join(sentences(even))


def test_halves_of_unequal_size_count_each_image_once():
    """5, 7 and 41 images have halves of 3 and 2, 4 and 3, 21 and 20: without biases it is what the whole file says."""
    labels = np.repeat([0, 1, 2], [5, 7, 41])
    logits = np.random.default_rng(1).normal(size=(53, 3)) + 1.5 * np.eye(3)[labels]
    found = fix(pd.DataFrame(logits, columns=["logit_0", "logit_1", "logit_2"]).assign(label=labels))
    right = logits.argmax(1) == labels
    np.testing.assert_allclose(found.classes["without"], [right[labels == c].mean() for c in range(3)])
    assert found.right[0] == pytest.approx(right.mean())


def test_a_cost_above_the_limit_on_other_images_is_said():
    """20 classes of 40 images: few enough that what was chosen for at most 0.5 points costs more on the other half."""
    rng, labels = np.random.default_rng(2), np.repeat(np.arange(20), 40)
    logits = rng.normal(size=(800, 20)) + np.eye(20)[labels] * rng.uniform(1, 4, 20)
    frame = pd.DataFrame(logits, columns=[f"logit_{i}" for i in range(20)]).assign(label=labels)
    found = fix(frame, max_cost=0.005)
    cost = -found.metrics.loc["average"].diff().iloc[1]
    assert found.useful
    assert cost > 0.005 >= found.biases.cost
    text = sentences(found)
    assert text[-1].startswith(f"Measured as above they cost {100 * cost:.2f} % of average, more than asked:")
    assert not [line for line in sentences(fix(frame, max_cost=0.05)) if "more than asked" in line]
