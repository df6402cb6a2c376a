"""The explorer of runs without a browser: what it finds, that its controls redraw, what it says of damaged runs."""

import json

import pandas as pd
import pytest

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed: pip install 'clamkit[notebooks]'")

from clamkit import RunConfig, train
from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError
from helpers.run_view import View
from helpers.runs_explorer import find_runs, runs_explorer

from .widgets import controls, pixels


@pytest.mark.slow
def test_every_control_of_the_runs_redraws(runs, none_committed):
    explorer = runs_explorer()
    found = controls(explorer)
    image = found["Image"]
    assert found["source"].value == "runs folder"
    assert found["methods"].value == ("Normal", "CLAM")
    assert found["recipe"].value == "epochs = 2"
    for name, value in {"epoch": 1, "classes": ["top"], "confusions of": "Normal", "methods": ["CLAM"]}.items():
        before = image.value
        found[name].value = value
        assert image.value != before, name
    found["export this view"].click()
    links = explorer.children[1].children[-1].value
    assert links.count("download=") == 2


@pytest.mark.slow
def test_the_explorer_shows_the_runs_of_one_setting(runs, none_committed):
    found = controls(runs_explorer())
    assert found["methods"].options == ("Normal", "CLAM")
    assert found["Image"].value == View({"Normal": runs["normal"], "CLAM": runs["clam"]}).png()


def test_runs_that_differ_in_more_than_the_method_are_kept_apart(small_npz, none_committed):
    for config in ({"epochs": 1}, {"epochs": 2}, {"epochs": 2, "tau": 0.5}):
        train(RunConfig(dataset=str(small_npz), method="clam", **config))
    table, _ = find_runs()
    assert sorted(zip(table["recipe"], table["name"], strict=True)) == [
        ("epochs = 1", "CLAM"), ("epochs = 2", "CLAM"), ("epochs = 2", "CLAM (tau = 0.5)"),
    ]  # fmt: skip


@pytest.mark.slow
def test_committed_results_stand_in_for_an_empty_folder():
    found = controls(runs_explorer())
    assert found["source"].value.startswith("committed")
    assert pixels(found["Image"].value).shape == (670, 1100, 3)


def test_nothing_at_hand_leaves_a_sentence(none_committed):
    table, said = find_runs()
    assert table.empty
    assert "no finished runs" in said[0]
    assert "make demo" in said[0]
    assert pixels(controls(runs_explorer())["Image"].value).min() < 200, "something is written"


def damage(run: RunFolder, what: str) -> None:
    if what == "history":
        (run.folder / "history.parquet").write_bytes(b"PAR1")
    elif what == "layout":
        pd.DataFrame({"step": [1], "acc": [0.5]}).to_parquet(run.folder / "history.parquet")
    elif what == "summary":
        (run.folder / "summary.json").write_text(json.dumps({"acc": 1}))
    elif what == "config":
        (run.folder / "config.json").write_text(json.dumps({"network": "other"}))
    elif what == "predictions":
        (run.folder / "predictions.parquet").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["history", "layout", "summary", "config", "predictions"])
def test_a_damaged_run_or_one_of_another_layout_leaves_a_sentence(runs, none_committed, what):
    damage(runs["clam"], what)
    found = controls(runs_explorer())
    pixels(found["Image"].value)
    if what in ("summary", "config"):
        assert found["methods"].options == ("Normal",)
        assert len(find_runs()[1]) == 1
    elif what == "predictions":
        with pytest.raises(ClamkitError, match="predictions.parquet is not there"):
            View({"CLAM": RunFolder(runs["clam"].folder)}).confusion_shares()
    else:
        with pytest.raises(ClamkitError, match="damaged|another layout"):
            View({"CLAM": RunFolder(runs["clam"].folder)})
        found["methods"].value = ["Normal"]
        assert pixels(found["Image"].value).shape == (670, 1100, 3), "the sound run is still shown"
