"""Advice: each situation gets its own, and the numbers in it are those of the data."""

import re

import numpy as np
import pandas as pd
import pytest

from clamkit.apps.advice import advice
from clamkit.apps.diagnose import diagnose
from clamkit.apps.fix import fix
from clamkit.apps.predictions import read
from clamkit.errors import ClamkitError
from clamkit.lab import results
from clamkit.metrics import class_accuracy, compare_groups
from tests.methods.logits import UNEVEN, images

from .tables import table


def predictions(logits, labels):
    return read(pd.DataFrame(logits, columns=[f"logit_{i}" for i in range(logits.shape[1])]).assign(label=labels))


def test_noise_only_asks_for_more_images_and_nothing_else():
    """20 alike classes of 25 images: v(1 − v)/n = 0.01² needs n = 0.16/0.0001, some 1,600 images at v = 0.8."""
    rng = np.random.default_rng(3)
    label = np.repeat(np.arange(20), 25)
    prediction = np.where(rng.random(500) < 0.8, label, (label + 1) % 20)
    (line,) = advice(diagnose(pd.DataFrame({"label": label, "prediction": prediction})))
    assert line.startswith("Collect more test images first")
    needed = int(re.search(r"About ([\d,]+) of each", line)[1].replace(",", ""))
    assert 100 < needed < 2500


def test_many_images_that_show_nothing_but_chance_show_even_classes():
    """10 classes of v = 0.8 and 2,000 images: the std by chance is below 0.9 %, and there is nothing to collect."""
    right = np.random.default_rng(0).binomial(2000, 0.8, 10)
    rows = [f"c{i}→c{i}*{n}" for i, n in enumerate(right)] + [f"c{i}→c{9 - i}*{2000 - n}" for i, n in enumerate(right)]
    result = diagnose(table(*rows))
    assert result.fairness.loc["noise", "value"] > 0.5
    assert advice(result)[-1].startswith("The classes are even")
    assert f"at most {100 * result.fairness.loc['std', 'high']:.1f} % (95 % sure)" in advice(result)[-1]


def test_a_rare_class_does_not_multiply_the_images_wanted():
    """v = 0.75 everywhere: 0.1875 / 0.01² = 1,875 images of each class, whatever there is of them now."""
    rows = [row for i in range(9) for row in (f"c{i}→c{i}*750", f"c{i}→c{(i + 1) % 9}*250")]
    (line,) = advice(diagnose(table(*rows, "rare→rare*3", "rare→c0*1")))
    assert "by 4 to 1,000 images of a class" in line
    needed = int(re.search(r"About ([\d,]+) of each", line)[1].replace(",", ""))
    assert needed == pytest.approx(1875, rel=0.02)


def test_biases_that_cost_images_say_so():
    """900 images of one class and 100 of the other: the average over classes rises, the share that is right falls."""
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], [900, 100])
    model = predictions(rng.normal(size=(1000, 2)) + 2 * np.eye(2)[labels] + [1.5, 0], labels)
    classes = fix(model).classes
    expected = 100 * ((classes["with"] - classes["without"]) * [0.9, 0.1]).sum()
    assert expected < -1
    (line,) = [line for line in advice(diagnose(model), model) if line.startswith("Use class biases")]
    assert f"(weighted by images {expected:+.1f})".replace("-", "−") in line


def test_a_confused_pair_is_named_with_its_share():
    """30 of the 40 errors are between cat and dog, either way."""
    names = [f"n{i}" for i in range(8)]
    rows = [
        "cat→cat*80",
        "cat→dog*20",
        "dog→dog*90",
        "dog→cat*10",
        "n0→n1*10",
        *(f"{name}→{name}*100" for name in names),
    ]
    assert advice(diagnose(table(*rows)))[0].startswith(
        "Look at images of cat / dog: this pair makes 75 % of all errors"
    )


def test_biases_are_advised_where_they_help_and_not_where_they_do_not():
    model = predictions(*UNEVEN)
    lines = advice(diagnose(model), model)
    assert lines[0].startswith("Use class biases: without training they move the worst 10 % by +24.7 points")
    (met, *_) = advice(diagnose(model), model, fix(model, target=("worst", 0.5)))
    assert met == "Class biases are not needed: worst=0.5 is reached without biases: it is 54.7%."
    hard = predictions(*images(300, [3.0, 1.0, 3.0, 2.0], calibrated=True))
    lines = advice(diagnose(hard), hard)
    assert "lass biases" in lines[0]
    assert "train with CLAM" in lines[-1]


def test_biases_that_suffice_are_all_that_is_advised():
    """Six classes alike but for a bias of 1.5 on one: without it nothing but chance, as 200 images of each show it."""
    rng, labels = np.random.default_rng(0), np.arange(1200) % 6
    logits = rng.normal(size=(1200, 6)) + 2.5 * np.eye(6)[labels]
    model = predictions(logits - [1.5, 0, 0, 0, 0, 0], labels)
    alike = class_accuracy(labels, logits.argmax(1), 6)
    assert alike.std(ddof=1) < 1.5 * np.sqrt((alike * (1 - alike) / 200).mean()), "even, as far as can be seen"
    assert [line.split(":")[0] for line in advice(diagnose(model), model)] == ["Use class biases"]


def test_what_is_left_is_said_after_the_biases():
    """A third of class 1 look like class 0, which no bias mends cheaply; class 2 is held down, which one does."""
    labels, rng = np.arange(3000) % 3, np.random.default_rng(0)
    looks = np.where((labels == 1) & (rng.random(3000) < 0.35), 0, labels)
    model = predictions(rng.normal(size=(3000, 3)) + 4 * np.eye(3)[looks] - [0, 0, 3.5], labels)
    found = fix(model)
    line = advice(diagnose(model), model, found)[-1]
    left = found.classes["with"].to_numpy()
    real = np.sqrt(left.var(ddof=1) - (left * (1 - left) / 1000).mean())
    said = float(re.search(r"The std left after the biases is ([\d.]+) %", line)[1])
    assert said == pytest.approx(100 * real, abs=0.1)
    assert abs(said - 100 * found.metrics.loc["std", "without"]) > 2


@pytest.mark.slow
def test_what_our_runs_brought_is_what_the_committed_results_say():
    """The numbers of the last line, in points against Normal: mean over the seeds."""

    def gain(method, tau, *grids):
        frame = pd.concat([results.rows_of(grid) for grid in grids]).query("accuracy_from.isna() or method == 'normal'")
        frame = frame.assign(strength=frame["crop_lower_bound"], tau=frame["tau"].where(frame["method"] != "normal", 0))
        frame = frame[frame["method"].isin(["normal"]) | ((frame["method"] == method) & (frame["tau"] == tau))]
        frame = frame.drop_duplicates(["method", "strength", "seed"])
        table = compare_groups(frame, method, "normal", ["worst", "average"])
        assert table["n"].min() >= 3
        return [round(100 * value, 1) for value in table["mean_difference"]]

    ten = [
        gain("clam", 0.1, "mini_tau_cifar10", "mini_cifar10"),
        gain("clam", 0.1, "mini_tau", "mini_crop"),
        gain("clam_kl", 0.1, "mini_tau", "mini_crop"),
    ]
    assert all(4.5 <= worst < 10.5 and abs(average) < 0.5 for worst, average in ten)
    assert [min(ten)[0], *gain("clam", 0.1, "mini_tau_cifar100", "mini_cifar100")] == [5.0, 1.6, -0.3]
    assert gain("tce", 1, "mini_cifar100") == [3.9, -1.3]


def test_biases_that_cannot_be_fitted_are_not_advised_but_why_is():
    """Class 2 is held down, class 3 has three images: `clamkit fix` refuses the file, and says what it lacks."""
    labels = np.repeat(np.arange(4), [400, 400, 400, 3])
    logits = np.random.default_rng(0).normal(size=(1203, 4)) + 3 * np.eye(4)[labels] - [0, 0, 2.5, 0]
    model = predictions(logits, labels)
    with pytest.raises(ClamkitError) as refused:
        fix(model)
    (line, _) = advice(diagnose(model), model)
    assert line == f"Class biases, which need no training, cannot be tried yet: {refused.value}"
    assert "1 of 4 classes of the table have fewer than 4 images (3)" in line


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_a_model_worse_than_guessing_is_not_called_even(classes):
    """All labels one too high, as where one program counts from 0 and another from 1. Guessing at random is no such
    model: of 8 of these none is said to be, and neither is one that takes all for the same class.
    """
    labels, rng = np.arange(20_000) % classes, np.random.default_rng(0)
    shifted, guessed = labels + 1, [rng.integers(0, classes, 20_000) for _ in range(8)]
    first, *others = (diagnose(pd.DataFrame({"label": labels, "prediction": p % classes})) for p in (shifted, *guessed))
    (line,) = advice(first)
    assert line.startswith("Check first that labels and predictions use the same numbers for the classes: they average")
    assert f"guessing at random gives {100 / classes:.1f} %" in line
    others.append(diagnose(pd.DataFrame({"label": labels, "prediction": 1})))
    assert not any("use the same numbers" in line for other in others for line in advice(other))


def test_predictions_alone_are_asked_for_logits():
    lines = advice(diagnose(table("a→a*50", "a→b*50", "b→b*95", "b→a*5")))
    assert "clamkit fix logits.npz" in lines[0]
    assert "from 50.0 %" in lines[0]
    assert "--method clam_kl --tau 0.1" in lines[1]


def test_even_classes_are_left_alone():
    (line,) = advice(diagnose(table("a→a*9000", "a→b*1000", "b→b*9200", "b→a*800")))
    assert line.startswith("The classes are even: without sampling noise the std over them is 1.4 %")


def test_a_few_images_that_are_all_right_prove_nothing():
    (line,) = advice(diagnose(table("a→a*3", "b→b*3")))
    assert line.startswith("Collect more test images first: by 3 images of a class the std over them may be up to ")
    (line,) = advice(diagnose(table("a→a", "b→b")))
    assert line.startswith("Collect more test images first: by 1 image of a class the std over them may be up to ")


def test_the_order_is_that_of_cost():
    """One confused pair and a class that is held down: look, then biases, then training."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 200)
    logits = rng.normal(size=(1600, 8)) + 6 * np.eye(8)[labels]
    pair = labels < 2
    logits[pair] -= 3 * np.eye(8)[labels[pair]]
    logits[pair] += 3 * np.eye(8)[1 - labels[pair]]
    logits[:, 1] -= 1.5
    model = predictions(logits, labels)
    first, second = advice(diagnose(model), model)[:2]
    assert first.startswith("Look at images of 0 / 1: this pair makes")
    assert second.startswith("Use class biases")
