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
FLOORS = {  # as the map of the house says
    module: int(floor)
    for floor, modules in re.findall(r"^\| (\d) [^|]*\|([^|]*)\|", (ROOT / "clamkit" / "README.md").read_text(), re.M)
    for module in re.findall(r"`(\w+)/?`", modules)
} | {"_vision": 1, "__main__": 3}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def module_of(file: Path) -> str:
    """The name in FLOORS; a subpackage such as integrations/ stands on one floor."""
    return file.relative_to(ROOT / "clamkit").parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "file", sorted((ROOT / "clamkit").rglob("*.py")), ids=lambda file: f"{module_of(file)}-{file.stem}"
)
def test_imports_only_go_down(file):
    if module_of(file) == "__init__":
        return
    floor = FLOORS[module_of(file)]
    for name in imports(file):
        if name.startswith("clamkit."):
            module = name.split(".")[1]
            assert FLOORS.get(module, 0) <= floor, f"{file.stem} imports {module}"
            assert module != "integrations" or module_of(file) == module, "optional libraries stay optional"
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


def is_set(node: ast.AST) -> bool:
    """Whether an expression is plainly a set: a literal, set(…), or an operation on one."""
    if isinstance(node, ast.BinOp):
        return is_set(node.left) or is_set(node.right)
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return called or isinstance(node, ast.Set | ast.SetComp)


def walks_over_a_set(code: str) -> list[str]:
    """Loops and comprehensions whose order would change from one process to the next."""
    nodes = ast.walk(ast.parse(code))
    loops = (node for node in nodes if isinstance(node, ast.For | ast.comprehension))
    return [ast.unparse(loop.iter) for loop in loops if is_set(loop.iter)]


def test_no_printed_order_depends_on_the_process():
    assert walks_over_a_set("for a in {1, 2} & set(b): pass\n[c for c in set(b)]") == ["{1, 2} & set(b)", "set(b)"]
    assert not walks_over_a_set("for a in sorted({1, 2} & set(b)): pass")
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        assert not walks_over_a_set(re.sub(r"^[%!].*$", "", code, flags=re.M)), path.stem
    for path in sorted((ROOT / "clamkit").rglob("*.py")):
        assert not walks_over_a_set(path.read_text(encoding="utf-8")), path.stem


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
