"""Grids: what their YAML may hold, and that the project's own are sound."""

import numpy as np
import pytest

from clamkit import RunConfig, paths
from clamkit.cli import sweep_command
from clamkit.errors import ClamkitError
from clamkit.lab import paper
from clamkit.lab.grids import Grid
from clamkit.lab.recipes import recipe
from clamkit.lab.runner import sweep


def test_grid_is_the_product_of_its_axes(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("fixed: {epochs: 2}\naxes: {method: [normal, clam], seed: [0, 1, 2]}\n")
    configs = Grid.load(path).configs()
    assert len(configs) == len(set(configs)) == 6
    assert configs[4] == RunConfig(epochs=2, method="clam", seed=1)
    assert len(Grid.load("demo").configs()) == 9


def test_a_run_comes_once_though_combinations_name_it_twice(tmp_path):
    """Normal does not listen to tau, CLAM to both values: three runs, by hand. The second part has them once more."""
    path = tmp_path / "grid.yaml"
    path.write_text("axes: {method: [normal, clam], tau: [0.1, 0.2]}\ngrids:\n- axes: {method: [normal], tau: [0.2]}\n")
    found = [(config.method, config.tau) for config in Grid.load(path).configs()]
    assert found == [("normal", 0.1), ("clam", 0.1), ("clam", 0.2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes: {metod: [clam]}", "unknown setting 'metod'"),
        ("axes: {method: []}", "it must be a list of values"),
        ("axes: {method: clam}", "it must be a list of values"),
        ("axes: {epochs: [many]}", "epochs='many'"),
        ("axis: {method: [clam]}\naxes: {seed: [0]}", "unknown key in grid grid 'axis'"),
        ("- 1", "must hold"),
        ("axes: {}", "has 0 runs: give `axes` fields and values for 1 to 100000 runs"),
        ("grids: []", "has 0 runs"),
        ("axes:\n  seed: [0]\n  seed: [1]", "'seed' stands twice in one mapping"),
        ("fixed: {epochs: 1}\nfixed: {per_class: 9}\naxes: {seed: [0]}", "'fixed' stands twice in one mapping"),
        ("axes: {a: [", "not sound YAML"),
        ("notebook: 99_none\naxes: {seed: [0]}", "unknown notebook '99_none'"),
    ],
)
def test_bad_grids(tmp_path, text, message):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(ClamkitError, match=message):
        sweep(Grid.load(path), progress=False)


def test_a_dry_run_refuses_a_notebook_that_is_not_there(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("notebook: 99_none\naxes: {seed: [0]}")
    with pytest.raises(ClamkitError, match="unknown notebook '99_none'"):
        sweep_command(str(path), dry_run=True)
    assert len(Grid.load(path).configs()) == 1, "who only looks at runs needs no notebooks"


@pytest.mark.parametrize("name", [file.stem for file in (paths.notebooks() / "sweeps").glob("*.yaml")])
def test_every_grid_is_sound(name):
    made_by = Grid.load(name).runs()
    assert set(made_by.values()) <= {file.stem for file in paths.notebooks().glob("*_train_*.ipynb")}
    folders = [config.folder() for config in made_by]
    assert len(folders) == len(set(folders))
    for config in made_by:
        if name.startswith("paper_"):
            expected = recipe("paper", config.dataset)
            assert {key: getattr(config, key) for key in expected} == expected


def test_the_papers_grid_has_every_cell_of_its_tables():
    made_by = Grid.load("paper_crop").runs()
    assert len(made_by) == 5 * 6 * 8
    cells = {(config.dataset, config.method) for config in made_by}
    printed = paper.results().query("table == 'fairness_crop'")
    assert cells == set(zip(printed["dataset"], printed["method"], strict=True))
    # the paper runs "8 crop lower bounds" and "8 color jitter parameters", one of them without augmentation, and lists
    # neither: these are our choice
    np.testing.assert_allclose(sorted({config.crop_lower_bound for config in made_by}), np.linspace(0.3, 1, 8))
    strengths = {config.jitter_strength for config in Grid.load("paper_jitter").configs()}
    np.testing.assert_allclose(sorted(strengths), np.linspace(0, 0.7, 8), atol=1e-12)


def test_a_missing_file_is_called_missing(tmp_path):
    with pytest.raises(ClamkitError, match="there is no file .*none.yaml"):
        Grid.load(tmp_path / "none.yaml")
    with pytest.raises(ClamkitError, match="unknown grid 'dmeo'. Did you mean 'demo'"):
        Grid.load("dmeo")
