"""Tables of runs: means, spreads and marks worked by hand."""

import numpy as np
import pandas as pd

from clamkit.lab import tables


def test_comparison_marks_what_is_better():
    rows = [
        {"strength": 0.3, "method": "normal", "average": 0.9, "std": 0.2, "worst": 0.5},
        {"strength": 0.3, "method": "clam", "average": 0.89, "std": 0.1, "worst": 0.6},
    ]
    frame = pd.DataFrame(rows).assign(cov=0.1, range=0.4, decile_range=0.4, seed=0, augmentation="crop")
    table = tables.comparison(frame)
    assert table["std %"].tolist() == ["20.0 ", "10.0*"]
    assert table["average %"].tolist() == ["90.0 ", "89.0 "]
    assert table["worst 10 %"].tolist() == ["50.0 ", "60.0*"]
    assert table["range %"].tolist() == ["40.0 ", "40.0 "], "equal is not better"


def test_means_and_spreads():
    rows = pd.DataFrame({"method": ["normal", "normal"], "average": [0.9, 0.8], "std": 0.1, "cov": 0.2, "range": 0.3})
    table = tables.spread_table(rows.assign(decile_range=0.3, worst=0.5))
    assert table.loc["Normal", "average %"] == "85.0 ± 7.1"


def test_epochs_and_final_classes(memory_run):
    accuracy, weight = np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([[1.0, 1.0], [1.5, 0.5]])
    runs = [memory_run(accuracy, weight, method=m, crop_lower_bound=0.5, seed=3) for m in ("normal", "clam")]
    every = tables.all_epochs(runs)
    assert every.columns[:5].tolist() == ["method", "strength", "seed", "epoch", "class"]
    assert every["test_accuracy"].tolist() == [0.1, 0.2, 0.3, 0.4] * 2
    assert every[["strength", "seed"]].drop_duplicates().to_numpy().tolist() == [[0.5, 3]]
    final = tables.final_classes(runs)
    assert final["method"].tolist() == ["normal", "normal", "clam", "clam"]
    assert final["class_name"].tolist() == ["class 0", "class 1"] * 2
    assert final["test_accuracy"].tolist() == [0.3, 0.4] * 2
    assert final["weight"].tolist() == [1.5, 0.5] * 2
    assert tables.all_epochs([]).empty
    assert list(tables.final_classes([]).columns) == [
        "method",
        "strength",
        "seed",
        "epoch",
        "class",
        "class_name",
        *every.columns[5:],
    ]


def test_only_settings_that_every_method_has(memory_run):
    had = [("normal", 0), ("clam", 0), ("normal", 1), ("clam", 2)]
    runs = [memory_run([0.5, 0.6], method=method, seed=seed) for method, seed in had]
    kept = tables.common_settings(runs)
    assert [(run.config.method, run.config.seed) for run in kept] == had[:2]
    assert tables.common_settings([]) == []
