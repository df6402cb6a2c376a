"""The wheel is whole: built, installed beside nothing but what it asks for, and used from an empty folder.

Two environments without network: one with the packages that `pip install clamkit` brings, one with those of
`pip install 'clamkit[lab]'`. Both are links to the packages installed here, followed from the wheel's own metadata.
"""

import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow
pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed: make setup")

TRAIN = ["train", "--method", "clam_kl", "--epochs", "1", "--per-class", "20", "--batch-size", "64"]
GRID = """\
notebook: 10_train_fashion_mnist
fixed: {epochs: 1, per_class: 20, batch_size: 64}
axes: {method: [clam_kl]}
"""


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *build, str(root)], check=True)
    (built,) = folder.glob("*.whl")
    return built


def needed(requirements: list[str], extra: str) -> set[str]:
    """Names of the installed packages that these requirements bring, directly or through others."""
    found, waiting = set(), [(Requirement(line), extra) for line in requirements]
    while waiting:
        item, wanted = waiting.pop()
        if item.marker and not item.marker.evaluate({"extra": wanted}):
            continue
        key = f"{item.name}[{','.join(sorted(item.extras))}]"
        if key in found:
            continue
        found.add(key)
        try:
            brought = distribution(item.name).requires or []
        except PackageNotFoundError:
            pytest.skip(f"{item.name}, which clamkit needs, is not installed here")
        waiting += [(Requirement(line), each) for line in brought for each in ("", *item.extras)]
    return {key.split("[")[0] for key in found}


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """A virtual environment with the wheel and links to the packages it asks for; its folder of programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    (site,) = folder.glob("lib/python*/site-packages")
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked, [name for name in archive.namelist() if ".dist-info/" in name])
    (information,) = unpacked.iterdir()
    for name in needed(PathDistribution(information).requires or [], extra):
        installed = distribution(name)
        files = [str(file) for file in installed.files or [] if "share" in file.parts]  # templates of nbconvert
        for path in sorted({file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}) + files:
            place = Path(os.path.normpath(site / path))
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(Path(installed.locate_file(path)).resolve())
    options = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(programs / "python"), *options], check=True)
    return programs


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory) -> Path:
    return environment(tmp_path_factory.mktemp("base"), wheel, "")


@pytest.fixture(scope="module")
def lab(wheel, tmp_path_factory) -> Path:
    return environment(tmp_path_factory.mktemp("lab"), wheel, "lab")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """What the doctor measures is kept there, and measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def outside(tmp_path, monkeypatch, cache) -> Path:
    """A current folder away from the checkout, in which runs and figures are kept by default."""
    monkeypatch.setenv("CLAMKIT_DATA", str(cache))
    for variable in ("CLAMKIT_RUNS", "CLAMKIT_FIGURES", "PYTHONPATH"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "away"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def clamkit(programs: Path, *words: str, fails: bool = False) -> str:
    """What a command prints, on both streams."""
    result = subprocess.run([str(programs / "clamkit"), *words], capture_output=True, text=True)
    said = result.stdout + result.stderr
    assert (result.returncode != 0) == fails, said
    assert "Traceback" not in said, said
    return said


def installed_files(programs: Path) -> dict[str, int]:
    """Everything below the installed package but compiled code, with its time of change."""
    code = "import clamkit; print(clamkit.__file__)"
    where = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, check=True).stdout
    package = Path(where.strip()).parent
    assert package.is_relative_to(programs.parent), "the wheel, not the checkout"
    files = [file for file in package.rglob("*") if "__pycache__" not in file.parts and file.is_file()]
    return {str(file.relative_to(package)): file.stat().st_mtime_ns for file in files}


def write_predictions(path: Path) -> None:
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(4), 200)
    wrong = rng.random(800) < np.array([0.05, 0.1, 0.1, 0.6])[label]
    pd.DataFrame({"label": label, "prediction": np.where(wrong, (label + 1) % 4, label)}).to_csv(path, index=False)


def test_the_wheel_holds_what_the_commands_need(wheel, root):
    names = set(zipfile.ZipFile(wheel).namelist())
    for file in sorted((root / "notebooks").glob("*.ipynb")):
        assert f"clamkit/_notebooks/{file.name}" in names
    for folder in ("sweeps", "helpers"):
        for file in sorted((root / "notebooks" / folder).glob("*.*")):
            assert f"clamkit/_notebooks/{folder}/{file.name}" in names
    assert {"clamkit/py.typed", "clamkit/plots/clamkit.mplstyle", "clamkit/apps/diagnose.html"} <= names
    assert {"clamkit/_data/fashion_mnist_mini.npz", "clamkit/_data/results/mini_crop.csv"} <= names
    strays = [name for name in names if name.split("/")[0] not in ("clamkit",) and ".dist-info/" not in name]
    assert not strays
    assert not [name for name in names if "checkpoints" in name or name.endswith(("build.py", "conftest.py", ".pyc"))]


def test_a_base_install_works_without_the_lab(base, outside):
    before = installed_files(base)
    assert "0.2" in clamkit(base, "--version")
    said = clamkit(base, "doctor")
    assert "pip install 'clamkit[lab]'" in said
    assert "papermill" in said
    assert "nothing is missing" not in said
    assert "cannot be written" not in said
    assert "fashion_mnist_mini" in clamkit(base, "data", "list")
    assert "10 classes" in clamkit(base, "data", "show", "fashion_mnist_mini")
    assert "average" in clamkit(base, *TRAIN)
    assert list((outside / "runs").rglob("DONE")), "runs are kept in the current folder"
    assert "done" in clamkit(base, "status")
    write_predictions(outside / "predictions.csv")
    clamkit(base, "report", "--predictions", "predictions.csv", "--html", "page.html")
    assert "<html" in (outside / "page.html").read_text(encoding="utf-8")
    assert installed_files(base) == before, "nothing is written where clamkit is installed"


@pytest.mark.parametrize("words", ["sweep demo", "demo", "status --grid demo", "results demo", "report"])
def test_a_base_install_says_what_the_lab_commands_need(base, outside, words):
    said = clamkit(base, *words.split(), fails=True)
    assert "pip install 'clamkit[lab]'" in " ".join(said.split())
    assert "unexpected" not in said


def test_a_lab_install_runs_grids_and_notebooks(lab, outside):
    before = installed_files(lab)
    said = clamkit(lab, "doctor")
    assert "lab (demo, sweep, report and the notebooks): installed" in said
    assert "cannot be written" not in said
    assert "clam_kl" in clamkit(lab, "status", "--grid", "demo")
    (outside / "tiny.yaml").write_text(GRID, encoding="utf-8")
    assert "1 of 1 runs of tiny.yaml are done" in clamkit(lab, "sweep", "tiny.yaml", "--jobs", "1")
    (done,) = (outside / "runs").rglob("DONE")
    assert (done.parent / "notebook.ipynb").is_file(), "the executed notebook lies in the run folder"
    clamkit(lab, "report", "23_worst_classes", "--out", "out")
    assert (outside / "out" / "report.html").is_file()
    assert installed_files(lab) == before, "nothing is written where clamkit is installed"
    assert {path.name for path in outside.iterdir()} <= {"runs", "figures", "out", "tiny.yaml"}


def test_executed_notebooks_see_the_folders_of_whoever_started_them(lab, outside):
    """Not those of the notebook's own folder, which in a wheel is where clamkit is installed."""
    (outside / "elsewhere").mkdir()
    code = (
        "import nbformat as nb\nfrom pathlib import Path\nfrom clamkit.lab.execution import execute_notebook\n"
        "cell = nb.v4.new_code_cell('from clamkit import paths; print(paths.runs(), paths.figures())')\n"
        "nb.write(nb.v4.new_notebook(cells=[cell]), 'elsewhere/probe.ipynb')\n"
        "assert not execute_notebook(Path('elsewhere/probe.ipynb').resolve(), Path('done.ipynb').resolve())\n"
        "print(nb.read('done.ipynb', 4).cells[0].outputs[0].text)"
    )
    result = subprocess.run([lab / "python", "-c", code], capture_output=True, text=True)
    assert result.stdout.split() == [str(outside / "runs"), str(outside / "figures")], result.stderr
