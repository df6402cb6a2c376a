"""A checkout of its own with one tiny notebook, so that real sweeps are cheap to start, kill and repeat."""

import os
import shutil
import sys
from pathlib import Path

import nbformat
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CELLS = (
    'dataset = "fashion_mnist_mini"\nmethod = "clam"\nseed = 0\noptions = {}',
    "import torch\n\nfrom clamkit import train\nfrom clamkit.lab.notebooks import notebook_config\n\n"
    "torch.set_num_threads(1)  # however many processes there are, the same bits\n"
    "run = train(notebook_config(globals()))",
)


def make(folder: Path) -> Path:
    """clamkit as it is here, notebooks/tiny.ipynb, and a small dataset."""
    shutil.copytree(ROOT / "clamkit", folder / "clamkit")  # and what is compiled of it
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "notebooks").mkdir()
    tiny_notebook(folder / "notebooks")
    dataset(folder / "stripes.npz")
    return folder


def tiny_notebook(folder: Path) -> None:
    """tiny.ipynb: trains the run that its parameters describe."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / "tiny.ipynb")


def dataset(path: Path, count: int = 90) -> Path:
    """Three classes of 12×12 images, class k bright in stripe k."""
    rng = np.random.default_rng(0)
    y = np.arange(count) % 3
    x = rng.integers(0, 120, (count, 12, 12, 1), dtype=np.uint8)
    for image, label in zip(x, y, strict=True):
        image[4 * label : 4 * label + 4] += 120
    train = slice(0, 2 * count // 3)
    test = slice(2 * count // 3, count)
    np.savez(path, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    return path


def grid(folder: Path, seeds: int, epochs: int) -> Path:
    path = folder / "grid.yaml"
    fixed = f"{{dataset: {folder / 'stripes.npz'}, epochs: {epochs}, batch_size: 20}}"
    path.write_text(f"notebook: tiny\nfixed: {fixed}\naxes: {{seed: [{', '.join(map(str, range(seeds)))}]}}\n")
    return path


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(folder), "CLAMKIT_PROGRESS": "0", "PYTHONDONTWRITEBYTECODE": ""}


def command(*words) -> list[str]:
    return [sys.executable, "-m", "clamkit", *map(str, words)]
