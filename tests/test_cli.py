"""The command line, used rightly and wrongly."""

import subprocess
import sys

import pandas as pd
import pytest

from clamkit import cli
from clamkit.config import RunConfig
from clamkit.train import train


def clamkit(*words, code=0):
    result = subprocess.run(
        [sys.executable, "-m", "clamkit", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr or "--debug" in words
    return result.stdout + result.stderr


def test_train_and_status(small_npz, tmp_path):
    words = ("train", "--dataset", small_npz, "--epochs", 2, "--method", "clam", "--crop-lower-bound", 0.5, "--seed", 5)
    text = clamkit(*words, "--runs", tmp_path / "mine")
    assert "average" in text
    assert "seed5-" in text
    text = clamkit("status", "--runs", tmp_path / "mine")
    assert "done" in text
    assert "no runs" in clamkit("status", "--runs", tmp_path / "none")
    assert "missing" in clamkit("status", "--grid", "demo")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--method", "clamm"), "unknown method 'clamm'. Did you mean 'clam'"),
        (("train", "--dataset", "nowhere"), "unknown dataset 'nowhere'"),
        (("train", "--u-min", "0.1"), "u_min=0.1 leaves no room for 10 classes"),
        (("train", "--tau", "-1"), "tau=-1.0 is not allowed"),
        (("train", "--crop-lower-bound", "1.5"), "crop_lower_bound=1.5 is not allowed"),
        (("train", "--device", "gpu"), "unknown device 'gpu'"),
        (("train", "--epoch", "2"), "No such option"),
        (("sweep", "dmeo"), "unknown grid 'dmeo'. Did you mean 'demo'"),
        (("data", "show", "missing.npz"), "unknown dataset"),
    ],
)
def test_wrong_use_gets_one_paragraph(words, message):
    assert message in " ".join(clamkit(*words, code=2).split())


def test_debug_shows_the_traceback():
    assert "Traceback" in clamkit("train", "--tau", "-1", "--debug", code=1)


@pytest.mark.parametrize("command", ["train", "sweep", "demo", "status", "doctor", "bench", "data list", "data show"])
def test_every_help_shows_an_example(command):
    assert f"Example: clamkit {command}" in clamkit(*command.split(), "--help")


def test_what_the_demo_presents(small_npz, tmp_path, capsys):
    fields = {"dataset": str(small_npz), "epochs": 2}
    runs = [
        train(RunConfig(method=m, crop_lower_bound=b, **fields))
        for b in (0.5, 1)
        for m in ("normal", "clam", "clam_kl")
    ]
    cli._present(runs, tmp_path / "history.csv")
    text = capsys.readouterr().out
    assert "CLAM, KL" in text
    for name in ("demo_fairness", "demo_classes", "demo_weights"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 1000
    history = pd.read_csv(tmp_path / "history.csv")
    assert list(history.columns[:5]) == ["method", "strength", "seed", "epoch", "class"]
    assert len(history) == 6 * 2 * 3


def test_doctor_and_data():
    text = clamkit("doctor")
    for part in ("device", "torch 2", "fashion_mnist_mini", "runs", "cache"):
        assert part in text
    assert "fashion_mnist_mini" in clamkit("data", "list")
    assert "600 to 600" in clamkit("data", "show", "fashion_mnist_mini")
