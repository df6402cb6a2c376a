"""What `from clamkit import …` gives, and what it costs: names load when used, and only what they need."""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys

import pytest

import clamkit
import clamkit.engine.loop
from clamkit.engine.config import RunConfig

PROMISED = {
    *("CLAM", "Uniform", "TCE", "GGF", "APStar", "MaxMin", "Weighter"),
    *("RunConfig", "train", "Run", "RunStore", "load_data", "METHODS"),
    *("class_accuracy", "fairness", "compare"),
    *("LowerBounded", "RatioBounded", "Permutahedron", "Box", "fit_biases"),
}
HEAVY = ("torch", "torchvision", "matplotlib", "scipy.stats", "pandas", "numpy")


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def heavy_after(statement: str) -> set[str]:
    """Which of the heavy libraries a fresh interpreter has imported after a statement."""
    return set(python(f"import sys\n{statement}\nprint(*({set(HEAVY)} & set(sys.modules)))").split())


# the names


@pytest.mark.parametrize("name", clamkit.__all__)
def test_every_public_name_loads(name):
    assert getattr(clamkit, name) is getattr(clamkit, name)
    assert name in dir(clamkit)


def test_what_is_promised_is_public():
    assert set(clamkit.__all__) >= PROMISED
    assert len(set(clamkit.__all__)) == len(clamkit.__all__)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(inspect.getsource(clamkit))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(seen) | {"__version__"} == set(clamkit.__all__)
    for name, home in seen.items():
        assert getattr(importlib.import_module(home), name) is getattr(clamkit, name)


def test_train_is_the_function():
    assert clamkit.train is clamkit.engine.loop.train
    assert inspect.isfunction(clamkit.train)


@pytest.mark.slow
def test_train_is_the_function_whatever_was_imported_before():
    code = "import clamkit.engine.loop, inspect; from clamkit import train; import clamkit"
    assert python(f"{code}; print(inspect.isfunction(train), inspect.isfunction(clamkit.train))") == "True True"


@pytest.mark.slow
def test_star_import_gives_the_names():
    assert python("from clamkit import *; print(CLAM.__name__, train.__name__, METHODS['clam'].label)") == (
        "CLAM train CLAM"
    )


def test_folders_are_there_too():
    code = "from clamkit import metrics, lab; import clamkit; print(metrics, lab, clamkit.theory)"
    printed = python(code)
    assert all(f"'clamkit.{name}'" in printed for name in ("metrics", "lab", "theory"))
    folders = {"metrics", "theory", "methods", "data", "engine", "lab", "plots", "apps", "integrations"}
    assert folders <= set(dir(clamkit))


def test_modules_can_be_imported_from_the_package():
    printed = python("from clamkit import checks, cli, errors, files, paths; print(checks, cli, errors, files, paths)")
    assert all(f"'clamkit.{name}'" in printed for name in ("checks", "cli", "errors", "files", "paths"))


def test_help_has_the_example():
    for line in ("from clamkit import CLAM, class_accuracy, fairness", "weighter.step()", "weighter(model(x), y)"):
        assert line in clamkit.__doc__


# names that are not there


def test_a_wrong_name_is_an_error_that_names_those_there_are():
    with pytest.raises(ImportError, match="clamkit has no 'nothing'.*CLAM.*train.*fairness.*folders metrics, theory"):
        from clamkit import nothing  # noqa: F401
    with pytest.raises(AttributeError, match="clamkit has no 'nothing'.*CLAM.*train.*fairness"):
        clamkit.nothing  # noqa: B018
    assert not hasattr(clamkit, "x")
    assert getattr(clamkit, "x", None) is None


# what they import


def test_the_package_imports_nothing_heavy():
    assert heavy_after("import clamkit; dir(clamkit); clamkit.__doc__") == set()


def test_names_without_torch():
    names = "fairness, compare, RunConfig, METHODS, LowerBounded, fit_biases"
    assert not {"torch", "torchvision", "matplotlib"} & heavy_after(f"from clamkit import {names}")


def test_a_config_needs_no_arrays():
    assert heavy_after("from clamkit import RunConfig, METHODS, RunStore; RunConfig(method='clam').hash()") == set()


def test_numbers_are_light():
    assert not {"torch", "matplotlib", "scipy.stats"} & heavy_after("import clamkit.metrics, clamkit.lab.paper")


@pytest.fixture
def runs_folder(tmp_path):
    """A runs folder with a run that was stopped before its first epoch."""
    config = RunConfig()
    folder = tmp_path / "runs" / config.folder()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.model_dump()))
    return tmp_path / "runs"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["status"]], ids=" ".join)
def test_quick_commands_import_neither_torch_nor_pandas(arguments, runs_folder):
    environment = os.environ | {"CLAMKIT_RUNS": str(runs_folder)}
    command = [sys.executable, "-X", "importtime", "-m", "clamkit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "clamkit" in imported
    assert not {"torch", "torchvision", "pandas", "matplotlib"} & imported
    if arguments == ["--version"]:
        assert clamkit.__version__ in done.stdout
    if arguments == ["status"]:
        assert "stopped" in done.stdout
