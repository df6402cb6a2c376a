"""Tests never touch the project's runs, figures or the user's cache."""

import multiprocessing
import os
import socket
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch.multiprocessing import start_processes

import clamkit.data.vision  # noqa: F401  before anything that imports torchvision itself, such as Lightning
from clamkit.engine.config import RunConfig
from clamkit.engine.store import Logits, Run
from clamkit.metrics import fairness

os.environ["CLAMKIT_PROGRESS"] = "0"
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "notebooks"))  # helpers, as the notebooks import them
RANKS = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
multiprocessing.set_forkserver_preload(["tests.conftest"])  # torch is imported once, and not in every rank


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config):
    """The whole suite runs on two cores, a file a worker; tests that are named run in this process."""
    if hasattr(config, "workerinput") or config.getoption("cov_source", None):  # a worker; --cov is set up already
        return
    if config.args_source is config.ArgsSource.TESTPATHS and config.getoption("numprocesses", 0) is None:
        config.option.numprocesses, config.option.dist, config.option.loadscopereorder = 2, "loadfile", False
        os.environ.setdefault("OMP_NUM_THREADS", "1")


SECONDS = {"faults": 60, "cluster": 30, "slow": 5}  # of a test with this mark, about


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Files that take long come first where workers share them, so that none is left alone with one at the end."""
    if hasattr(config, "workerinput"):
        seconds = Counter()
        for item in items:
            marks = [value for mark, value in SECONDS.items() if item.get_closest_marker(mark)]
            seconds[item.path] += max(marks, default=1 if item.path.suffix == ".ipynb" else 0.1)
        items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    for variable, name in (("CLAMKIT_RUNS", "runs"), ("CLAMKIT_FIGURES", "figures"), ("CLAMKIT_DATA", "cache")):
        monkeypatch.setenv(variable, str(tmp_path / name))


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture
def small_npz(tmp_path) -> Path:
    """A learnable 3-class dataset of 60 + 30 colour images: class k is bright in stripe k."""
    rng = np.random.default_rng(0)

    def part(count):
        y = np.arange(count) % 3
        x = rng.integers(0, 120, (count, 12, 12, 3), dtype=np.uint8)
        for image, label in zip(x, y, strict=True):
            image[4 * label : 4 * label + 4] += 120
        return x, y

    (x_train, y_train), (x_test, y_test) = part(60), part(30)
    path = tmp_path / "stripes.npz"
    names = np.array(["top", "middle", "bottom"])
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, class_names=names)
    return path


class MemoryRun(Run):
    """A finished run that nobody trained: given test accuracies (and weights) by epoch and class.

    With the accuracies of held-out images it has logits: 100 images of each class, test and held-out.
    """

    def __init__(self, config: RunConfig, accuracy: np.ndarray, weight=None, held_out: np.ndarray | None = None):
        accuracy = np.atleast_2d(np.asarray(accuracy, dtype=float))
        epochs, classes = accuracy.shape
        weight = np.ones_like(accuracy) if weight is None else np.atleast_2d(np.asarray(weight, dtype=float))
        self._config, self._held_out = config, held_out
        self._summary = {
            **fairness(accuracy[-1]).to_dict(),
            "seconds": 1.0,
            "class_names": [f"class {i}" for i in range(classes)],
        }
        self._history = pd.DataFrame(
            {
                "epoch": np.repeat(np.arange(1, epochs + 1), classes),
                "class": np.tile(np.arange(classes), epochs),
                "weight": weight.ravel(),
                "train_accuracy": accuracy.ravel(),
                "train_loss": 1 - accuracy.ravel(),
                "test_accuracy": accuracy.ravel(),
            }
        )

    config = property(lambda self: self._config)
    summary = property(lambda self: self._summary)
    history = property(lambda self: self._history)

    @property
    def predictions(self) -> pd.DataFrame:
        """100 test images of each class; the wrong ones are taken for the next class."""
        return self._predicted(self.test_accuracy.to_numpy())

    @staticmethod
    def _predicted(accuracy: np.ndarray) -> pd.DataFrame:
        label = np.repeat(np.arange(len(accuracy)), 100)
        right = np.concatenate([np.arange(100) < round(100 * share) for share in accuracy])
        return pd.DataFrame({"label": label, "prediction": np.where(right, label, (label + 1) % len(accuracy))})

    @property
    def logits(self) -> Logits:
        """1 for the predicted class, 0 for the others."""
        if self._held_out is None:
            return super().logits
        parts = []
        for accuracy in (self.wide("test_accuracy").iloc[-1], self._held_out):
            found = self._predicted(np.asarray(accuracy))
            parts += [np.eye(len(accuracy), dtype=np.float16)[found["prediction"]], found["label"].to_numpy()]
        return Logits(*parts)

    @property
    def test_accuracy(self) -> pd.Series:
        return self.wide("test_accuracy").iloc[-1].rename(self.config.method)


@pytest.fixture(params=["copy", "paper"])
def source(request) -> Path:
    """The LaTeX of the paper's tables: our copy of them, and the paper itself where it is at hand."""
    if request.param == "copy":
        return ROOT / "tests" / "lab" / "paper_tables.tex"
    path = Path(os.environ.get("CLAMKIT_SHARED") or ROOT.parent / "shared") / "paper" / "clam.tex"
    if not path.is_file():
        pytest.skip(f"the paper's LaTeX is not at {path}: set CLAMKIT_SHARED")
    return path


@pytest.fixture
def two_ranks():
    """two_ranks(work, …) calls work(rank, port, …, results) in two processes; what they put into `results`, by rank."""

    def run(work, *given) -> dict:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with multiprocessing.get_context(RANKS).Manager() as manager:
            results = manager.dict()
            start_processes(work, args=(port, *given, results), nprocs=2, start_method=RANKS)
            return dict(results)

    return run


def training_rank(rank: int, port: int, config: RunConfig, runs: Path, results: dict) -> None:
    """Work for `two_ranks`: one of two processes of a training, with the variables that torchrun gives it."""
    from clamkit.engine.loop import train

    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    os.environ |= {"TORCHELASTIC_RUN_ID": "forks", "MASTER_ADDR": "127.0.0.1"}
    results[rank] = train(config, runs=runs, device="cpu", progress=False).done


@pytest.fixture
def memory_run():
    """Makes runs without training: memory_run(accuracy, weight=None, held_out=None, **fields of RunConfig)."""

    def make(accuracy, weight=None, held_out=None, **fields) -> MemoryRun:
        return MemoryRun(RunConfig(**fields), accuracy, weight, held_out)

    return make
