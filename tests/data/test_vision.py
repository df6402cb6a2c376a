"""torchvision is imported in one place, which makes it work beside a torch that its wheel was not built for."""

import ast
import subprocess
import sys

import pytest
import torch

from clamkit.data.vision import torchvision


def imports(tree: ast.AST) -> set[str]:
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    return {module.split(".")[0] for module in modules}


def test_only_one_module_imports_torchvision(root):
    files = (root / "clamkit").rglob("*.py")
    found = {file.name for file in files if "torchvision" in imports(ast.parse(file.read_text(encoding="utf-8")))}
    assert found == {"vision.py"}


def test_models_and_transforms_work():
    model = torchvision.models.resnet18(num_classes=3).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    image = torch.arange(16.0).view(1, 4, 4)
    functional = torchvision.transforms.v2.functional
    assert torch.equal(functional.horizontal_flip(image), image.flip(2))
    assert hasattr(torchvision.datasets, "FashionMNIST")


@pytest.mark.slow
def test_a_plain_import_works_after_it():
    """In a fresh process: Lightning and others import torchvision themselves."""
    code = "import clamkit.data.vision as v, torchvision; print(torchvision is v.torchvision)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"
