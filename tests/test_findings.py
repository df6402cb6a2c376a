"""What is called supported: against cases worked by hand."""

from base64 import b64decode
from functools import partial
from itertools import product
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from clamkit import findings, results
from clamkit.findings import Finding, answers, growth, paired, shown, table
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
    edge = table([finding([-1.0])]).assign(p=0.0503)
    assert shown(edge)["p"].tolist() == ["0.0503"], "more digits where three would not tell"


def test_open_questions_as_text():
    clear = -np.linspace(1, 2, 12)
    asked = [
        Finding("open", question, where, metric, pd.Series(values, dtype=float), -1)
        for question, where, values in (("a", "here", clear), ("a", "there", -clear), ("b", "here", []))
        for metric in ("std", "average")
    ]
    text = answers(table(asked))
    assert text.columns.tolist() == ["question", "where", "pairs or runs", "std", "average"]
    assert text["pairs or runs"].tolist() == ["12", "12", "0"]
    assert text["std"][0].startswith("−1.5 [−1.")
    assert text["std"][0].endswith(": better")
    assert text["average"][1].endswith(": worse")
    assert text["average"][2] == "no runs yet"


def committed(tmp_path: Path, grid: str) -> list:
    return results.runs_of(grid, Grid.load(grid).configs(), RunStore(tmp_path))


def test_the_readme_says_what_the_committed_results_say(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name, text in findings.in_readme(partial(committed, tmp_path)).items():
        assert f"<!-- {name} -->\n\n{text}\n\n<!-- -->" in readme, "python notebooks/refresh.py 05_what_we_found"


def test_the_readmes_figures_are_those_of_the_notebook():
    root = Path(__file__).parents[1]
    notebook = nbformat.read(root / "notebooks" / "05_what_we_found.ipynb", 4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(shown) == 3
    for number, picture in enumerate(shown, 1):
        name = f"figures/05_what_we_found-{number}.png"
        assert name in (root / "README.md").read_text(encoding="utf-8")
        assert (root / name).read_bytes() == b64decode(picture), "python notebooks/refresh.py 05_what_we_found"
