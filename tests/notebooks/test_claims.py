"""What is called supported: against cases worked by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers import claims
from helpers.claims import (
    FASHION,
    SMALLER,
    Finding,
    against_normal,
    as_markdown,
    by_images,
    growth,
    paired,
    table,
)


def finding(values, wanted=-1, kind="paper", **more) -> Finding:
    return Finding(kind, "a claim", "here", "std", pd.Series(values, dtype=float), wanted, **more)


def test_verdicts():
    clear = -np.linspace(1, 2, 5)
    wide, none = np.array([3.0, -3.1, 2.0, -2.0, 0.3]), np.array([0.1, -0.1, 0.2, -0.2, 0.05])
    found = table([finding(x) for x in (clear, -clear, wide, none, clear[:2], [])])
    assert found["verdict"].tolist() == [
        "supported",
        "the opposite",
        "not decided",
        "no difference",
        "not decided",
        "no runs yet",
    ]
    assert found["n"].tolist() == [5, 5, 5, 5, 2, 0]
    assert found["effect"][0] == pytest.approx(-1.5)
    error = np.std(clear, ddof=1) / np.sqrt(5)
    assert found["low"][0] == pytest.approx(-1.5 - 2.776445 * error)  # t of 4 degrees of freedom, from a table
    assert found["p"][0] == pytest.approx(4 * 2 * scipy.stats.t.sf(1.5 / error, 4)), "times the rows that were tested"


def test_the_seed_is_the_unit():
    """Four crops of three seeds: three numbers, each the mean of its seed."""
    wide = np.array([[-1.0, -3.0, -2.0, -2.0], [-1.2, -3.2, -2.2, -2.2], [-0.8, -2.8, -1.8, -1.8]])
    keys = pd.MultiIndex.from_product([range(3), [0.3, 0.4, 0.6, 1.0]], names=["seed", "strength"])
    row = table([Finding("paper", "a", "here", "std", pd.Series(wide.ravel(), index=keys), -1)]).iloc[0]
    assert (row["n"], row["pairs"]) == (3, 12)
    assert row["p"] == pytest.approx(scipy.stats.ttest_1samp([-2.0, -2.2, -1.8], 0).pvalue)


def test_seeds_added_after_a_look_make_p_count_both_looks():
    (where, looked_at), *_ = claims.LOOKED_AT.items()
    for seeds, looks in ((looked_at, 1), (2 * looked_at, 2)):
        values = -np.linspace(0.5, 2.5, seeds)
        row = table([Finding(where, "a", where, "std", pd.Series(values), -1)]).iloc[0]
        assert row["p"] == pytest.approx(looks * scipy.stats.ttest_1samp(values, 0).pvalue)
    surely_none = table([Finding(where, "a", where, "std", pd.Series(np.resize([0.9, -0.9], 10)), -1)])
    assert scipy.stats.ttest_1samp(np.resize([0.9, -0.9], 10), -1, alternative="greater").pvalue < 0.05
    assert surely_none["verdict"].tolist() == ["no difference"]
    nearly_none = table([Finding(where, "a", where, "std", pd.Series(np.resize([1.4, -1.4], 10)), -1)])
    p_equal = scipy.stats.ttest_1samp(np.resize([1.4, -1.4], 10), -1, alternative="greater").pvalue
    assert p_equal < 0.05 < 2 * p_equal
    assert nearly_none["verdict"].tolist() == ["not decided"], "nor is it called none by a single look's p"


def test_rows_of_one_kind_are_corrected_together():
    clear = -np.linspace(1, 2, 12)
    alone = table([finding(clear)])["p"][0]
    both = table([finding(clear), finding(clear, kind="open"), finding(clear, kind="open")])["p"]
    assert both.tolist() == pytest.approx([alone, 2 * alone, 2 * alone])


def test_a_cost_within_its_margin():
    cost = np.linspace(-0.7, -0.3, 12)
    found = table([finding(cost, +1, margin=1.0), finding(cost, +1), finding(3 * cost, +1, margin=1.0)])
    assert found["verdict"].tolist() == ["supported"] + 2 * ["the opposite"]
    assert found["effect"][0] == pytest.approx(-0.5)
    assert found["low"][0] < -0.5 < found["high"][0] < 0, "the interval is that of the cost itself"


def test_pairs_and_growth_by_hand():
    rows = [
        {"method": method, "strength": strength, "seed": seed, "decile_range": value + 0.01 * seed, "std": value}
        for (method, base), (strength, more), seed in product(
            [("normal", 0.2), ("clam", 0.1)], [(1.0, 0.0), (0.3, 0.3)], [0, 1]
        )
        for value in [base + more * (2 if method == "normal" else 1)]
    ]
    frame = pd.DataFrame(rows)
    assert growth(frame, "normal").tolist() == pytest.approx([60, 60])
    assert growth(frame, "clam").tolist() == pytest.approx([30, 30])
    assert growth(frame[frame["strength"] < 1], "clam").empty, "nothing to compare with"
    assert paired(frame, "clam", "normal", "std").tolist() == pytest.approx([-10, -10, -40, -40])
    lacking = frame.drop(index=frame.index[0])
    assert len(paired(lacking, "clam", "normal", "std")) == 3, "only settings that both have"
    looks = pd.concat([frame.assign(look="epoch"), frame.assign(look="pass", std=frame["std"] - 0.01 * frame["seed"])])
    assert sorted(paired(looks, "pass", "epoch", "std", by="look")) == pytest.approx(4 * [-1] + 4 * [0]), (
        "of one method"
    )


def cells(frame: pd.DataFrame) -> list[list[str]]:
    lines = as_markdown(frame).replace("\N{NO-BREAK SPACE}", " ").splitlines()
    return [line.strip("| ").split(" | ") for line in lines]


def test_as_text():
    clear = -np.linspace(1, 2, 12)
    found = [
        Finding("paper", claim, where, what, pd.Series(values, dtype=float), -1, printed)
        for claim, where, what, values, printed in (
            ("a", "here", "std", clear, -0.5),
            ("a", "there", "std", -clear, None),
            ("a", "here", "COV", [3.0], None),
            ("a", "there", "COV", [], None),
        )
    ]
    header, _, first, second = cells(table(found))
    assert header == ["here", "there"]
    assert [first[0], second[0]] == ["a: *std*", "*COV*"], "a claim is written once"
    assert first[1].startswith("**supported** (12)<br>−1.5 [−1.")
    assert first[1].endswith("<br>p < 0.001, paper −0.5")
    assert first[2].startswith("**the opposite** (12)<br>+1.5 [+1.")
    assert second[1:] == ["**not decided** (1)<br>+3.0", "no runs yet"], "one value has no interval and no test"
    edge = table([finding([-1.0, -1.1, -0.9])]).assign(p=0.0503)
    assert "p 0.0503" in cells(edge)[-1][1], "more digits where three would not tell"


def test_an_effect_reads_the_same_from_sums_and_from_float32():
    assert {claims.signed(value) for value in (0.25, 0.2500004, 0.2499996)} == {"+0.2"}
    assert {claims.signed(value) for value in (-11.35, -11.350002)} == {"−11.3"}
    assert claims.signed(-0.00000001) == "+0.0"


def test_open_questions_as_text():
    clear = -np.linspace(1, 2, 12)
    asked = table([finding(values, kind="open") for values in (clear, -clear)]).assign(where=["here", "there"])
    _, better, worse = cells(asked)[-1]
    assert better.startswith("**better** (12)<br>−1.5")
    assert worse.startswith("**worse** (12)<br>+1.5")


def test_tenths_and_the_smaller_step(memory_run):
    def fake_run(method, accuracy, tau=1.0):
        return memory_run(accuracy, method=method, tau=tau, crop_lower_bound=0.3)

    normal, clam = np.linspace(0.2, 0.99, 20), np.linspace(0.5, 0.88, 20)
    crop = [fake_run("normal", normal[::-1]), fake_run("clam", clam)]
    steps = [fake_run("clam", clam), fake_run("clam", normal, tau=0.1), fake_run("clam_kl", clam, tau=0.1)]
    images = by_images(lambda grid: {"mini_crop": crop, "mini_tau": steps}.get(grid, []))
    here = images[FASHION].set_index("method")
    assert list(here.index) == ["normal", "clam", SMALLER]
    assert here.loc["normal", 1] == pytest.approx(normal[:2].mean()), "two of twenty classes are the worst tenth"
    assert here.loc["clam", 10] == pytest.approx(clam[-2:].mean())
    found = against_normal(images, claims.TENTHS)
    assert found[FASHION]["clam"].loc[1, "mean_difference"] == pytest.approx(clam[:2].mean() - normal[:2].mean())
    assert list(against_normal(images, ["std"], ["clam"])[FASHION]) == ["clam"]
    assert found["CIFAR-10"] == {}


def test_regimes(memory_run):
    def runs_of(grid):
        if grid != "small_embedded":
            return []
        low, high = np.array([0.3, 0.9, 0.9]), np.array([0.6, 0.8, 0.8])
        made = []
        for seed in range(3):
            shift = 0.01 * seed
            settings = {"holdout": 9, "seed": seed, "crop_lower_bound": 0.3}
            made.append(memory_run(low + shift, held_out=low + shift, method="normal", **settings))
            made.append(memory_run(low + shift, method="normal", **settings | {"crop_lower_bound": 0.6}))
            made.append(memory_run(high + shift**1.5, method="clam", **settings))
            made.append(memory_run(high, method="clam_kl", tau=0.1, **settings))
        return made

    regimes = claims.by_regime(claims.runs_by_regime(runs_of))
    (where,) = regimes
    controls = ["normal+biases", "normal+tail_biases"]
    assert sorted(regimes[where]["method"].unique()) == ["clam", "clam_kl, τ = 0.1", "normal", *controls]
    assert set(regimes[where]["strength"]) == {0.3}, "the crops that CLAM has runs at"
    found = table(list(claims.of_regimes(regimes))).set_index(["claim", "what"])
    lifts = found.loc[("CLAM lifts the worst tenth of the classes above that of Normal", "worst")]
    assert lifts["effect"] == pytest.approx(100 * np.mean([0.3, 0.291, 0.28282842712]), abs=0.1)
    assert lifts["verdict"] == "supported"
    assert set(found["where"]) == {where}
    beside = [claim for claim, _ in found.index if "Normal with biases" in claim]
    assert len(beside) == 3, "CLAM; with KL only another step has run"
    tail = [(claim, row.n) for (claim, _), row in found.iterrows() if claim.endswith(" CLAM")]
    assert [n for _, n in tail] == [3, 3]
    assert all(claim.startswith("Normal with class biases for the worst tenth ") for claim, _ in tail)


@pytest.mark.slow
def test_without_any_runs():
    found = claims.findings(lambda grid: [])
    assert set(found["verdict"]) == {"no runs yet"}
    assert "no runs yet" in as_markdown(found[found["kind"] == "paper"])
    assert claims.by_regime(claims.runs_by_regime(lambda grid: [])) == {}
