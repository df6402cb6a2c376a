"""Small replicas of the big datasets in their true layouts, and an image folder of one's own."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def save_noise(path: Path, size: tuple[int, int], rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(path)


@pytest.fixture
def imagenet(tmp_path) -> Path:
    """Two classes of 4 training and 2 validation images, which differ in size."""
    rng, root = np.random.default_rng(0), tmp_path / "imagenet"
    for part, count in (("train", 4), ("val", 2)):
        for name in ("n01440764", "n01443537"):
            for i in range(count):
                save_noise(root / part / name / f"{name}_{i}.JPEG", (40 + 7 * i, 50), rng)
    return root


@pytest.fixture
def inaturalist(tmp_path) -> Path:
    """Three species with 2 training images and 1 validation image each; the split is in the annotation files."""
    rng, root = np.random.default_rng(0), tmp_path / "inat"
    for part, images in (("train", 6), ("val", 3)):
        content = {"images": [], "annotations": [], "categories": []}
        for i in range(images):
            category = i % 3
            name = f"train_val2018/Plantae/{category}/{part}{i}.jpg"
            save_noise(root / "2018" / "Plantae" / str(category) / f"{part}{i}.jpg", (60, 45), rng)
            content["images"].append({"id": 100 + i, "file_name": name})
            content["annotations"].append({"image_id": 100 + i, "category_id": category})
        (root / f"{part}2018.json").write_text(json.dumps(content))
    (root / "categories.json").write_text(json.dumps([{"id": i, "name": f"Species {i}"} for i in range(3)]))
    return root


@pytest.fixture
def make_folder(tmp_path):
    """Makes an image folder of ants and bees: make_folder(sides of the images, name of the test part)."""

    def make(sizes=(12,), test="test") -> Path:
        root = tmp_path / "insects"
        for part, count in (("train", 4), (test, 2)):
            for label, name in enumerate(("ant", "bee")):
                (root / part / name).mkdir(parents=True)
                for i in range(count):
                    size = sizes[i % len(sizes)]
                    Image.new("RGB", (size, size), (100 * label, 50, i)).save(root / part / name / f"{i}.png")
        return root

    return make


@pytest.fixture
def arrays(small_npz) -> dict[str, np.ndarray]:
    """What is in `small_npz`."""
    with np.load(small_npz) as archive:
        return dict(archive)
