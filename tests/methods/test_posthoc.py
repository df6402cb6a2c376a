"""Class biases against brute force, plain loops, known answers and data in which nothing can be gained."""

import subprocess
import sys
import tracemalloc
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clamkit.methods.posthoc import OBJECTIVES, STEPS, STRENGTHS, fit_biases, fit_drops
from clamkit.metrics import class_accuracy
from tests.methods.logits import SMALL, UNEVEN, images, measured

fixed = settings(derandomize=True, deadline=None, max_examples=25)


def score(logits, labels, values, objective):
    found = measured(logits, labels, values)
    return found["worst"] if objective == "worst-tail" else found["average"] - found["std"]


# the path


def plain_path(logits, labels):
    """The path as loops over images: softly counted accuracies, then the classes below the mean are raised."""
    n = len(logits[0])

    def margin(z, y, b):
        return z[y] + b[y] - max(z[j] + b[j] for j in range(n) if j != y)

    sizes = np.sort([abs(margin(z, y, [0] * n)) for z, y in zip(logits, labels, strict=True)])
    place = 0.1 * (len(sizes) - 1)
    low = int(place)
    unit = (sizes[low] + (place - low) * (sizes[low + 1] - sizes[low])) / 0.1
    b, along = [0.0] * n, []
    for step in STEPS:
        along.append(b)
        v = [0.0] * n
        for z, y in zip(logits, labels, strict=True):
            v[y] += 1 / (1 + exp(-margin(z, y, b) / (0.2 * unit))) / list(labels).count(y)
        b = [b[c] + step * unit * (sum(v) / n - v[c]) for c in range(n)]
    return np.array(along)


def test_the_path_is_the_plain_loop():
    biases = fit_biases(*SMALL)
    assert biases.along == pytest.approx(plain_path(*SMALL), abs=1e-9)
    assert STRENGTHS[:3] == pytest.approx([0, 0.1, 0.212])
    assert biases.path.index.tolist() == STRENGTHS.tolist()


def test_a_first_step_worked_by_hand():
    # margins: ±2 everywhere, so the unit is 2/0.1 = 20 and the width of the soft step 4. Class 0 is right in 3 of 4
    # images, class 1 in 1 of 4. With s = σ(2/4): v = (3s + (1 − s))/4 and (s + 3(1 − s))/4, apart by (2s − 1)/2.
    logits = [[2, 0], [2, 0], [2, 0], [0, 2], [2, 0], [2, 0], [2, 0], [0, 2]]
    biases = fit_biases(logits, [0, 0, 0, 0, 1, 1, 1, 1], folds=2)
    apart = (2 / (1 + exp(-0.5)) - 1) / 2
    assert biases.along[1] == pytest.approx([-0.1 * 20 * apart / 2, 0.1 * 20 * apart / 2])
    first = biases.path.loc[0.0]
    assert first["average"] == pytest.approx(0.5)  # the mean over halves of 75 % and 25 %


@pytest.mark.parametrize("objective", ["average-std", "worst-tail"])
@pytest.mark.parametrize(
    "given_data",
    [
        images(400, [3.0, 1.5]),
        images(400, [2.0, 2.0], held_down=[0.0, 1.5]),
        images(400, [3.0, 2.0, 1.2]),
        pytest.param(images(400, [2.0, 2.5, 1.5], held_down=[0.8, 0.0, 0.4]), marks=pytest.mark.slow),
        pytest.param(images(400, [3.0, 1.5, 1.0], calibrated=True), marks=pytest.mark.slow),
    ],
    ids=["two", "two, one held down", "three", "three, two held down", "three, calibrated"],
)
def test_the_path_reaches_the_optimum_of_a_brute_force(objective, given_data):
    (logits, labels), n = given_data, given_data[0].shape[1]
    grid = np.linspace(-4, 4, 81)
    others = np.stack(np.meshgrid(*[grid] * (n - 1)), axis=-1).reshape(-1, n - 1)
    every = np.pad(others, ((0, 0), (1, 0)))  # the first class needs no bias: only differences count
    right = np.stack([class_accuracy(labels, (logits + b).argmax(1), n) for b in every])
    goal = right.min(1) if objective == "worst-tail" else right.mean(1) - right.std(1, ddof=1)
    reached = max(score(logits, labels, b, objective) for b in fit_biases(logits, labels).along)
    assert score(logits, labels, 0.0, objective) < goal.max() - 0.02, "there was something to gain"
    assert reached >= goal.max() - 0.015, "a point and a half"


def test_a_bias_that_was_taken_off_is_found_again():
    off = np.array([0.0, 1.5, -1.0, 0.5, 0.0, -0.5])
    logits, labels = images(1000, [2.5] * 6, held_down=off)
    biases = fit_biases(logits, labels)
    assert biases.values == pytest.approx(off - off.mean(), abs=0.2)
    whole, before, after = (measured(logits, labels, b) for b in (off, 0.0, biases.values))
    assert after["average"] == pytest.approx(whole["average"], abs=0.005)
    assert before["average"] < whole["average"] - 0.08
    assert after["std"] < before["std"] / 4


def test_biases_of_a_model_that_saw_unbalanced_data():
    prior = np.array([0.5, 0.3, 0.1, 0.07, 0.03])
    logits, labels = images(400, [2.0] * 5, held_down=-np.log(prior), seed=1)
    fresh, theirs = images(2000, [2.0] * 5, held_down=-np.log(prior), seed=2)
    biases = fit_biases(logits, labels, objective="average")
    best = measured(fresh, theirs, -np.log(prior))["average"]
    assert measured(fresh, theirs)["average"] < best - 0.08
    assert measured(fresh, theirs, biases.values)["average"] > best - 0.01
    assert biases.cost < -0.08


# the choice


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gain_and_cost_are_those_of_the_path(objective):
    biases = fit_biases(*UNEVEN, objective=objective, trade=2.0)
    path, row = biases.path, biases.path.loc[biases.strength]
    expected = {
        "average": path["average"],
        "average-std": None,  # the mean of a difference over parts is the difference of the means
        "worst-tail": path["worst"],
    }[objective]
    expected = path["average"] - 2.0 * path["std"] if expected is None else expected
    assert path["objective"].to_numpy() == pytest.approx(expected.to_numpy())
    assert biases.gain == pytest.approx(row["objective"] - path["objective"].iloc[0])
    assert biases.cost == pytest.approx(path["average"].iloc[0] - row["average"])
    assert biases.comparison.index.tolist() == ["without", "with"]
    assert biases.comparison.loc["with", "worst"] == row["worst"]
    assert biases.values.tolist() == biases.along[path.index.get_loc(biases.strength)].tolist()
    assert path["average"].iloc[0] == pytest.approx(measured(*UNEVEN)["average"]), "halves of equal size"


def test_what_is_held_out_agrees_with_new_images():
    biases = fit_biases(*images(200, [3.0, 2.2, 1.2, 2.6]))
    fresh = images(5000, [3.0, 2.2, 1.2, 2.6], seed=9)
    for row, values in {"without": 0.0, "with": biases.values}.items():
        truth = measured(*fresh, values)
        assert biases.comparison.loc[row, "average"] == pytest.approx(truth["average"], abs=0.02)
        assert biases.comparison.loc[row, "worst"] == pytest.approx(truth["worst"], abs=0.05)
    assert measured(*fresh, biases.values)["std"] < 0.6 * measured(*fresh)["std"]


HARD = images(400, [3.5, 3.0, 2.0, 1.2, 0.8], seed=3, calibrated=True)  # what one class gains another one pays


def test_max_cost_is_kept_and_binds():
    free = fit_biases(*HARD, objective="worst-tail")
    bound = fit_biases(*HARD, objective="worst-tail", max_cost=0.01)
    assert free.cost > 0.01 >= bound.cost
    assert 0 < bound.strength < free.strength
    assert 0 < bound.gain < free.gain
    assert fit_biases(*HARD, objective="worst-tail", max_cost=1.0).strength == free.strength


def test_trade_buys_equality():
    little, much = (fit_biases(*HARD, trade=trade) for trade in (0.2, 5.0))
    assert little.strength < much.strength
    assert little.cost < much.cost
    assert little.comparison.loc["with", "std"] > much.comparison.loc["with", "std"]


def test_tail_down_to_the_worst_class():
    logits, labels = images(60, np.linspace(1, 4, 20))
    found = fit_biases(logits, labels, objective="worst-tail", tail=1 / 20, strength=0)
    tenth = fit_biases(logits, labels, objective="worst-tail", strength=0)
    assert found.path["worst"].iloc[0] < tenth.path["worst"].iloc[0]


def test_a_strength_can_be_given():
    chosen = fit_biases(*UNEVEN)
    asked = fit_biases(*UNEVEN, strength=0.83)
    assert asked.strength == STRENGTHS[np.abs(STRENGTHS - 0.83).argmin()]
    assert (asked.values == chosen.at(0.83).values).all()
    assert "given, not chosen" in repr(asked)
    assert not fit_biases(*UNEVEN, strength=0).values.any()
    assert "given, not chosen" in repr(chosen.at(0))


def test_few_images_still_gain_on_new_ones():
    signal, fresh = np.linspace(1.2, 4, 10), images(1000, np.linspace(1.2, 4, 10), seed=99)
    without = measured(*fresh)
    with_biases = [measured(*fresh, fit_biases(*images(20, signal, seed=seed)).values) for seed in range(10)]
    assert np.mean([found["std"] for found in with_biases]) < 0.8 * without["std"]
    assert np.mean([found["worst"] for found in with_biases]) > without["worst"] + 0.1
    assert np.mean([found["average"] for found in with_biases]) > without["average"] - 0.01


def test_noise_is_mostly_left_alone_and_never_costs_much():
    """Ten classes of equal difficulty, 40 images each: all that differs is luck."""
    fresh = images(1000, [2.0] * 10, seed=99)
    found = [fit_biases(*images(40, [2.0] * 10, seed=seed)) for seed in range(20)]
    lost = [measured(*fresh)["average"] - measured(*fresh, biases.values)["average"] for biases in found]
    spread = [measured(*fresh, biases.values)["std"] - measured(*fresh)["std"] for biases in found]
    zero = [biases for biases in found if not biases.values.any()]
    assert len(zero) >= 10
    assert np.mean(lost) < 0.002
    assert max(lost) < 0.01
    assert np.mean(spread) < 0.005
    for biases in zero:
        assert biases.strength == biases.cost == biases.gain == 0
        assert "all zero. Nothing to gain: no strength improves average-std by more than noise." in repr(biases)


def test_a_perfect_model_is_left_alone():
    logits, labels = images(30, [50.0] * 4)
    biases = fit_biases(logits, labels, max_cost=0.005)
    assert not biases.values.any()
    assert "Nothing to gain at a cost of at most 0.50% of average" in repr(biases)


def test_logits_that_say_nothing():
    biases = fit_biases(np.zeros((12, 3)), np.arange(12) % 3)
    assert np.isfinite(biases.along).all()
    assert biases.path.loc[0.0, "average"] == pytest.approx(1 / 3), "the first class of equals is predicted"


# what must not matter


@st.composite
def data(draw):
    """(logits, labels) of 2 to 5 classes, 4 to 15 images each."""
    n = draw(st.integers(2, 5))
    signal = draw(st.lists(st.floats(-1, 4), min_size=n, max_size=n))
    return images(draw(st.integers(4, 15)), signal, seed=draw(st.integers(0, 10**6)))


@fixed
@given(data(), st.sampled_from(sorted(OBJECTIVES)), st.sampled_from([None, 0.0, 0.02]))
def test_never_worse_than_none_on_the_held_out_parts(given_data, objective, max_cost):
    biases = fit_biases(*given_data, objective=objective, max_cost=max_cost)
    assert biases.gain >= 0
    assert biases.cost <= (np.inf if max_cost is None else max_cost) + 1e-9
    assert biases.values.sum() == pytest.approx(0, abs=1e-9)
    assert bool(biases.values.any()) == (biases.strength > 0)


@fixed
@given(data(), st.floats(0.01, 100), st.integers(0, 10**6))
def test_shift_and_scale_of_the_logits(given_data, scale, seed):
    logits, labels = given_data
    shift = np.random.default_rng(seed).normal(size=(len(labels), 1))
    biases, moved = fit_biases(logits, labels), fit_biases(scale * (logits + shift), labels)
    assert moved.along == pytest.approx(scale * biases.along, rel=1e-6, abs=1e-9 * scale)
    assert (biases.predict(logits + shift) == biases.predict(logits)).all()


@fixed
@given(data(), st.randoms(use_true_random=False))
def test_order_of_the_classes(given_data, random):
    logits, labels = given_data
    order = list(range(logits.shape[1]))
    random.shuffle(order)
    place = np.argsort(order)  # the new number of each class
    biases, other = fit_biases(logits, labels), fit_biases(logits[:, order], place[labels])
    assert other.along == pytest.approx(biases.along[:, order], abs=1e-9)
    assert other.path.to_numpy() == pytest.approx(biases.path.to_numpy(), abs=1e-9)


def test_nothing_is_random_but_the_split():
    again, other = fit_biases(*UNEVEN), fit_biases(*UNEVEN, seed=1)
    first = fit_biases(*UNEVEN)
    assert (first.values == again.values).all()
    assert first.path.equals(again.path)
    assert (first.along == other.along).all()
    assert not first.path.equals(other.path)


def test_what_is_given_stays_as_it_is():
    logits, labels = UNEVEN
    kept = logits.copy(), labels.copy()
    fit_biases(logits, labels), fit_drops(logits, labels)
    assert (logits == kept[0]).all()
    assert (labels == kept[1]).all()


def test_half_precision_is_the_same_numbers():
    half = UNEVEN[0].astype(np.float16)
    biases, same = fit_biases(half, UNEVEN[1]), fit_biases(half.astype(np.float32), UNEVEN[1].astype(np.uint8))
    assert (biases.along == same.along).all()
    assert biases.path.equals(same.path)
    assert biases.values == pytest.approx(fit_biases(*UNEVEN).at(biases.strength).values, abs=0.02)


def test_ties_go_to_the_first_class_as_in_argmax():
    logits = np.random.default_rng(0).integers(0, 3, size=(120, 4)).astype(np.float16)
    labels = np.arange(120) % 4
    assert fit_biases(logits, labels).path.loc[0.0, "average"] == pytest.approx(measured(logits, labels)["average"])


def test_unequal_class_sizes_and_more_parts():
    logits, labels = UNEVEN
    keep = np.flatnonzero((labels != 2) | (np.arange(len(labels)) % 30 == 0))  # ten images of class 2 are left
    biases = fit_biases(logits[keep], labels[keep], folds=5, repeats=2)
    assert biases.measured == "Measured on held-out images, 2 times 5 parts, fitted on the others."
    assert biases.values[2] == biases.values.max()


def test_blocks_of_any_size_give_the_same(monkeypatch):
    whole = fit_biases(*UNEVEN)
    monkeypatch.setattr("clamkit.methods.posthoc.BLOCK", 70)
    assert (fit_biases(*UNEVEN).along == whole.along).all()


@pytest.mark.slow
def test_a_thousand_classes_of_twenty_images_fit_into_memory():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(1000), 20)
    logits = rng.normal(size=(20_000, 1000)).astype(np.float16)
    logits[np.arange(20_000), labels] += np.linspace(3, 6, 1000, dtype=np.float16)[labels]
    tracemalloc.start()
    biases = fit_biases(logits, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * logits.size * 4, "two copies in float32"
    assert biases.gain > 0.02
    assert biases.values[:100].mean() > 0 > biases.values[-100:].mean()


def test_no_torch_is_loaded():
    code = "import sys, clamkit.methods.posthoc; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
