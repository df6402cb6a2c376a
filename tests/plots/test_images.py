"""Pictures of images show the pixels they should."""

from dataclasses import replace

import numpy as np
import PIL.Image
import pytest
import torch

from clamkit import load_data, plots
from clamkit.data.readers import Files
from clamkit.errors import ClamkitError


@pytest.fixture
def stripes(small_npz):
    return load_data(small_npz)


def sheet(figure) -> tuple[np.ndarray, list[str]]:
    """The one picture of a figure, and the names of its rows."""
    (axis,) = figure.axes
    (shown,) = axis.images
    return np.asarray(shown.get_array()), [text.get_text() for text in axis.get_yticklabels()]


def test_samples_are_the_first_training_images(stripes):
    pixels, names = sheet(plots.sample_images(stripes, per_class=4))
    assert names == ["top", "middle", "bottom"]
    assert pixels.shape == (3 * 13, 4 * 13, 3), "three rows of four images of 12 pixels, and a white line between"
    second_of_bottom = stripes.x_train[stripes.y_train == 2][1]
    np.testing.assert_array_equal(pixels[26:38, 13:25], second_of_bottom.permute(1, 2, 0))
    assert (pixels[12] == 255).all()
    assert (pixels[:, 12] == 255).all()
    assert sheet(plots.sample_images(stripes, most=2))[1] == ["top", "middle"]


def test_crops_and_jitter_of_the_same_images(stripes):
    first = stripes.x_train[stripes.y_train == 1][0].permute(1, 2, 0).numpy()

    def is_first(pixels: np.ndarray) -> bool:
        """As it is or mirrored, which is part of both augmentations."""
        return (pixels == first).all() or (pixels == first[:, ::-1]).all()

    pixels, names = sheet(plots.augmented_images(stripes, label=1))
    assert names == ["no crop", "crop ≥ 0.6", "crop ≥ 0.3"]
    assert is_first(pixels[:12, :12])
    assert not is_first(pixels[26:38, :12]), "the tightest crop is not the image"
    pixels, names = sheet(plots.augmented_images(stripes, (0, 0.5), augmentation="jitter", label=1))
    assert names == ["no jitter", "jitter ±0.5"]
    assert is_first(pixels[:12, :12])
    assert not is_first(pixels[13:25, :12])


def test_classes_with_few_images(stripes):
    three = torch.cat([torch.nonzero(stripes.y_train == 0).flatten()[:3], torch.nonzero(stripes.y_train > 0).flatten()])
    few = replace(stripes, x_train=stripes.x_train[three], y_train=stripes.y_train[three])
    pixels, _ = sheet(plots.sample_images(few, per_class=5))
    assert pixels.shape == (3 * 13, 5 * 13, 3)
    assert (pixels[:13, 3 * 13 :] == 255).all(), "white where the class has no more"
    assert (pixels[13:25, 3 * 13 : 3 * 13 + 12] < 255).any()


def test_images_in_files(stripes, tmp_path):
    names = [tmp_path / f"{i}.png" for i in range(6)]
    for name, image in zip(names, stripes.x_train[:6], strict=True):
        PIL.Image.fromarray(image.permute(1, 2, 0).numpy()).save(name)
    files = replace(stripes, x_train=Files(names, 12), y_train=stripes.y_train[:6])
    pixels, rows = sheet(plots.sample_images(files))
    assert rows == ["top", "middle", "bottom"]
    np.testing.assert_array_equal(pixels[:12, :12], files.x_train.read(0).permute(1, 2, 0))
    assert sheet(plots.augmented_images(files, (1.0, 0.5), label=2))[0].shape == (2 * 13, 2 * 13, 3)


def test_an_unknown_augmentation(stripes):
    with pytest.raises(ClamkitError, match=r"unknown augmentation 'corp'. Did you mean 'crop'"):
        plots.augmented_images(stripes, augmentation="corp")


def test_grey_images_are_one_sheet_of_grey():
    pixels, names = sheet(plots.sample_images(load_data("fashion_mnist_mini"), per_class=2, most=3))
    assert pixels.ndim == 2
    assert names == ["T-shirt/top", "Trouser", "Pullover"]


def test_many_classes_stand_in_several_columns(stripes):
    names = tuple(f"class {i} of ${i}^2$" for i in range(60))
    many = replace(stripes, y_train=torch.arange(60), class_names=names)
    figure = plots.sample_images(many, per_class=2, most=100)
    assert [len(axis.get_yticklabels()) for axis in figure.axes] == [25, 25, 10]
    assert figure.axes[1].get_yticklabels()[0].get_text() == r"class 25 of \$25^2\$", "no formula"
    plots.png(figure)


def test_image_files_that_do_not_decode(stripes, tmp_path, caplog):
    """The next one stands for it where it may be left out."""
    (tmp_path / "bad.png").write_bytes(b"no image")
    names = [tmp_path / "bad.png", *(tmp_path / f"{i}.png" for i in range(3))]
    for i, name in enumerate(names[1:]):
        PIL.Image.new("RGB", (12, 12), (i, i, i)).save(name)
    files = replace(stripes, x_train=Files(names, 12), y_train=torch.tensor([0, 0, 1, 2]))
    with pytest.raises(ClamkitError, match=r"1 of 2 image files do not decode: .*bad.png"):
        plots.sample_images(files)
    assert sheet(plots.sample_images(files, skip_bad=True, per_class=1))[0].shape == (3 * 13, 13, 3)
    assert "top: 1 of 2 image files do not decode" in caplog.text
