"""Results that travel without their runs."""

import sys

import numpy as np
import pandas as pd
import pytest

from clamkit import RunConfig, RunStore, cli, paths, train
from clamkit.engine.store import RunFolder, as_frame
from clamkit.errors import ClamkitError
from clamkit.lab import results
from clamkit.lab.controls import held_out_accuracy, with_biases
from clamkit.lab.grids import Grid
from clamkit.lab.runner import plan, sweep
from clamkit.lab.tables import all_epochs, final_classes

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
    assert rows["run"].tolist() == sorted(run.name for run in runs)
    by_run = rows.set_index("run")
    for run in runs:
        row = by_run.loc[run.name]
        assert row["std"] == pytest.approx(run.summary["std"])
        assert row["torch_version"] == run.summary["versions"]["torch"]
        history = results.histories_of("small").query("run == @run.name").reset_index(drop=True)
        assert np.allclose(history["weight"], run.history["weight"], atol=1e-6)
    fields = {name: None if pd.isna(value) else value for name, value in by_run.iloc[0].items()}
    assert (
        RunConfig(**{k: v for k, v in fields.items() if k in RunConfig.model_fields}).folder().as_posix()
        == by_run.index[0]
    )


def test_class_accuracies_with_biases_travel_too(grid):
    configs = [config.model_copy(update={"holdout": 5}) for config in grid.configs()]
    runs = [train(configs[0]), train(grid.configs()[1])]
    results.save("small", runs)
    committed = {run.name: run for run in results.committed_runs("small")}
    own, other = (committed[run.name] for run in runs)
    for objective in results.BIASED:
        biased = with_biases(own, objective)
        assert biased.test_accuracy.tolist() == pytest.approx(with_biases(runs[0], objective).test_accuracy.tolist())
        assert biased.config.method == with_biases(runs[0], objective).config.method
    assert biased.summary["std"] == pytest.approx(np.std(biased.test_accuracy, ddof=1))
    assert not {"biased_accuracy", "tail_biased_accuracy", "held_out_accuracy"} & {*own.history}
    own._history = own._history.drop(columns="tail_biased_accuracy")  # as it was committed before
    assert [*own.biased_accuracy] == ["average-std"]
    with pytest.raises(ClamkitError, match="committed results carry no logits"):
        with_biases(own, "worst-tail")
    logits = runs[0].logits
    right = logits.holdout.argmax(1) == logits.holdout_labels
    by_class = [right[logits.holdout_labels == label].mean() for label in range(3)]
    assert held_out_accuracy(own) == pytest.approx(by_class), "what settings are chosen by"
    with pytest.raises(ClamkitError, match="only its class accuracies are at hand"):
        biased.predictions  # noqa: B018
    with pytest.raises(ClamkitError, match="committed results carry no logits"):
        own.logits  # noqa: B018
    with pytest.raises(ClamkitError, match="has no held-out images"):
        with_biases(other)
    with pytest.raises(ClamkitError, match="committed results carry no logits"):
        held_out_accuracy(other)


@pytest.mark.slow
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


def test_a_damaged_run_is_run_again_though_its_results_are_committed(grid):
    runs = [train(config) for config in grid.configs()]
    results.save("small", runs)
    (runs[0].folder / "summary.json").write_text("{}")
    assert plan(grid)["state"].tolist() == ["damaged", "done"], "what `sweep` does too"


def test_committed_runs_read_like_runs(grid, tmp_path):
    runs = [train(config) for config in grid.configs()]
    results.save("small", runs)
    elsewhere = RunStore(tmp_path / "elsewhere")
    recorded = results.runs_of("small", grid.configs(), elsewhere)
    assert [type(run) for run in recorded] == [results.CommittedRun] * 2
    shared = results.runs_of("another", grid.configs()[1:], elsewhere)
    assert [run.name for run in shared] == [runs[1].name], "whichever grid it was committed for"
    for run, known in zip(recorded, runs, strict=True):
        assert run.config.folder() == known.config.folder()
        assert run.test_accuracy.to_numpy() == pytest.approx(known.test_accuracy.to_numpy(), abs=1e-6)
        assert run.summary["std"] == pytest.approx(known.summary["std"])
    assert all_epochs(recorded)["weight"].to_numpy() == pytest.approx(all_epochs(runs)["weight"].to_numpy(), abs=1e-6)
    classes = final_classes(recorded)
    assert len(classes) == 2 * 3
    assert as_frame(recorded)["average"].to_numpy() == pytest.approx(as_frame(runs)["average"].to_numpy())
    train(grid.configs()[0], runs=elsewhere.root)
    assert type(results.runs_of("small", grid.configs(), elsewhere)[0]) is RunFolder, (
        "what is finished here comes first"
    )


def test_damaged_results_are_named(grid):
    results.save("small", [train(grid.configs()[0])])
    (results.folder() / "small.parquet").write_bytes(b"PAR1")
    with pytest.raises(ClamkitError, match="small.parquet is damaged"):
        results.histories_of("small")
    assert results.rows_of("other").empty


def test_both_kinds_of_run_mean_the_final_network(grid, memory_run, monkeypatch):
    """A method that returned to the network of its first epoch: its last epoch is not what the run reports."""
    run = memory_run([[0.9, 0.5, 0.4], [0.2, 0.3, 0.1]], method="apstar_mmpf", dataset="some")
    first = run.wide("test_accuracy").iloc[0]
    monkeypatch.setattr(type(run), "test_accuracy", property(lambda self: first))
    run.summary["versions"] = {"clamkit": "0"}
    results.save("small", [run])
    (committed,) = results.committed_runs("small")
    assert committed.test_accuracy.tolist() == pytest.approx([0.9, 0.5, 0.4], abs=1e-6)
    assert committed.wide("test_accuracy").iloc[-1].tolist() == pytest.approx([0.2, 0.3, 0.1], abs=1e-6)
    assert committed.class_names == run.class_names
    assert committed.config.identity() == run.config.identity()
    with pytest.raises(ClamkitError, match="carry no predictions"):
        committed.predictions  # noqa: B018


@pytest.mark.slow
def test_results_of_the_first_edition_still_read():
    """All committed grids, by what their CSV says of the final metrics."""
    names = [name for name in results.grids() if name != "mini_crop"]
    assert len(names) >= 14
    for name in names:
        runs = list(results.committed_runs(name))
        assert len(runs) == len(results.rows_of(name))
        averages = [run.test_accuracy.mean() for run in runs]
        assert averages == pytest.approx(as_frame(runs)["average"].tolist(), abs=1e-6), name


def test_the_command(grid, small_npz, tmp_path, monkeypatch, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(f"fixed: {{dataset: {small_npz}, epochs: 2}}\naxes: {{seed: [0, 1]}}\n")
    train(grid.configs()[0])
    monkeypatch.setattr(sys, "argv", ["clamkit", "results", str(path)])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    said = capsys.readouterr().out
    assert said.startswith("1 run added")
    assert "hold 1 of 2 runs of small" in said
    assert len(results.rows_of("small")) == 1
    path.write_text(f"fixed: {{dataset: {small_npz}, epochs: 2}}\naxes: {{seed: [1]}}\n")
    train(grid.configs()[1])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert "hold 1 of 1 runs of small, and 1 not in it" in capsys.readouterr().out
