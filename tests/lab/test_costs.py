"""What runs cost: FLOP counted by hand, and the sentence for people."""

import re

import pytest

from clamkit import RunConfig, load_data
from clamkit.lab import costs
from clamkit.lab.recipes import recipe

CIFAR_IMAGES = 50_000


def test_flop_of_a_fastnet_by_hand():
    """Multiply-adds of each convolution on 31, 15, 7 and 3 places a side; forward, and twice that backward."""
    layers = [(24, 64, 31), (64, 64, 15), (64, 256, 15), (256, 256, 7), (256, 256, 7), (256, 256, 3)]
    forward = sum(9 * before * after * side**2 for before, after, side in layers) + 256 * 10
    first = 12 * 24 * 31**2  # fixed: neither its weights nor the images need a gradient
    config = RunConfig(dataset="cifar10", model="fastnet", epochs=3)
    expected = 2 * (3 * forward + first) * CIFAR_IMAGES * 3
    assert costs.training_flop(config) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_the_papers_run_costs_what_is_known_of_resnet50():
    """4.1 billion multiply-adds an image at 224 px: three times that for training, 100 epochs of 50,000 images."""
    config = RunConfig(**recipe("paper", "cifar10"))
    assert costs.training_flop(config) == pytest.approx(2 * 3 * 4.1e9 * CIFAR_IMAGES * 100, rel=0.03)


def test_a_fast_run_costs_a_two_hundredth_of_the_papers():
    fast, paper = (costs.training_flop(RunConfig(**recipe(name, "cifar10"))) for name in ("fast", "paper"))
    assert fast <= paper / 200


def test_images_kept_out_are_not_paid_for():
    whole = RunConfig(dataset="cifar10", epochs=2)
    flop = costs.training_flop(whole)
    assert costs.training_flop(whole.model_copy(update={"holdout": 500})) == pytest.approx(0.9 * flop)
    assert costs.training_flop(whole.model_copy(update={"per_class": 100})) == pytest.approx(flop / 50)


def test_the_sentence(monkeypatch):
    monkeypatch.setattr(costs, "flop_per_second", lambda *setting: 1e9)
    known = RunConfig(dataset="cifar10", model="fastnet", epochs=16)
    said = costs.costs([known, RunConfig(dataset="my/photos")])
    assert f"some {costs.duration(costs.training_flop(known) / 1e9)} of this machine" in said
    assert "(runs of unknown size, not counted: 1)" in said
    assert said.endswith("by the paper's own recipe 3 GPU hours (its appendix)")
    tail = RunConfig(dataset="inaturalist2018")
    assert costs.costs([known, tail]).endswith("; the paper prints no hours for inaturalist2018")


def test_an_a100_is_as_fast_as_was_published_for_the_network(monkeypatch):
    """NVIDIA needs about 14 hours for 90 epochs of ImageNet with a ResNet-50; for other networks nothing is said."""
    monkeypatch.setattr(costs, "flop_per_second", lambda *setting: 1e9)
    resnet = RunConfig(dataset="imagenet", model="resnet50", stem="imagenet", epochs=90)
    assert re.search(r", (13|14) hours of one A100 at the speed published for resnet50;", costs.costs([resnet]))
    fast = RunConfig(dataset="cifar10", model="fastnet", epochs=16)
    assert "published for fastnet and resnet50;" in costs.costs([resnet, fast])
    assert "A100" not in costs.costs([fast, RunConfig(dataset="cifar10", model="tiny_resnet")])
    widths = [RunConfig(**recipe("fast", dataset)) for dataset in ("fashion_mnist", "cifar10", "cifar100")]
    assert len({config.model for config in widths}) == 3
    assert "of one A100 at the speed published for fastnet;" in costs.costs(widths)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.049, "0.049 seconds"),
        (0.96, "0.96 seconds"),
        (1, "1 second"),
        (59.4, "59 seconds"),
        (60, "1 minute"),
        (597.1, "10 minutes"),
        (5400, "1.5 hours"),
        (36_000, "10 hours"),
        (4e9, "1,111,111 hours"),
    ],
)
def test_durations_are_said_in_the_unit_that_suits(seconds, said):
    assert costs.duration(seconds) == said


def test_speed_is_measured():
    assert costs.flop_per_second("tiny_resnet", 10, 1, "small", 28) > 1e6


def test_runs_of_unknown_size_alone_do_not_cost_nothing():
    said = costs.costs([RunConfig(dataset="own.npz")])
    assert "what these runs cost is not known" in said
    assert "A100" not in said
    assert "0" not in said


def test_the_table_has_the_sizes_of_what_is_embedded():
    for name in ("fashion_mnist_mini", "fashion_mnist_tail"):
        data = load_data(name)
        assert costs.SHAPES[name] == (len(data.x_train), *data.x_train.shape[1:3], data.num_classes)


def test_no_more_images_are_counted_than_there_are():
    whole, asked = (costs.training_flop(RunConfig(per_class=count)) for count in (None, 10_000))
    assert asked == whole
    held, both = (costs.training_flop(RunConfig(per_class=count, holdout=100)) for count in (None, 600))
    assert both == held == pytest.approx(whole * 5 / 6)
