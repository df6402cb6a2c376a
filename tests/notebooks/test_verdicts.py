"""Verdicts as sentences: numbers worked by hand, the words of `overall_verdict`, and what is said of nothing."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from clamkit.metrics import compare, compare_groups
from helpers.verdicts import about, cost, each, effects, estimate, listed, number, ranks, say, throughout, verdict

SEEDS = pd.MultiIndex.from_product([[0.3, 1.0], [0, 1, 2]], names=["strength", "seed"])


def paired(**differences) -> pd.DataFrame:
    """`compare` of runs that differ by these values, in the order of SEEDS."""
    a = pd.DataFrame(differences, index=SEEDS).reset_index()
    return compare(a, a * [1, 1, *[0] * len(differences)], metrics=list(differences), on=["strength", "seed"])


def test_a_verdict_tells_effect_interval_and_seeds():
    each_seed = np.array([-0.02, -0.03, -0.04])
    table = paired(std=[*(each_seed - 0.01), *(each_seed + 0.01)])  # two bounds, whose mean is each_seed
    low, high = (100 * end for end in stats.t.interval(0.95, 2, -0.03, 0.01 / 3**0.5))
    told = f"−3.0 points in std (95 % interval −{-low:.1f} to −{-high:.1f})"
    assert verdict("A is fairer", table) == f"A is fairer: supported. Over 3 seeds the mean difference is {told}."


def test_metrics_have_their_names_and_the_worse_ones_are_named():
    table = paired(decile_range=[0.1, 0.101, 0.102] * 2, worst=[0.1, 0.101, 0.102] * 2)
    said = verdict("A is fairer", table)
    assert said.startswith("A is fairer: the opposite (significantly worse in decile range).")
    assert "+10.1 points in decile range (95 % interval" in said
    assert "and +10.1 in the worst 10 % (" in said


def test_nothing_is_said_in_a_sentence():
    frame = pd.DataFrame(columns=["method", "strength", "seed", "std"])
    table = compare_groups(frame, "clam", "normal", ["std"], names=("CLAM", "Normal"))
    why = "no setting has finished under both CLAM and Normal"
    assert verdict("A is fairer", table) == f"A is fairer: not decided, as {why}."
    nothing = "A rests: not decided, as no run has finished that could tell."
    assert about("A rests", pd.Series(dtype=float), "It is") == each("A rests", {}) == nothing
    assert each("A rests", {"here": table}) == nothing


def test_one_seed_has_no_interval():
    one = compare(
        pd.Series([0.1], pd.Index([0], name="seed"), name="std"), pd.Series([0.2], pd.Index([0], name="seed"))
    )
    assert effects(one) == "In the one seed that has run the mean difference is −10.0 points in std"
    assert estimate(pd.Series([2.0], pd.Index([0], name="seed")), unit=" %") == "2.00 % (one seed)"
    assert "not decided" in cost(one.rename(index={"std": "average"}))


def test_two_seeds_tell_no_price_for_sure():
    two = pd.Series([-0.0301, -0.0302], pd.Index([0, 1], name="seed"), name="average")
    assert cost(compare(two, 0 * two)).endswith("is not decided: fewer than 3 seeds have run.")


@pytest.mark.parametrize(
    ("loss", "which"), [(0.02, "surely more than"), (0.002, "surely less than"), (0.0101, "may be more or less than")]
)
def test_a_price_is_held_against_one_point(loss, which):
    said = cost(paired(average=[-loss - 0.001, -loss, -loss + 0.001] * 2))
    assert said.startswith(f"It costs {100 * loss:.1f} points of average accuracy (95 % interval ")
    assert f"{which} one point." in said


def test_a_number_below_or_above_a_bound():
    values = pd.Series([0.4, 0.5, 0.6] * 2, SEEDS)
    low, high = stats.t.interval(0.95, 2, 0.5, 0.1 / 3**0.5)
    told = f"0.50 % (95 % interval {low:.2f} to {high:.2f} over 3 seeds)"
    assert about("It rests", values, "It moves", bound=1, unit=" %") == f"It rests: supported. It moves {told}."
    assert about("It rests", values, "It moves", bound=0).startswith("It rests: the opposite.")
    assert about("It is fit", values, "It is", bound=0.9, above=True).startswith("It is fit: the opposite.")
    assert about("It is fit", values, "It is", bound=0.52).startswith("It is fit: not decided.")


def test_a_claim_on_every_epoch():
    falls, swings = [-0.03, -0.031, -0.032] * 2, [0.3, -0.4, 0.2] * 2
    table = paired(**{"1": swings, "2": falls}).set_axis([1, 2])
    said = throughout("Below throughout", table, "std")
    assert said.startswith("Below throughout: not decided (1 of 2 epochs point that way over 3 seeds, 1 significant).")
    assert "lies below 0 in 1 of 2 epochs and above in 0." in said
    assert "−3.1 points in the last epoch's std" in said


@pytest.mark.parametrize(
    ("raised", "word"), [(5, "supported"), (4, "supported"), (3, "not decided"), (1, "the opposite")]
)
def test_almost_all_of_the_worst_ranks(raised, word):
    up, down = [0.05, 0.051, 0.052] * 2, [-0.05, -0.051, -0.052] * 2
    table = paired(**{str(i): up if i < raised else down for i in range(5)}).set_axis(range(1, 6))
    assert ranks("A", table).startswith(f"A raises almost all of the worst classes: {word} ({raised} of the 5 worst")


def test_several_settings_in_one_claim():
    better, worse = paired(std=[-0.05, -0.051, -0.052] * 2), paired(std=[0.05, 0.051, 0.052] * 2)
    said = each("Every τ helps", {"τ = 1": better, "τ = 10": worse})
    assert said.startswith("Every τ helps: the opposite (supported at τ = 1; the opposite at τ = 10).")
    assert "difference in std is −5.1 points at τ = 1 (95 % interval" in said
    assert each("It helps", {"GGF": better}, join="against").startswith("It helps: supported (supported against GGF).")


def test_words_and_numbers(capsys):
    assert [number(value, 1, True) for value in (-0.04, -0.06, 2)] == ["+0.0", "−0.1", "+2.0"]
    assert [listed(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    say("word " * 50, "two")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 110
    say("x" * 107 + " 5 % of it")
    assert capsys.readouterr().out.splitlines() == ["x" * 107, "5 % of it"], "a number keeps its percent sign"
