"""The bench runs and says what it found; what the times are is not for a test."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import bench
import loading
import measure
import surroundings
from clamkit import paths


@pytest.mark.slow
def test_quick_bench_prints_a_table_and_writes_json_and_figure(tmp_path, monkeypatch, capsys, root):
    monkeypatch.setenv("COLUMNS", "120")
    committed = [root / "figures" / "bench.png", root / "data" / "results" / "bench.json"]
    before = [path.read_bytes() for path in committed]
    bench.main(["--quick", "--json", str(tmp_path / "bench.json")])
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert {"processor", "cores", "load", "torch"} <= set(report["machine"])
    for row in report["rows"]:
        assert 0 < row["low"] <= row["value"] <= row["high"] < math.inf
        assert row["what"][:25] in printed, "narrow terminals wrap"
        if row["goal"] is not None:
            assert row["met"] == (row["value"] >= row["goal"] if row["sign"] == "≥" else row["value"] <= row["goal"])
    verdicts = [row["met"] for row in report["rows"] if row["goal"] is not None]
    assert len(verdicts) >= 22
    assert len(re.findall(r" met │", printed)) == len(verdicts)
    assert printed.count("not met") == verdicts.count(False)
    goals = {row["what"]: row["goal"] for row in report["rows"]}
    for what in ("clamkit --help", "clamkit --version", "clamkit status"):
        assert goals[f"{what}, s of CPU"] == 0.5
    assert (goals["import clamkit, s of CPU"], goals["from clamkit import fairness, s of CPU"]) == (0.1, 0.6)
    assert {name: len(points) for name, points in report["growth"].items()} == {
        "classes": len(surroundings.CLASSES),
        "images": 2,
        "resolution": 2,
    }
    assert report["projection"]["runs"] == 496
    assert sum(report["projection"]["days"].values()) == pytest.approx(report["projection"]["total_days"])
    assert (paths.figures() / "bench_quick.png").stat().st_size > 10_000
    assert [path.read_bytes() for path in committed] == before


def test_the_committed_measurements_have_the_layout_and_the_figure_shows_them(root):
    report = json.loads((root / "data" / "results" / "bench.json").read_text(encoding="utf-8"))
    assert set(report) == {"machine", "quick", "rows", "growth", "seconds", "projection"}
    assert report["quick"] is False
    drawn = bench.figure(report)
    left, middle, right = drawn.axes
    assert [axis.get_xlabel() for axis in drawn.axes] == ["classes", "training images, 32 px", "side, pixels"]
    assert [line.get_label() for line in left.lines] == ["Euclidean", "KL", "n log n"]
    for axis, key, x in ((middle, "images", "images"), (right, "resolution", "side")):
        for line, name in zip(axis.lines, ("engine", "limit"), strict=True):
            assert line.get_xydata().tolist() == [[point[x], point[name]] for point in report["growth"][key]]
    for line, name in zip(left.lines, ("euclidean", "kl"), strict=False):
        assert line.get_xydata().tolist() == [[point["classes"], point[name]] for point in report["growth"]["classes"]]


def test_reading_files_is_measured_beside_torchvision_where_there_are_photographs(tmp_path):
    assert list(loading.loading(True, None)) == []
    assert list(loading.loading(True, tmp_path)) == []
    for i in range(3):
        Image.effect_noise((300, 280 + i), 60).save(tmp_path / f"{i}.JPEG")
    rate, ours, copy = loading.loading(True, tmp_path)
    assert rate["value"] > 0
    assert (ours["goal"], copy["goal"]) == (1.4, 3.5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.JPEG", "1.JPEG", "2.JPEG"]


def test_jobs_take_turns_and_warm_up_first():
    done = []
    times = measure.interleaved(2, a=lambda: done.append("a"), b=lambda: done.append("b"))
    assert done == list("ababab")
    assert times.shape == (2, 2)


def test_a_row_has_median_quartiles_and_verdict():
    assert measure.row("x", [4, 1, 2, 3, 5], "≤", 3) == {
        "what": "x", "value": 3, "low": 2, "high": 4, "sign": "≤", "goal": 3, "met": True,
    }  # fmt: skip
    assert measure.row("x", 2.5, "≥", 3)["met"] is False
    assert measure.row("x", 2.5)["met"] is None


def test_cpu_time_counts_work_and_not_waiting():
    working = "import time\nwhile time.process_time() < 0.2: pass"
    waiting = "import time; time.sleep(0.3)"
    assert all(value >= 0.2 for value in measure.cpu_seconds(1, ["-c", working]))
    assert all(0 < value < 0.2 for value in measure.cpu_seconds(1, ["-S", "-c", waiting]))
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        measure.cpu_seconds(1, ["-c", "raise SystemExit(3)"])


def test_growth_is_measured_against_n_log_n():
    n = np.array(surroundings.CLASSES)
    grown = [{"classes": int(k), "euclidean": 1e-6 * k * np.log(k), "kl": 1e-9 * k**2} for k in n]
    euclidean, kl, step = surroundings.weight_step(grown)
    assert euclidean["value"] == pytest.approx(1)
    assert kl["value"] > 1.5
    assert kl["met"] is False
    assert step["value"] == pytest.approx(1e-6 * 8142 * np.log(8142))


@pytest.mark.slow
def test_it_is_a_script(root):
    script = str(root / "benchmarks" / "bench.py")
    result = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in result.stdout
    assert "--json FILE" in result.stdout
