"""Refreshing a notebook leaves out what is not to be committed."""

import nbformat

from refresh import strip


def test_what_is_not_committed():
    cell = nbformat.v4.new_code_cell("1 + 1", metadata={"tags": [], "papermill": {"duration": 1}, "execution": {}})
    marked = nbformat.v4.new_code_cell("seed = 0", metadata={"tags": ["parameters"], "papermill": {}})
    notebook = nbformat.v4.new_notebook(cells=[cell, marked], metadata={"widgets": {}, "papermill": {}})
    strip(notebook)
    assert notebook.metadata == {"language_info": {"name": "python"}}
    assert [part.metadata for part in notebook.cells] == [{}, {"tags": ["parameters"]}]
