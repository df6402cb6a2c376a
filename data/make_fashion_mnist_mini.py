"""Make data/fashion_mnist_mini.npz: the first 600 training and 400 test images of each Fashion-MNIST class.

The full set comes from the Debian package dataset-fashion-mnist (apt-get install dataset-fashion-mnist), from
--data-dir, or from torchvision's download. Run: python data/make_fashion_mnist_mini.py
"""

import argparse
from pathlib import Path

import numpy as np

from clamkit import data

PER_CLASS = {"train": 600, "test": 400}


def first_of_each_class(y: np.ndarray, count: int) -> np.ndarray:
    """Indices of the first `count` samples of each class, in file order."""
    return np.sort(np.concatenate([np.flatnonzero(y == label)[:count] for label in np.unique(y)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with the four *-ubyte.gz files")
    full = data.load("fashion_mnist", data_dir=parser.parse_args().data_dir)
    arrays = {}
    for part, count in PER_CLASS.items():
        x, y = getattr(full, f"x_{part}").numpy(), getattr(full, f"y_{part}").numpy()
        kept = first_of_each_class(y, count)
        arrays |= {f"x_{part}": x[kept, 0], f"y_{part}": y[kept].astype(np.uint8)}
    path = Path(__file__).parent / "fashion_mnist_mini.npz"
    np.savez_compressed(path, **arrays, class_names=np.array(full.class_names))
    print(f"wrote {path.name}: {path.stat().st_size / 1e6:.2f} MB, SHA-256 of the content {data.load(path).sha256}")


if __name__ == "__main__":
    main()
