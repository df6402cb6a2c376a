"""Tests never touch the project's runs, figures or the user's cache.

Nothing heavy is imported here: the process that shares the tests out among workers loads this file, and runs none.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

os.environ["CLAMKIT_PROGRESS"] = "0"
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "notebooks"))  # helpers, as the notebooks import them


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config):
    """The whole suite runs on two cores, a file a worker; tests that are named run in this process."""
    if hasattr(config, "workerinput") or config.getoption("cov_source", None):  # a worker; --cov is set up already
        return
    if config.args_source is config.ArgsSource.TESTPATHS and config.getoption("numprocesses", 0) is None:
        config.option.numprocesses, config.option.dist, config.option.loadscopereorder = 2, "loadfile", False
        os.environ.setdefault("OMP_NUM_THREADS", "1")


SECONDS = {"faults": 30, "cluster": 20, "slow": 5}  # of a test with this mark, about


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Where workers share them, files that take long come first, so that none is left alone with one at the end.

    What waits for a cluster goes beside what computes: each of the two kinds is put where it would begin, alone.
    """
    if hasattr(config, "workerinput"):
        seconds, waiting = Counter(), set()
        for item in items:
            marks = [value for mark, value in SECONDS.items() if item.get_closest_marker(mark)]
            seconds[item.path] += max(marks, default=1 if item.path.suffix == ".ipynb" else 0.1)
            waiting |= {item.path} if item.get_closest_marker("cluster") else set()
        begin, clock = {}, Counter()
        for path, length in seconds.most_common():
            begin[path] = clock[path in waiting]
            clock[path in waiting] += length
        items.sort(key=lambda item: begin[item.path])


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist sends it
def pytest_warning_recorded(warning_message):
    """A library's own kind of warning becomes a plain one: where workers report to, it would have to be imported."""
    kind = type(warning_message.message)
    if kind.__module__.partition(".")[0] not in ("builtins", "pytest", "_pytest"):
        warning_message.message = UserWarning(f"{kind.__name__}: {warning_message.message}")
        warning_message.category = UserWarning


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
    import numpy as np

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
    from tests import ranks

    return ranks.two_ranks


@pytest.fixture
def memory_run():
    """Makes runs without training: memory_run(accuracy, weight=None, held_out=None, **fields of RunConfig)."""

    from clamkit.engine.config import RunConfig
    from tests.memory_run import MemoryRun

    def make(accuracy, weight=None, held_out=None, **fields) -> MemoryRun:
        return MemoryRun(RunConfig(**fields), accuracy, weight, held_out)

    return make
