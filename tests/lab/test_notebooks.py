"""Notebooks as programs: the config of a parameter cell, and the names it has."""

import nbformat
import pytest

from clamkit import paths
from clamkit.engine.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.lab.notebooks import notebook_config, notebook_parameters

PARAMETERS = 'method = "clam"\nseed = 0\nruns = None\noptions = {}'


def test_fields_and_options_make_the_config():
    namespace = {"In": ["", PARAMETERS], "method": "normal", "seed": 2, "options": {"batch_size": 64}, "other": 1}
    assert notebook_config(namespace) == RunConfig(method="normal", seed=2, batch_size=64)
    assert notebook_config({"options": None}) == RunConfig()


def test_unknown_injected_names_are_refused():
    namespace = {"In": ["", PARAMETERS, "# Parameters\nseed = 2\n"], "method": "normal", "seed": 2}
    assert notebook_config(namespace).seed == 2
    namespace["In"] = ["", PARAMETERS, '# Parameters\nsed = 2\nmethod = "normal"\n']
    with pytest.raises(ClamkitError, match="unknown notebook parameter 'sed'. Did you mean 'seed'"):
        notebook_config(namespace)


def test_cells_with_magics_are_passed_over():
    cells = ["%matplotlib inline", PARAMETERS, "# Parameters\nseed = 2\n"]
    assert notebook_config({"In": cells, "seed": 2}).seed == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bach_size": 64}, "unknown setting 'bach_size'. Did you mean 'batch_size'"),
        ([64], r"options=\[64\] is not allowed: it must be a dict"),
        ({3: 64}, "options={3: 64} is not allowed"),
        ({"tau": -1}, "tau=-1 is not allowed"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ClamkitError, match=message):
        notebook_config({"method": "clam", "options": options})


def test_scale_of_a_notebook():
    """The recipe gives what the parameter cell leaves open; what stands in the cell or in the options holds."""
    namespace = {"method": "ggf", "epochs": None, "image_size": None, "scale": "paper", "options": {"lr": 0.05}}
    config = notebook_config(namespace, paper_dataset="cifar10")
    assert (config.dataset, config.epochs, config.model, config.image_size) == ("cifar10", 100, "resnet50", 224)
    assert (config.method, config.lr) == ("ggf", 0.05)
    given = notebook_config(namespace | {"epochs": 4, "dataset": "my/photos"}, paper_dataset="cifar10")
    assert (given.dataset, given.epochs, given.model) == ("my/photos", 4, "resnet50")
    assert notebook_config(namespace | {"scale": "small"}, paper_dataset="cifar10").model == "tiny_resnet"
    with pytest.raises(ClamkitError, match="unknown recipe 'huge'"):
        notebook_config(namespace | {"scale": "huge"})


@pytest.mark.parametrize("notebook", sorted(paths.notebooks().glob("1*.ipynb")), ids=lambda path: path.stem)
def test_parameters_of_the_training_notebooks_are_fields_or_known(notebook):
    pytest.importorskip("papermill", reason="papermill reads parameter cells")
    names = notebook_parameters(notebook)
    assert {"method", "seed", "options"} <= names
    assert names - set(RunConfig.model_fields) <= {"options", "runs", "scale", "beside", "minutes"}


def test_a_notebook_without_a_parameters_cell_is_refused(tmp_path):
    pytest.importorskip("papermill", reason="papermill reads parameter cells")
    path = tmp_path / "plain.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("seed = 0")]), path)
    with pytest.raises(ClamkitError, match="no cell tagged `parameters`"):
        notebook_parameters(path)
