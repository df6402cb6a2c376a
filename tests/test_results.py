"""Results that travel without their runs."""

import numpy as np
import pandas as pd
import pytest

from clamkit import paths, results
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.runs import Run, RunStore, all_epochs, as_frame, final_classes
from clamkit.sweep import Grid, plan, sweep
from clamkit.train import train

NOTEBOOK = "10_train_fashion_mnist"


@pytest.fixture
def grid(small_npz, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "embedded", lambda: tmp_path / "data")
    return Grid("small", NOTEBOOK, {"seed": [0, 1]}, {"dataset": str(small_npz), "epochs": 2})


def test_rows_and_histories_are_what_the_runs_say(grid):
    runs = [train(config) for config in grid.configs()]
    assert len(results.save("small", runs[:1])) == 1
    rows = results.save("small", runs)
    assert len(rows) == 2, "a run that is there is replaced, not doubled"
    assert rows["run"].tolist() == sorted(results.key(run) for run in runs)
    by_run = rows.set_index("run")
    for run in runs:
        row = by_run.loc[results.key(run)]
        assert row["std"] == pytest.approx(run.summary["std"])
        assert row["torch_version"] == run.summary["versions"]["torch"]
        history = results.histories_of("small").query("run == @results.key(@run)").reset_index(drop=True)
        assert np.allclose(history["weight"], run.history["weight"], atol=1e-6)
    fields = {name: None if pd.isna(value) else value for name, value in by_run.iloc[0].items()}
    assert (
        RunConfig(**{k: v for k, v in fields.items() if k in RunConfig.model_fields}).folder().as_posix()
        == by_run.index[0]
    )


def test_a_committed_run_is_not_run_again(grid, tmp_path):
    runs = [train(config) for config in grid.configs()]
    results.save("small", runs)
    elsewhere = tmp_path / "elsewhere"
    finished, failed = sweep(grid, runs=elsewhere, progress=False)
    assert (finished, failed) == ([], {})
    planned = plan(grid, elsewhere)
    assert planned["state"].tolist() == ["committed", "committed"]
    assert planned["seconds"].tolist() == pytest.approx([run.summary["seconds"] for run in runs]), (
        "what they took is known too"
    )
    finished, _ = sweep(grid, runs=elsewhere, rerun=True, progress=False)
    assert len(finished) == 2


def test_committed_runs_read_like_runs(grid, tmp_path):
    runs = [train(config) for config in grid.configs()]
    results.save("small", runs)
    elsewhere = RunStore(tmp_path / "elsewhere")
    recorded = results.runs_of("small", grid.configs(), elsewhere)
    assert [type(run) for run in recorded] == [results.Recorded] * 2
    shared = results.runs_of("another", grid.configs()[1:], elsewhere)
    assert [results.key(run) for run in shared] == [results.key(runs[1])], "whichever grid it was committed for"
    for run, known in zip(recorded, runs, strict=True):
        assert run.config.folder() == known.config.folder()
        assert run.test_accuracy.to_numpy() == pytest.approx(known.test_accuracy.to_numpy(), abs=1e-6)
        assert run.summary["std"] == pytest.approx(known.summary["std"])
    assert all_epochs(recorded)["weight"].to_numpy() == pytest.approx(all_epochs(runs)["weight"].to_numpy(), abs=1e-6)
    classes = final_classes(recorded)
    assert len(classes) == 2 * 3
    assert as_frame(recorded)["average"].to_numpy() == pytest.approx(as_frame(runs)["average"].to_numpy())
    train(grid.configs()[0], runs=elsewhere.root)
    assert type(results.runs_of("small", grid.configs(), elsewhere)[0]) is Run, "what is finished here comes first"


def test_damaged_results_are_named(grid):
    results.save("small", [train(grid.configs()[0])])
    (results.folder() / "small.parquet").write_bytes(b"PAR1")
    with pytest.raises(ClamkitError, match="small.parquet is damaged"):
        results.histories_of("small")
    assert results.rows_of("other").empty
