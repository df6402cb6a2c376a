"""Curves of each class, as TensorBoard itself reads them back."""

import importlib
import pickle
import sys

import numpy as np
import pytest

from clamkit import CLAM, ClamkitError, RunConfig, fairness, train
from clamkit.cli import main

pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'clamkit[integrations]'")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clamkit.integrations import tensorboard
from clamkit.integrations.tensorboard import Curves

from .training import EPOCHS


def scalars(folder) -> dict[str, dict[int, float]]:
    """tag → epoch → value"""
    found = EventAccumulator(str(folder)).Reload()
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def assert_history(found, run):
    names = run.class_names
    for row in run.history.itertuples():
        for column in ("weight", "train_accuracy", "train_loss", "test_accuracy"):
            assert found[f"{column}/{names[row._2]}"][row.epoch] == pytest.approx(getattr(row, column), rel=1e-6)
    for epoch, part in run.history.groupby("epoch"):
        for metric, value in fairness(part["test_accuracy"]).items():
            assert found[f"test_equity/{metric}"][epoch] == pytest.approx(value, rel=1e-6)


CONFIG = RunConfig(per_class=10, epochs=2)


@pytest.mark.slow
def test_train_writes_every_class_and_metric(tmp_path):
    run = train(CONFIG, runs=tmp_path / "runs", device="cpu", watch=Curves(tmp_path / "logs"))
    found = scalars(tmp_path / "logs")
    assert {step for values in found.values() for step in values} == {1, 2}
    assert_history(found, run)
    Curves(tmp_path / "again").of_run(run)
    assert scalars(tmp_path / "again") == found


@pytest.mark.slow
def test_the_command_writes_a_folder_a_run_also_of_a_finished_one(tmp_path, monkeypatch, capsys):
    words = ["clamkit", "train", "--per-class", "10", "--epochs", "2", "--device", "cpu", "--runs", f"{tmp_path}/runs"]
    train(CONFIG, runs=tmp_path / "runs", device="cpu")
    monkeypatch.setattr(sys, "argv", [*words, "--log-dir", f"{tmp_path}/logs"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert f"tensorboard --logdir {tmp_path}/logs" in " ".join(capsys.readouterr().out.split())
    assert set(scalars(tmp_path / "logs" / CONFIG.folder())["test_equity/worst"]) == {1, 2}


def test_a_training_begun_anew_hides_what_came_later(tmp_path):
    """Three epochs, then again from the second on: as after a resume, the old second and third are gone."""
    first, second = Curves(tmp_path), Curves(tmp_path)
    for epoch in (1, 2, 3):
        first.log(epoch, {"weight": [epoch, 1.0]})
    first.close()
    second.log(2, {"weight": [20.0, 1.0]})
    assert scalars(tmp_path)["weight/class 0"] == {1: 1.0, 2: 20.0}
    assert pickle.loads(pickle.dumps(second)).epoch == 2


def test_a_second_training_of_the_same_callback_hides_the_first(tmp_path):
    curves = Curves(tmp_path)
    for epoch, weight in [(1, 1.0), (2, 2.0), (3, 3.0), (1, 10.0), (2, 20.0)]:
        curves.log(epoch, {"weight": [weight, 1.0]})
    assert scalars(tmp_path)["weight/class 0"] == {1: 10.0, 2: 20.0}


@pytest.mark.parametrize(("module", "library"), [("huggingface", "transformers"), ("lightning", "lightning")])
def test_callbacks_say_at_once_that_names_do_not_fit(tmp_path, module, library):
    pytest.importorskip(library)
    callback = importlib.import_module(f"clamkit.integrations.{module}").ClamCallback
    with pytest.raises(ClamkitError, match="2 class_names for 10 classes: give one for each"):
        callback(CLAM(10), tmp_path, ["shirt", "coat"])


def test_many_classes_make_a_histogram_and_no_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "MOST_CURVES", 2)
    v = [0.2, np.nan, 0.6]
    Curves(tmp_path).log(1, {"train_accuracy": v})
    found = EventAccumulator(str(tmp_path)).Reload()
    assert found.Tags()["histograms"] == ["train_accuracy"]
    assert found.Histograms("train_accuracy")[0].histogram_value.num == 2
    assert not [tag for tag in found.Tags()["scalars"] if tag.startswith("train_accuracy/")]
    assert found.Scalars("train_equity/average")[0].value == pytest.approx(0.4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["lightning", pytest.param("huggingface", marks=pytest.mark.slow)])
def test_callbacks_write_what_they_counted(library, tmp_path):
    """Two epochs: the weights are those each began with, the last step is in the weighter."""
    weighter = CLAM(10)
    names = [f"n{i}" for i in range(10)]
    if library == "lightning":
        pytest.importorskip("lightning")
        from .test_lightning import lightning as fit

        fit(tmp_path / "work", weighter, log_dir=tmp_path / "logs", class_names=names)
    else:
        pytest.importorskip("transformers")
        from .test_huggingface import hugging_face

        hugging_face(tmp_path / "work", weighter, log_dir=tmp_path / "logs", class_names=names).train()
    found = scalars(tmp_path / "logs")
    assert found["weight/n0"][1] == 1.0
    assert all(set(values) == set(range(1, EPOCHS + 1)) for values in found.values())
    v = [found[f"train_accuracy/{name}"][EPOCHS] for name in names]
    assert found["train_equity/std"][EPOCHS] == pytest.approx(fairness(v)["std"], rel=1e-5)
    again = CLAM(10)
    again.step(accuracy=[found[f"train_accuracy/{name}"][1] for name in names])
    np.testing.assert_allclose(again.weights, [found[f"weight/{name}"][2] for name in names], rtol=1e-5)
