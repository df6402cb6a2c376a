"""The house keeps its own rules: floors, pins, notebooks, README."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FLOORS = {
    **dict.fromkeys(["errors", "paths", "simplex", "game", "metrics", "paper"], 0),
    **dict.fromkeys(
        ["_vision", "weighters", "losses", "methods", "models", "data", "readers", "augment", "batches"], 1
    ),
    **dict.fromkeys(["train", "live", "runs", "results", "config"], 2),
    **dict.fromkeys(
        [
            "cli",
            "sweep",
            "plots",
            "gameplots",
            "report",
            "bench",
            "explore",
            "browse",
            "views",
            "integrations",
            "__main__",
        ],
        3,
    ),
}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("file", sorted((ROOT / "clamkit").glob("*.py")), ids=lambda file: file.stem)
def test_imports_only_go_down(file):
    if file.stem == "__init__":
        return
    floor = FLOORS[file.stem]
    for name in imports(file):
        if name.startswith("clamkit."):
            module = name.split(".")[1]
            assert FLOORS.get(module, 0) <= floor, f"{file.stem} imports {module}"
        if floor == 0:
            assert name.split(".")[0] not in ("torch", "torchvision", "matplotlib"), f"{file.stem} imports {name}"
    if file.stem != "_vision":
        assert not {name for name in imports(file) if name.split(".")[0] == "torchvision"}


def test_metrics_import_without_torch():
    code = "import sys, clamkit.metrics, clamkit.simplex; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == [
        "False",
        "False",
    ]


def pins(file: str) -> tuple[dict[str, str], set[str]]:
    """(all pins of a requirements file, the names of its first block: what the project itself asks for)"""
    own, brought = (ROOT / file).read_text().split("# brought along")
    lines = {block: [line.split("==") for line in block.splitlines() if "==" in line] for block in (own, brought)}
    found = {canonicalize_name(name): version for name, version in [*lines[own], *lines[brought]]}
    return found, {canonicalize_name(name) for name, _ in lines[own]}


def test_the_lists_of_packages_agree():
    (pinned, direct), (pinned_extra, direct_extra) = pins("requirements.txt"), pins("requirements-extras.txt")
    assert not set(pinned) & set(pinned_extra)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ranges = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    ranges += [item for extra in project["project"]["optional-dependencies"].values() for item in extra]
    for item in map(Requirement, ranges):
        assert item.specifier.contains((pinned | pinned_extra)[canonicalize_name(item.name)]), str(item)
    named = {canonicalize_name(Requirement(item).name) for item in ranges}
    assert direct | direct_extra == named | {"editables"}, "editables: what hatchling needs to install in place"
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    (by_pip,) = [item["pip"] for item in conda["dependencies"] if isinstance(item, dict)]
    in_conda = {canonicalize_name(n): v for n, v in (line.split("==") for line in by_pip if "==" in line)}
    assert in_conda == {name: pinned[name] for name in direct}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_clean(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "executed top to bottom"
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert "widgets" not in notebook["metadata"]
    assert not re.search(r"/(home|root|work|tmp|Users)/", text), "a path of one machine"
    if "_train_" in path.stem:
        assert sum("parameters" in cell["metadata"].get("tags", []) for cell in code) == 1
        assert "parameters" in code[0]["metadata"]["tags"], "the parameters come first"


def test_training_notebooks_come_from_one_source():
    spec = importlib.util.spec_from_file_location("build", ROOT / "notebooks" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    found = {path.stem for path in NOTEBOOKS if "_train_" in path.stem}
    assert found == set(build.DATASETS)
    for name in found:
        committed = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4).cells
        expected = build.training_notebook(name).cells
        assert [cell.source for cell in committed] == [cell.source for cell in expected], (
            f"{name}: run notebooks/build.py"
        )
        assert [cell.metadata.get("tags") for cell in committed] == [cell.metadata.get("tags") for cell in expected]


def test_readme_names_the_commands_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z-]+)", readme)):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"
    for link in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (ROOT / link).exists(), link
    assert "make test" in readme
    assert "make test" in (ROOT / ".ci" / "run").read_text()
