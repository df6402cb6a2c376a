"""The one rule for verdicts against a table worked by hand; what applies it agrees with it."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from clamkit import metrics

fixed = settings(derandomize=True, deadline=None, max_examples=15)
WORDS = ("supported", "the opposite", "not supported", "not decidable")


@pytest.mark.parametrize(
    ("toward", "p", "smallest_p", "interval_toward", "verdict"),
    [
        (True, 0.01, 2 / 2**8, True, "supported"),
        (True, 0.01, 2 / 2**8, False, "supported"),  # the test decides, whatever the interval
        (True, 0.05, 2 / 2**8, True, "supported"),  # the level itself passes
        (False, 0.01, 2 / 2**8, False, "the opposite"),
        (False, 0.05, 2 / 2**8, False, "the opposite"),
        (True, 0.0501, 2 / 2**8, False, "not supported"),
        (False, 0.3, 2 / 2**8, False, "not supported"),
        (True, 1.0, 0.05, False, "not supported"),  # so many pairs could just have passed
        (True, 0.0501, 2 / 2**8, True, "not decidable"),  # the interval says yes, the test does not
        (True, 2 / 2**5, 2 / 2**5, False, "not decidable"),  # all of 5 pairs point that way: 2/2⁵ > 0.05
        (False, 2 / 2**5, 2 / 2**5, False, "not decidable"),
        (True, 2.0, 2.0, False, "not decidable"),
    ],
)
def test_decide_by_hand(toward, p, smallest_p, interval_toward, verdict):
    assert metrics.decide(toward, p, smallest_p, interval_toward=interval_toward) == verdict


def test_decide_at_another_level():
    assert metrics.LEVEL == 0.05
    assert metrics.decide(True, 0.08, 0.01, level=0.1) == "supported"
    assert metrics.decide(True, 0.03, 0.01, level=0.01) == "not supported"
    assert metrics.decide(True, 0.03, 0.02, level=0.01) == "not decidable"


@pytest.mark.parametrize("pairs", range(1, 9))
def test_smallest_p_is_the_least_of_all_outcomes(pairs):
    sizes = np.arange(1, pairs + 1)
    least = min(scipy.stats.wilcoxon(sizes * signs).pvalue for signs in itertools.product((1, -1), repeat=pairs))
    assert metrics.smallest_p(pairs) == pytest.approx(least)
    assert metrics.smallest_p(pairs, 3) == pytest.approx(3 * least)


# who applies it


def expected(differences: np.ndarray, better: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Verdict on "the differences have the sign `better`", p and the smallest p there could be, column by column.

    p by scipy, Holm's correction by its definition, the direction by the sum of the signed ranks.
    """
    moved = [d[d != 0] for d in differences.T]
    p = np.array([scipy.stats.wilcoxon(d).pvalue if d.size else 1.0 for d in moved])
    order, k = np.argsort(p, kind="stable"), len(p)
    corrected = np.empty(k)
    for place, i in enumerate(order):
        corrected[i] = min(1, max(p[order[j]] * (k - j) for j in range(place + 1)))
    first = k * 2.0 ** (1 - max(d.size for d in moved))
    least = np.array([max(first, 2.0 ** (1 - d.size)) for d in moved])
    signed = [float(np.sum(np.sign(d) * scipy.stats.rankdata(np.abs(d)))) for d in moved]
    verdicts = []
    for i in range(k):
        if corrected[i] <= 0.05:
            verdicts.append("supported" if signed[i] * better[i] > 0 else "the opposite")
        else:
            verdicts.append("not decidable" if least[i] > 0.05 else "not supported")
    return verdicts, corrected, least


@st.composite
def paired_runs(draw):
    """Differences of two metrics in some pairs, in thousandths: of many sizes, mostly one-sided, no two tied."""
    pairs, sign = draw(st.integers(1, 12)), draw(st.sampled_from([-1, 1]))
    columns = []
    for _ in range(2):
        sizes = draw(st.permutations(range(1, pairs + 1)))
        against = draw(st.lists(st.sampled_from([1, 1, 1, -1]), min_size=pairs, max_size=pairs))
        zero = draw(st.integers(0, pairs))  # pairs that do not differ
        columns.append([sign * a * d * (i >= zero // 4) for i, (d, a) in enumerate(zip(sizes, against, strict=True))])
    differences = np.array(columns, dtype=float) / 1000
    if draw(st.booleans()):  # one far outlier keeps its rank, and can turn the mean against all the others
        differences[0, np.abs(differences[0]).argmax()] *= 30
    return differences.T


def as_runs(differences: np.ndarray) -> pd.DataFrame:
    rows = []
    for seed, (std, worst) in enumerate(differences):
        rows.append({"method": "a", "strength": 0.3, "seed": seed, "std": 0.5 + std, "worst": 0.5 + worst})
        rows.append({"method": "b", "strength": 0.3, "seed": seed, "std": 0.5, "worst": 0.5})
    return pd.DataFrame(rows, columns=["method", "strength", "seed", "std", "worst"])


@fixed
@given(paired_runs())
def test_compare_says_what_the_rule_says(differences):
    table = metrics.compare_groups(as_runs(differences), "a", "b", ["std", "worst"])
    verdicts, p, least = expected(differences, np.array([1, 1]))
    np.testing.assert_allclose(table["p_holm"], p)
    np.testing.assert_allclose(table["smallest_p"], least)
    assert (table["p_holm"] >= np.minimum(1, table["smallest_p"]) - 1e-12).all()
    opening = {
        "supported": "a is higher than b (p = ",
        "the opposite": "a is lower than b (p = ",
        "not supported": "no difference shown (p = ",
        "not decidable": "not decidable: with ",
    }
    for column, verdict, said in zip(differences.T, verdicts, table["verdict"], strict=True):
        assert said.startswith(opening[verdict] if column.any() else "a and b are equal in every pair")


@fixed
@given(paired_runs())
def test_the_overall_verdict_says_what_the_rule_says(differences):
    table = metrics.compare_groups(as_runs(differences), "a", "b", ["std", "worst"])
    verdicts, _, _ = expected(differences, np.array([-1, 1]))  # a lower std and a higher worst are better
    said = metrics.overall_verdict(table)
    assert said.split(":")[0] in WORDS
    if verdicts == ["supported", "supported"]:
        assert said.startswith("supported: 2 of 2 metrics point that way")
        assert said.endswith("all significant")
    elif "the opposite" in verdicts:
        worse = [name for name, verdict in zip(("std", "worst"), verdicts, strict=True) if verdict == "the opposite"]
        assert said == f"the opposite: significantly worse in {', '.join(worse)}"
    elif "not decidable" in verdicts:
        assert said.startswith("not decidable: ")
        assert said.endswith("too few to tell")
    else:
        assert said.startswith("not supported: ")
        assert said.endswith(f"{verdicts.count('supported')} significant")


# by hand


def a_and_b(gain, seeds, of=("a", "b")) -> pd.DataFrame:
    """a is better than b by `gain` in std and worst, in every setting, by a bit more for each seed."""
    rows = [
        {"method": method, "strength": 0.3, "seed": seed, "std": 0.2 - better, "worst": 0.5 + better}
        for method, sign in zip(of, (1, 0), strict=True)
        for seed in range(seeds)
        for better in [sign * gain * (1 + seed)]
    ]
    return pd.DataFrame(rows, columns=["method", "strength", "seed", "std", "worst"])


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (a_and_b(0.01, 8), "supported: 2 of 2 metrics point that way over 8 pairs, all significant"),
        (a_and_b(-0.01, 8), "the opposite: significantly worse in std, worst"),
        (a_and_b(0.01, 3), "not decidable: 2 of 2 metrics point that way over 3 pairs, too few to tell"),
        (a_and_b(0.01, 1), "not decidable: 2 of 2 metrics point that way over 1 pair, too few to tell"),
        (a_and_b(0.01, 3, ("a", "c")), "not decidable: no setting has finished under both a and b"),
        (a_and_b(0.01, 0), "not decidable: no setting has finished under both a and b"),
    ],
)
def test_overall_verdicts(frame, says):
    assert metrics.overall_verdict(metrics.compare_groups(frame, "a", "b", ["std", "worst"])) == says


def test_a_mixed_result_is_not_supported():
    frame = a_and_b(0.01, 8)
    frame.loc[(frame["method"] == "a") & (frame["seed"] % 2 == 0), "worst"] = 0.4
    table = metrics.compare_groups(frame, "a", "b", ["std", "worst"])
    assert metrics.overall_verdict(table) == "not supported: 1 of 2 metrics point that way over 8 pairs, 1 significant"


def test_compare_groups_takes_only_what_both_have():
    frame = a_and_b(0.01, 3)
    table = metrics.compare_groups(frame.drop(index=0), "a", "b", ["std"])
    assert table.loc["std", "n"] == 2
    assert table.loc["std", "mean_difference"] == pytest.approx(-0.025)


def test_compare_groups_by_another_column_and_with_names():
    frame = a_and_b(0.01, 6).rename(columns={"method": "look"})
    table = metrics.compare_groups(frame, "a", "b", ["std"], by="look", on=["seed"], names=("one", "other"))
    assert table.loc["std", "verdict"] == "one is lower than other (p = 0.031)"
    empty = metrics.compare_groups(frame, "x", "b", ["std"], by="look")
    assert list(empty.columns) == list(table.columns)
    assert empty.loc["std", "n"] == 0


def test_the_direction_is_that_of_the_test_not_of_one_outlier():
    differences = np.append(np.arange(1, 13), -200.0) / 1000  # 12 of 13 pairs up; the mean is below 0
    table = metrics.compare_groups(as_runs(np.column_stack([-differences, differences])), "a", "b", ["worst"])
    assert table.loc["worst", "mean_difference"] < 0 < table.loc["worst", "effect"]
    assert table.loc["worst", "p_holm"] <= 0.05
    assert table.loc["worst", "verdict"].startswith("a is higher than b")
    assert metrics.overall_verdict(table).startswith("supported: 1 of 1 metrics")


# the claims


@fixed
@given(paired_runs(), st.sampled_from([-1, 1]))
def test_claims_say_what_the_rule_says(differences, wanted):
    claims = pytest.importorskip("helpers.claims")
    found = [
        claims.Finding("paper", "a claim", "images", str(i), pd.Series(d), wanted) for i, d in enumerate(differences.T)
    ]
    table = claims.table(found)
    _, p, _ = expected(differences, np.array([wanted, wanted]))
    np.testing.assert_allclose(table["p"], p)
    for column, row in zip(differences.T, table.itertuples(), strict=True):
        moved = column[column != 0]
        signed = np.sign(moved) @ scipy.stats.rankdata(np.abs(moved))
        least = 2 * 2.0 ** (1 - len(column))  # two claims
        interval = min(wanted * row.low, wanted * row.high) > 0
        assert row.verdict == metrics.decide(signed * wanted > 0, row.p, least, interval_toward=interval)
        assert row.verdict in WORDS
