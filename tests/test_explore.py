"""The explorers without a browser: what they compute, that widgets redraw, and sentences where there is no picture."""

import io
import json

import ipywidgets as widgets
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from clamkit import explore, game, live, results, views
from clamkit.browse import find_runs, runs_explorer
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.explore import GamePicture, Settings, game_explorer
from clamkit.runs import Run
from clamkit.simplex import LowerBounded
from clamkit.train import train
from clamkit.views import View


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def controls(widget) -> dict[str, widgets.Widget]:
    """All widgets below one, by description or else by the name of their type."""
    found = {getattr(widget, "description", "") or type(widget).__name__: widget}
    for child in getattr(widget, "children", ()):
        found = controls(child) | found
    return found


# ---------------------------------------------------------------------------------------------------- the game


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.02, 0.98), min_size=3, max_size=8),
    st.sampled_from([*explore.PLAYERS, *explore.SEQUENCES]),
    st.floats(0.01, 10),
    st.floats(0, 0.95),
    st.sampled_from(game.PROJECTIONS),
    st.integers(20, 60),
)
def test_curves_end_where_the_game_says(accuracies, payoffs, tau, share, projection, rounds):
    chosen = Settings(tuple(accuracies), payoffs, tau, share, projection, rounds)
    played, last = chosen.play(), chosen.curves().iloc[-1]
    assert last["regret"] == pytest.approx(game.regret(played), abs=1e-12)
    assert last["bound"] == pytest.approx(
        game.corrected_bound(LowerBounded(len(accuracies), share / len(accuracies)), tau, rounds)
    )
    assert chosen.numbers()[f"weight {len(accuracies)}"] == played.weights[rounds - 1, -1]


@given(st.lists(st.floats(0.02, 0.98), min_size=3, max_size=8))
def test_sliders_are_the_accuracies_under_equal_weights(accuracies):
    """The rates are such that an equal share of the effort gives just these accuracies."""
    v, n = np.array(accuracies), len(accuracies)
    assert 1 - np.exp(-explore._rates(v) / n) == pytest.approx(v)
    assert Settings(tuple(accuracies), "accuracies stay", rounds=2).play().payoffs[1] == pytest.approx(v)


def test_unknown_payoffs_are_refused():
    with pytest.raises(ClamkitError, match="Did you mean 'trap'"):
        Settings(payoffs="trpa").play()
    with pytest.raises(ClamkitError, match="rounds=0"):
        Settings(rounds=0).play()


@pytest.mark.parametrize("n", [3, 5])
def test_a_picture_drawn_again_is_the_picture_drawn_afresh(n):
    """Only the lines are redrawn: what is left of an earlier state would be seen here."""
    states = [
        (Settings((0.5,) * n, tau=0.3, rounds=60), None),
        (Settings((0.3,) * n, "trap", tau=0.1, rounds=40, projection="kl"), None),
        (Settings((0.3,) * n, "trap", tau=0.1, rounds=40, share=0.2), 7),
    ]
    lasting = GamePicture(n)
    seen = [lasting.show(*state) for state in states]
    for png, state in zip(seen, states, strict=True):
        assert (pixels(png) == pixels(GamePicture(n).show(*state))).all()
    assert len(set(seen)) == len(seen)


def test_every_control_of_the_game_redraws():
    explorer = game_explorer()
    found = controls(explorer)
    image, numbers = found["Image"], found["HTML"]
    moves = {
        "projection": "kl", "accuracy 2": 0.3, "step size τ": 0.1, "floor n·u_min": 0.9, "rounds": 100,
        "up to round": 30, "payoffs": "trap", "classes": 5,
    }  # fmt: skip
    for name, value in moves.items():
        before = image.value, numbers.value
        found[name].value = value
        assert image.value != before[0], name
        assert numbers.value != before[1], name
    assert pixels(image.value).shape == (590, 840, 3)
    assert "accuracy 5" in controls(explorer)
    assert controls(explorer)["accuracy 5"].disabled, "a fixed sequence does not look at the sliders"
    found["rounds"].value = 40
    assert (found["up to round"].max, found["Play"].max) == (40, 40)


# ---------------------------------------------------------------------------------------------------- runs


@pytest.fixture
def runs(small_npz):
    return {m: train(RunConfig(dataset=str(small_npz), method=m, epochs=2)) for m in ("normal", "clam")}


@pytest.fixture
def none_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "folder", lambda: tmp_path / "no results")


def many(classes: int, method: str, epochs: int = 3) -> Run:
    """A committed run of many classes, made up."""
    rng = np.random.default_rng(len(method))
    index = pd.MultiIndex.from_product([range(1, epochs + 1), range(classes)], names=["epoch", "class"])
    history = pd.DataFrame(rng.random((len(index), 4)), index, list(views.COLUMNS)).reset_index()
    row = {"run": method, "dataset": "some", "method": method, "average": 0.5, "seconds": 1.0}
    return results.Recorded(
        row | dict.fromkeys(("std", "cov", "range", "decile_range", "worst", "best"), 0.1), history.assign(run=method)
    )


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


def test_the_exported_table_is_what_the_runs_say(runs):
    view = View({"Normal": runs["normal"], "CLAM": runs["clam"]}, classes=("top", "bottom"))
    table = view.table().set_index(["method", "class", "epoch"])
    assert len(table) == 2 * 2 * 2
    row, clam, normal = table.loc["CLAM", "bottom", 2], runs["clam"].history, runs["normal"].history
    expected = clam.query("epoch == 2 and `class` == 2").iloc[0]
    assert row["weight"] == expected["weight"]
    gap = expected["test_accuracy"] - normal.query("epoch == 2 and `class` == 2")["test_accuracy"].iloc[0]
    assert row["gap_to_normal"] == gap
    assert view.numbers().loc["CLAM", "average"] == pytest.approx(runs["clam"].summary["average"])


def test_confusions_are_shares_of_the_true_class():
    run = many(3, "clam")
    plain = Run(run.folder)
    plain.__dict__ |= {"config": run.config, "summary": run.summary, "history": run.history}
    plain.predictions = pd.DataFrame({"label": [0, 0, 0, 0, 1, 1, 2], "prediction": [1, 1, 1, 0, 1, 0, 2]})
    shares = View({"CLAM": plain}).confusion_shares()
    assert shares.index.tolist() == [0, 1, 2], "the worst first"
    assert shares.loc[0].tolist() == [0.25, 0.75, 0]
    plain.predictions["prediction"] = 7
    with pytest.raises(ClamkitError, match="another layout"):
        View({"CLAM": plain}).confusion_shares()


def test_runs_that_differ_in_more_than_the_method_are_kept_apart(small_npz, none_committed):
    for config in ({"epochs": 1}, {"epochs": 2}, {"epochs": 2, "tau": 0.5}):
        train(RunConfig(dataset=str(small_npz), method="clam", **config))
    table, _ = find_runs()
    assert sorted(zip(table["recipe"], table["name"], strict=True)) == [
        ("epochs = 1", "CLAM"), ("epochs = 2", "CLAM"), ("epochs = 2", "CLAM (tau = 0.5)"),
    ]  # fmt: skip


def test_committed_results_stand_in_for_an_empty_folder():
    found = controls(runs_explorer())
    assert found["source"].value.startswith("committed")
    with pytest.raises(ClamkitError, match="carry no predictions"):
        View({"CLAM": many(3, "clam")}).confusion_shares()


def test_nothing_at_hand_leaves_a_sentence(none_committed):
    table, said = find_runs()
    assert table.empty
    assert "no finished runs" in said[0]
    assert "make demo" in said[0]
    assert pixels(controls(runs_explorer())["Image"].value).min() < 200, "something is written"


def damage(run: Run, what: str) -> None:
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
            View({"CLAM": Run(runs["clam"].folder)}).confusion_shares()
    else:
        with pytest.raises(ClamkitError, match="damaged|another layout"):
            View({"CLAM": Run(runs["clam"].folder)})
        found["methods"].value = ["Normal"]
        assert pixels(found["Image"].value).shape == (670, 1100, 3), "the sound run is still shown"


@pytest.mark.parametrize("classes", [100, 1000])
def test_many_classes_show_the_worst(classes):
    runs = {"Normal": many(classes, "normal"), "CLAM": many(classes, "clam")}
    view = View(runs)
    accuracy = runs["Normal"].wide("test_accuracy").loc[3]
    assert list(view.classes) == accuracy.sort_values().index[:3].tolist()
    few = pixels(view.png())
    said = pixels(View(runs, classes=view.class_names).png())
    assert few.shape == said.shape
    assert (said[60:300, 110:360].min(axis=2) < 60).sum() < (few[60:300, 110:360].min(axis=2) < 60).sum(), "no axes"


def test_choices_that_cannot_be_shown_are_said():
    runs = {f"run {i}": many(3, "clam") for i in range(5)}
    for chosen, message in (
        (runs, "5 methods"),
        ({}, "No method"),
        ({"a": many(3, "clam"), "b": many(4, "clam")}, "different"),
    ):
        with pytest.raises(ClamkitError, match=message):
            View(chosen)
    with pytest.raises(ClamkitError, match="unknown class 'class 9'"):
        View({"CLAM": many(3, "clam")}, classes=("class 9",))


def test_images_of_other_data_are_not_shown(runs, small_npz):
    """The examples come from the data the run was trained on, or not at all."""
    shown = View({"CLAM": runs["clam"]}).png()
    content = dict(np.load(small_npz))
    np.savez(small_npz, **content | {"x_test": 255 - content["x_test"]})
    views._dataset.cache_clear()
    assert (pixels(View({"CLAM": runs["clam"]}).png()) != pixels(shown)).any()


# ---------------------------------------------------------------------------------------------------- live


class Shell:
    """A notebook's shell, as far as the live view asks; keeps what is displayed."""

    kernel = object()


def test_live_view_redraws_one_display(small_npz, monkeypatch, tmp_path):
    shown, updated = [], []

    class Handle:
        update = staticmethod(updated.append)

    def display(content, display_id):
        shown.append(content)
        return Handle

    monkeypatch.setattr("IPython.get_ipython", Shell)
    monkeypatch.setattr("IPython.display.display", display)
    config = RunConfig(dataset=str(small_npz), epochs=3)
    train(config, live=True)
    assert (len(shown), len(updated)) == (0, 0), "CLAMKIT_PROGRESS=0: nobody looks"
    monkeypatch.delenv("CLAMKIT_PROGRESS")
    run = train(config, runs=tmp_path / "again", live=True, progress=False)
    assert (len(shown), len(updated)) == (1, 3)
    assert pixels(updated[-1].data).shape[1] > 900
    assert run.history.equals(train(config).history), "looking changes nothing"


def test_live_view_is_silent_without_a_notebook(monkeypatch):
    monkeypatch.delenv("CLAMKIT_PROGRESS")
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    assert live.live_view(["a", "b"]) is None
    monkeypatch.setattr("IPython.get_ipython", lambda: InteractiveShell)  # a terminal's
    assert live.live_view(["a", "b"]) is None


def test_live_picture_of_many_classes():
    rng = np.random.default_rng(0)
    history = [{column: rng.random(1000) for column in live.PANELS} for _ in range(3)]
    assert pixels(live.live_png(history, [f"class {i}" for i in range(1000)])).shape[1] > 900
