"""What is called supported: against cases worked by hand."""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clamkit import findings, results
from clamkit.findings import Finding, growth, paired, shown, table
from clamkit.runs import RunStore
from clamkit.sweep import Grid


def finding(values, wanted=-1, kind="paper", **more) -> Finding:
    return Finding(kind, "a claim", "here", "std", pd.Series(values, dtype=float), wanted, **more)


def test_verdicts():
    clear = -np.linspace(1, 2, 12)
    mixed = np.tile([1.0, -1.1], 6)
    leaning = np.r_[-np.linspace(1, 2, 9), 1.2, 1.3, 1.4]
    found = table([finding(x) for x in (clear, -clear, mixed, clear[:5], [], leaning)])
    assert found["verdict"].tolist() == [
        "supported",
        "not supported: the opposite",
        "not supported",
        "not decidable at this scale",
        "not decidable yet: no runs",
        "not decidable at this scale",
    ]
    assert found["n"].tolist() == [12, 12, 12, 5, 0, 12]
    assert found["effect"][0] == pytest.approx(-1.5)
    assert found["low"][0] < -1.5 < found["high"][0] < 0
    # 12 differences of one sign: p = 2/2¹², times the five rows that have any
    assert found["p"][0] == pytest.approx(5 * 2**-11)


def test_rows_of_one_kind_are_corrected_together():
    clear = -np.linspace(1, 2, 12)
    alone = table([finding(clear)])["p"][0]
    both = table([finding(clear), finding(clear, kind="open"), finding(clear, kind="open")])["p"]
    assert both.tolist() == pytest.approx([alone, 2 * alone, 2 * alone])


def test_a_cost_within_its_margin():
    cost = np.linspace(-0.7, -0.3, 12)
    found = table([finding(cost, +1, margin=1.0), finding(cost, +1), finding(3 * cost, +1, margin=1.0)])
    assert found["verdict"].tolist() == ["supported"] + 2 * ["not supported: the opposite"]
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


def test_as_text():
    text = shown(table([finding(-np.linspace(1, 2, 12), printed=-0.5), finding([]), finding([3.0])]))
    assert text["ours [95 %]"][0].startswith("−1.5 [−1.")
    assert text["ours [95 %]"][1:].tolist() == ["", "+3.0"], "one value has no interval"
    assert text["paper"].tolist() == ["−0.5", "", ""]
    assert text["p"].tolist() == ["< 0.001", "", "1.000"]


def committed(tmp_path: Path, grid: str) -> list:
    return results.runs_of(grid, Grid.load(grid).configs(), RunStore(tmp_path))


def test_the_readme_says_what_the_committed_results_say(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name, text in findings.in_readme(partial(committed, tmp_path)).items():
        assert f"<!-- {name} -->\n\n{text}\n\n<!-- -->" in readme, "python notebooks/refresh.py 05_what_we_found"


def test_gains_over_the_settings_that_all_methods_have(tmp_path):
    rows = pd.read_csv(results.folder() / "mini_crop.csv")
    wide = rows.pivot(index=["crop_lower_bound", "seed"], columns="method", values="worst").dropna()
    gained = findings.gains(committed(tmp_path, "mini_crop"))
    assert gained.loc["TCE", "worst 10 %"] == pytest.approx(100 * (wide["tce"] - wide["normal"]).mean())
    assert len(gained) == rows["method"].nunique() - 1
