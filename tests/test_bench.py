"""The bench runs and says what it found; what the times are is not for a test."""

import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from clamkit import bench, paths
from clamkit.cli import app


def test_quick_bench_prints_a_table_and_writes_json_and_figure(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = CliRunner().invoke(app, ["bench", "--quick", "--json", str(tmp_path / "bench.json")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert {"processor", "cores", "load", "torch"} <= set(report["machine"])
    for row in report["rows"]:
        assert 0 < row["low"] <= row["value"] <= row["high"] < math.inf
        assert row["what"][:25] in result.output, "narrow terminals wrap"
        if row["goal"] is not None:
            assert row["met"] == (row["value"] >= row["goal"] if row["sign"] == "≥" else row["value"] <= row["goal"])
    verdicts = [row["met"] for row in report["rows"] if row["goal"] is not None]
    assert len(verdicts) >= 12
    assert len(re.findall(r" met │", result.output)) == len(verdicts)
    assert result.output.count("not met") == verdicts.count(False)
    assert {name: len(points) for name, points in report["growth"].items()} == {
        "classes": len(bench.CLASSES),
        "images": 2,
        "resolution": 2,
    }
    assert report["projection"]["runs"] == 496
    assert sum(report["projection"]["days"].values()) == pytest.approx(report["projection"]["total_days"])
    assert (paths.figures() / "bench_quick.png").stat().st_size > 10_000


def test_jobs_take_turns_and_warm_up_first():
    done = []
    times = bench.interleaved(2, a=lambda: done.append("a"), b=lambda: done.append("b"))
    assert done == list("ababab")
    assert times.shape == (2, 2)


def test_flops_of_resnet50_are_the_published_ones():
    """4.09 G multiply-adds forward (He et al. give 3.8 for the first version); backward takes twice as much."""
    both, forward = bench.flops()
    assert forward == pytest.approx(2 * 4.09e9, rel=0.01)
    assert both == pytest.approx(3 * forward, rel=0.02)


def test_growth_is_measured_against_n_log_n():
    n = np.array(bench.CLASSES)
    grown = [{"classes": int(k), "euclidean": 1e-6 * k * np.log(k), "kl": 1e-9 * k**2} for k in n]
    euclidean, kl, step = bench.weight_step(grown)
    assert euclidean["value"] == pytest.approx(1)
    assert kl["value"] > 1.5
    assert kl["met"] is False
    assert step["value"] == pytest.approx(1e-6 * 8142 * np.log(8142))
