"""The one rule for verdicts against a table worked by hand; what applies it agrees with it."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from clamkit import metrics
from helpers.verdicts import overall_verdict

fixed = settings(derandomize=True, deadline=None, max_examples=15)
WORDS = ("supported", "the opposite", "no difference", "not decided")


@pytest.mark.parametrize(
    ("toward", "p", "p_equal", "verdict"),
    [
        (True, 0.01, 1.0, "supported"),
        (True, 0.05, 1.0, "supported"),  # the level itself passes
        (True, 0.01, 0.01, "supported"),  # small, but surely there
        (False, 0.05, 1.0, "the opposite"),
        (True, 0.0501, 0.0501, "not decided"),
        (True, 0.0501, 0.05, "no difference"),
        (False, 0.3, 0.01, "no difference"),
        (False, 1.0, 1.0, "not decided"),
    ],
)
def test_decide_by_hand(toward, p, p_equal, verdict):
    assert metrics.decide(toward, p, p_equal) == verdict


def test_decide_at_another_level():
    assert metrics.LEVEL == 0.05
    assert metrics.decide(True, 0.08, level=0.1) == "supported"
    assert metrics.decide(True, 0.03, 0.02, level=0.01) == "not decided"


# who applies it


def expected(differences: np.ndarray, better: np.ndarray, margin: float) -> tuple[list[str], np.ndarray]:
    """Verdict on "the differences have the sign `better`" and p, metric by metric of [seed, bound, metric].

    The tests by scipy, Holm's correction by its definition.
    """
    p, p_equal = [], []
    effects = differences.mean(axis=1).round(12).T
    for effect in effects:
        if len(effect) < 3 or not effect.any():
            p, p_equal = [*p, 1.0], [*p_equal, 1.0 if len(effect) < 3 else 0.0]
            continue
        p.append(scipy.stats.ttest_1samp(effect, 0).pvalue)
        sides = ((-margin, "greater"), (margin, "less"))
        p_equal.append(max(scipy.stats.ttest_1samp(effect, at, alternative=side).pvalue for at, side in sides))
    p, p_equal = corrected(p), corrected(p_equal)
    verdicts = []
    for effect, sign, first, second in zip(effects, better, p, p_equal, strict=True):
        if first <= 0.05:
            verdicts.append("supported" if effect.mean() * sign > 0 else "the opposite")
        else:
            verdicts.append("no difference" if second <= 0.05 else "not decided")
    return verdicts, p


def corrected(p: list[float]) -> np.ndarray:
    order, k = np.argsort(p, kind="stable"), len(p)
    result = np.empty(k)
    for place, i in enumerate(order):
        result[i] = min(1, max(p[order[j]] * (k - j) for j in range(place + 1)))
    return result


@st.composite
def paired_runs(draw):
    """Differences of two metrics [seed, bound, metric], in thousandths: around some effect, with some luck."""
    seeds, bounds = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    centre = np.array([draw(st.sampled_from([-30, -3, 0, 3, 30])) for _ in range(2)])
    rng, size = np.random.default_rng(draw(st.integers(0, 1000))), draw(st.sampled_from([1, 20]))
    return ((centre + rng.normal(0, size, (seeds, bounds, 2))) / 1000).round(6)


def as_runs(differences: np.ndarray) -> pd.DataFrame:
    rows = []
    for (seed, bound), (std, worst) in zip(np.ndindex(differences.shape[:2]), differences.reshape(-1, 2), strict=True):
        setting = {"strength": (0.3, 0.6, 1.0)[bound], "seed": seed}
        rows.append({"method": "a", **setting, "std": 0.5 + std, "worst": 0.5 + worst})
        rows.append({"method": "b", **setting, "std": 0.5, "worst": 0.5})
    return pd.DataFrame(rows, columns=["method", "strength", "seed", "std", "worst"])


@fixed
@given(paired_runs())
def test_compare_says_what_the_rule_says(differences):
    table = metrics.compare_groups(as_runs(differences), "a", "b", ["std", "worst"])
    verdicts, p = expected(differences, np.array([1, 1]), 0.01)
    np.testing.assert_allclose(table["p_holm"], p, atol=1e-12)
    opening = {
        "supported": "a is higher than b (p = ",
        "the opposite": "a is lower than b (p = ",
        "no difference": "no difference of 0.01 or more (p = ",
        "not decided": "not decided: ",
    }
    for verdict, said in zip(verdicts, table["verdict"], strict=True):
        assert said.startswith(opening[verdict])


@fixed
@given(paired_runs())
def test_the_overall_verdict_says_what_the_rule_says(differences):
    table = metrics.compare_groups(as_runs(differences), "a", "b", ["std", "worst"])
    verdicts, _ = expected(differences, np.array([-1, 1]), 0.01)  # a lower std and a higher worst are better
    said = overall_verdict(table)
    if verdicts == ["supported", "supported"]:
        assert said.startswith("supported: 2 of 2 metrics point that way")
        assert said.endswith("all significant")
    elif "the opposite" in verdicts:
        worse = [name for name, verdict in zip(("std", "worst"), verdicts, strict=True) if verdict == "the opposite"]
        assert said == f"the opposite: significantly worse in {', '.join(worse)}"
    elif "not decided" in verdicts:
        assert said.startswith("not decided: ")
        number = f"{verdicts.count('supported')} significant"
        assert said.endswith("too few to tell" if len(differences) < 3 else number)
    else:
        assert said.startswith("no difference that matters in ")


# by hand


def a_and_b(gain, seeds, of=("a", "b")) -> pd.DataFrame:
    """a is better than b by `gain` in std and worst, in every setting, by a bit more for each seed."""
    rows = [
        {"method": method, "strength": 0.3, "seed": seed, "std": 0.2 - better, "worst": 0.5 + better}
        for method, sign in zip(of, (1, 0), strict=True)
        for seed in range(seeds)
        for better in [sign * gain * (1 + seed / 10)]
    ]
    return pd.DataFrame(rows, columns=["method", "strength", "seed", "std", "worst"])


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (a_and_b(0.01, 3), "supported: 2 of 2 metrics point that way over 3 seeds, all significant"),
        (a_and_b(-0.01, 8), "the opposite: significantly worse in std, worst"),
        (a_and_b(0.01, 2), "not decided: 2 of 2 metrics point that way over 2 seeds, too few to tell"),
        (a_and_b(0.01, 1), "not decided: 2 of 2 metrics point that way over 1 seed, too few to tell"),
        (a_and_b(0.01, 3, ("a", "c")), "not decided: no setting has finished under both a and b"),
        (a_and_b(0.01, 0), "not decided: no setting has finished under both a and b"),
    ],
)
def test_overall_verdicts(frame, says):
    assert overall_verdict(metrics.compare_groups(frame, "a", "b", ["std", "worst"])) == says


def test_a_mixed_result_is_not_decided():
    frame = a_and_b(0.01, 8)
    frame.loc[(frame["method"] == "a") & (frame["seed"] % 2 == 0), "worst"] = 0.4
    table = metrics.compare_groups(frame, "a", "b", ["std", "worst"])
    assert overall_verdict(table) == "not decided: 1 of 2 metrics point that way over 8 seeds, 1 significant"


def test_a_small_difference_that_swings_is_none():
    frame = a_and_b(0.01, 8)
    frame.loc[frame["method"] == "a", "worst"] = 0.5 + 0.001 * np.tile([1, -1], 4)
    table = metrics.compare_groups(frame, "a", "b", ["std", "worst"])
    said = overall_verdict(table)
    assert said.startswith("no difference that matters in worst: ")
    assert said.endswith(" over 8 seeds, significantly better in std"), "the other metric does gain"


def test_compare_groups_takes_only_what_both_have():
    frame = a_and_b(0.01, 3)
    table = metrics.compare_groups(frame.drop(index=0), "a", "b", ["std"])
    assert table.loc["std", "n"] == 2
    assert table.loc["std", "mean_difference"] == pytest.approx(-0.0115)


def test_compare_groups_by_another_column_and_with_names():
    frame = a_and_b(0.01, 6).rename(columns={"method": "look"})
    table = metrics.compare_groups(frame, "a", "b", ["std"], by="look", on=["seed"], names=("one", "other"))
    assert table.loc["std", "verdict"].startswith("one is lower than other (p = ")
    empty = metrics.compare_groups(frame, "x", "b", ["std"], by="look")
    assert set(empty.columns) == set(table.columns)
    assert empty.loc["std", "n"] == 0


# the claims


@fixed
@given(paired_runs(), st.sampled_from([-1, 1]))
def test_claims_say_what_the_rule_says(differences, wanted):
    claims = pytest.importorskip("helpers.claims")
    keys = pd.MultiIndex.from_product([range(len(differences)), (0.3, 0.6, 1.0)[: differences.shape[1]]])
    keys = keys.set_names(["seed", "strength"])
    found = [
        claims.Finding("paper", "a claim", "images", str(i), pd.Series(100 * d.ravel(), index=keys), wanted)
        for i, d in enumerate(differences.transpose(2, 0, 1))
    ]
    table = claims.table(found)
    verdicts, p = expected(100 * differences, np.array([wanted, wanted]), 1.0)
    np.testing.assert_allclose(table["p"], p, atol=1e-9)
    assert table["verdict"].tolist() == verdicts
    assert set(verdicts) <= set(WORDS)
