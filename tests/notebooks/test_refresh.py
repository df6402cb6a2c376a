"""Refreshing a notebook leaves out what is not to be committed."""

import subprocess
import sys

import nbformat
import pytest

from clamkit import paths
from clamkit.errors import ClamkitError
from refresh import chosen, strip


def test_what_is_not_committed():
    cell = nbformat.v4.new_code_cell("1 + 1", metadata={"tags": [], "papermill": {"duration": 1}, "execution": {}})
    marked = nbformat.v4.new_code_cell("seed = 0", metadata={"tags": ["parameters"], "papermill": {}})
    notebook = nbformat.v4.new_notebook(cells=[cell, marked], metadata={"widgets": {}, "papermill": {}})
    strip(notebook)
    assert notebook.metadata == {"language_info": {"name": "python"}}
    assert [part.metadata for part in notebook.cells] == [{}, {"tags": ["parameters"]}]


def test_a_name_that_no_notebook_has_is_refused():
    """It was passed over in silence, and the notebook that was meant stayed as it was."""
    assert [file.name for file in chosen(["24_augmentation_curves"])] == ["24_augmentation_curves.ipynb"]
    assert len(chosen([])) == len(list(paths.notebooks().glob("*.ipynb")))
    with pytest.raises(ClamkitError, match="unknown notebook '24_augmentation'. Did you mean '24_augmentation_curves'"):
        chosen(["05_what_we_found", "24_augmentation"])
    command = [sys.executable, str(paths.notebooks() / "build.py"), "13_train"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert "unknown training notebook '13_train'. Allowed: 10_train_fashion_mnist, " in said.stderr
