"""Recipes are sound for every dataset. The paper's: its appendix, and what only the released code says."""

import pytest

from clamkit import RunConfig
from clamkit.errors import ClamkitError
from clamkit.lab.recipes import PAPER_EPOCHS, PAPER_HOURS, RECIPES, WEIGHT_DECAY, recipe

FIVE = ["cifar10", "cifar100", "fashion_mnist", "mini_imagenet", "imagenet"]


def test_epochs_hours_and_decay_by_dataset():
    assert [PAPER_EPOCHS[dataset] for dataset in FIVE] == [100, 150, 50, 150, 88]
    assert [PAPER_HOURS[dataset] for dataset in FIVE] == [3, 4.5, 2, 4.5, 48]
    assert [WEIGHT_DECAY[dataset] for dataset in FIVE] == [1e-3, 5e-4, 1e-3, 1e-3, 1e-5]


@pytest.mark.parametrize("dataset", [*FIVE, "inaturalist2018", "fashion_mnist_mini", "my/photos"])
def test_a_recipe_is_a_run_at_the_papers_scale(dataset):
    config = RunConfig(**recipe("paper", dataset))
    assert (config.dataset, config.model, config.stem, config.image_size) == (dataset, "resnet50", "imagenet", 224)
    assert (config.batch_size, config.lr, config.momentum, config.amp) == (128, 0.1, 0.9, True)


@pytest.mark.parametrize(
    ("dataset", "epochs", "decay", "smoothing"),
    [
        ("cifar10", 100, 1e-3, 0.0),
        ("cifar100", 150, 5e-4, 0.0),
        ("imagenet", 88, 1e-5, 0.1),
        ("inaturalist2018", 88, 1e-5, 0.1),  # as ImageNet
        ("fashion_mnist_mini", 50, 1e-3, 0.0),  # as its parent
        ("my/photos", 100, 1e-3, 0.0),  # as CIFAR-10
    ],
)
def test_what_differs_by_dataset(dataset, epochs, decay, smoothing):
    fields = recipe("paper", dataset)
    assert (fields["epochs"], fields["weight_decay"], fields["label_smoothing"]) == (epochs, decay, smoothing)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dataset", [*FIVE, "inaturalist2018", "fashion_mnist_mini", "my/photos"])
def test_every_recipe_is_a_sound_run_of_its_dataset(name, dataset):
    assert RunConfig(**recipe(name, dataset)).dataset == dataset


def test_the_small_recipe_is_the_defaults():
    assert RunConfig(**recipe("small", "cifar10")) == RunConfig(dataset="cifar10")


def test_unknown_recipes():
    with pytest.raises(ClamkitError, match="unknown recipe 'fats'. Did you mean 'fast'"):
        recipe("fats", "cifar10")
