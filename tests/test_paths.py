"""Folders: in a checkout, by environment variable, and in an installed copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clamkit import paths


def test_a_checkout_keeps_everything_in_the_project(root, monkeypatch):
    for variable in ("CLAMKIT_RUNS", "CLAMKIT_FIGURES"):
        monkeypatch.delenv(variable)
    assert paths.in_checkout()
    assert (paths.runs(), paths.figures()) == (root / "runs", root / "build" / "figures"), "what git ignores"
    assert (paths.embedded(), paths.notebooks()) == (root / "data", root / "notebooks")
    assert (paths.sweeps() / "demo.yaml").is_file()


@pytest.mark.parametrize("name", ["runs", "figures", "cache"])
def test_variables_win(name, tmp_path, monkeypatch):
    monkeypatch.setenv(f"CLAMKIT_{'DATA' if name == 'cache' else name.upper()}", str(tmp_path / "x" / ".." / "here"))
    assert getattr(paths, name)() == tmp_path / "here"


def test_paths_are_shown_as_people_read_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert paths.shown(tmp_path / "runs" / "a") == str(Path("runs", "a"))
    assert paths.shown(tmp_path.parent / "b") == str(tmp_path.parent / "b")


def test_an_installed_copy_writes_to_the_current_folder_and_says_when_it_is_not_whole(root, tmp_path):
    package, away = tmp_path / "site" / "clamkit", tmp_path / "away"
    package.mkdir(parents=True)
    away.mkdir()
    for name in ("__init__.py", "errors.py", "paths.py"):
        shutil.copy(root / "clamkit" / name, package)
    code = (
        "from clamkit import paths\n"
        "print(paths.in_checkout(), paths.runs(), paths.figures(), paths.embedded(), sep='\\n')\n"
        "try: paths.notebooks()\n"
        "except ValueError as error: print(error)\n"
        "(paths.embedded().parent / '_notebooks').mkdir()\n"
        "print(paths.sweeps())"
    )
    variables = {key: value for key, value in os.environ.items() if not key.startswith("CLAMKIT_")}
    variables["PYTHONPATH"] = str(tmp_path / "site")
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=away, env=variables, capture_output=True, text=True, check=True
    )
    *found, error, sweeps = said.stdout.splitlines()
    assert found == ["False", str(away / "runs"), str(away / "figures"), str(package / "_data")]
    assert "install clamkit again" in error
    assert sweeps == str(package / "_notebooks" / "sweeps")
