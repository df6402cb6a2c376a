"""What a training notebook runs: what was asked for, or the first smaller thing that can be had; and its verdict."""

import json

import pytest

from clamkit import RunConfig, paths, train
from clamkit.data import datasets
from clamkit.errors import ClamkitError
from clamkit.lab import costs, results
from clamkit.lab.execution import run_parameters
from clamkit.lab.grids import Grid
from clamkit.lab.notebooks import notebook_config
from helpers import training

OWN_GRIDS = {"11_train_cifar10": "fast_cifar10", "12_train_cifar100": "fast_cifar100"}


@pytest.fixture
def no_results(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "folder", lambda: tmp_path / "no results")


@pytest.fixture
def no_network(monkeypatch):
    def fail(*given):
        raise ClamkitError("no network")

    monkeypatch.setattr(training, "fetch_data", fail)


@pytest.fixture
def takes(monkeypatch):
    """takes(minutes): what every training is expected to take."""

    def set_minutes(minutes):
        monkeypatch.setattr(costs, "training_seconds", lambda *given: 60 * minutes)

    return set_minutes


def test_what_is_committed_is_read():
    """The embedded grid has 15 epochs of Normal and CLAM at crop 0.3."""
    chosen = training.plan(RunConfig(), "fashion_mnist_mini", beside="normal", minutes=0)
    assert "trained before" in chosen.why
    assert (chosen.config.hash(), chosen.other.method) == (RunConfig().hash(), "normal")
    run = training.read_or_train(chosen.config)
    assert isinstance(run, results.CommittedRun)
    assert run.name == RunConfig().folder().as_posix()
    assert results.find(RunConfig(seed=77)) is None


def test_a_missing_dataset_is_said_and_replaced(no_network):
    config = RunConfig(dataset="cifar100_full.npz", crop_lower_bound=0.3, epochs=99)
    chosen = training.plan(config, "cifar100_full.npz", beside="normal", minutes=10)
    first, second = chosen.why.splitlines()
    assert first.startswith("cifar100_full.npz, tiny_resnet, 99 epochs: the images are not here")
    assert second.startswith("Instead fashion_mnist_mini, tiny_resnet, 15 epochs: trained before")
    assert chosen.config.identity() == RunConfig().identity()
    assert chosen.images.name == "fashion_mnist_mini"


def test_results_are_shown_without_their_images(no_network):
    config = RunConfig(dataset="cifar10", per_class=1000)
    chosen = training.plan(config, "cifar10", beside="normal", minutes=10)
    assert chosen.config.dataset == "cifar10"
    assert "the pictures are of the embedded ones" in chosen.why
    assert chosen.images.name == "fashion_mnist_mini"


def test_a_long_training_is_not_begun_unasked(no_results, takes, monkeypatch):
    takes(6)
    config = RunConfig(epochs=50, seed=5)
    chosen = training.plan(config, "fashion_mnist_mini", beside="normal", minutes=10)  # 6 minutes each
    assert "12 minutes of training, more than minutes=10" in chosen.why
    assert (chosen.config.epochs, chosen.config.seed) == (15, 5), "the last is taken in any case"
    assert training.plan(config, "fashion_mnist_mini", minutes=10).config.epochs == 50, "one run alone is short enough"
    here = RunConfig(**(config.model_dump() | {"method": "normal"}))
    monkeypatch.setattr(training.results, "find", lambda one, runs=None: one if one == here else None)
    chosen = training.plan(config, "fashion_mnist_mini", beside="normal", minutes=10)
    assert "trained here, in about 6 minutes" in chosen.why, "the other is there already"
    assert training.plan(config, "fashion_mnist_mini", beside="normal").config.epochs == 50, "asked for"


@pytest.mark.parametrize(("minutes", "said"), [(0.01, "a minute"), (0.5, "a minute"), (1.2, "3 minutes")])
def test_how_long_it_takes_is_said_in_whole_minutes(no_results, takes, minutes, said):
    takes(minutes)
    chosen = training.plan(RunConfig(seed=5), "fashion_mnist_mini", beside="normal", minutes=10)
    assert chosen.why.endswith(f"trained here, in about {said}."), "of both runs"


def test_ones_own_data_is_not_replaced():
    with pytest.raises(ClamkitError, match="there is no dataset at 'my/photos'"):
        training.plan(RunConfig(dataset="my/photos"), "cifar10", minutes=10)


def test_nothing_stands_beside_itself(small_npz):
    config = RunConfig(dataset=str(small_npz), method="normal", epochs=1)
    chosen = training.plan(config, "cifar10", beside="normal", minutes=10)
    assert (chosen.other, chosen.title) == (None, "stripes, tiny_resnet, 1 epoch")


def test_a_finished_run_is_read_and_made_anew_only_on_demand(small_npz, monkeypatch):
    config = RunConfig(dataset=str(small_npz), epochs=1)
    run = train(config)
    asked = []
    monkeypatch.setattr(training, "train", lambda config, **options: asked.append(config) or run)
    assert training.read_or_train(config).name == run.name
    assert asked == []
    training.read_or_train(config, anew=True)
    assert asked == [config]


def test_a_sweep_is_one_training_and_nothing_else():
    parameters = run_parameters(RunConfig(method="ggf"), {"method", "options", "scale", "beside", "minutes"})
    assert (parameters["scale"], parameters["beside"], parameters["minutes"]) == ("small", None, None)
    assert "minutes" not in run_parameters(RunConfig(), {"method", "options"})


@pytest.mark.parametrize("name", sorted(OWN_GRIDS))
def test_the_notebooks_ask_for_what_the_grids_have(name):
    """Or the committed results of a grid would never be found."""
    cells = json.loads((paths.notebooks() / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    source = next("".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    namespace: dict = {}
    exec(source, namespace)
    config = notebook_config(namespace, paper_dataset=name.split("_")[-1])
    made = {run.hash() for run in Grid.load(OWN_GRIDS[name]).configs()}
    assert {config.hash(), config.model_copy(update={"method": "normal"}).hash()} <= made


# ------------------------------------------------------------------------------------------------ the verdict


def test_the_verdict_by_hand(memory_run):
    """Of 80 and 60 %: average 70, std √200 = 14.1, worst 60; of 90 and 60 %: 75, √450 = 21.2, 60."""
    normal, clam = memory_run([0.9, 0.6], method="normal"), memory_run([0.8, 0.6], method="clam")
    said = training.verdict(clam, normal, "two classes")
    assert said.startswith(
        "CLAM beside Normal on two classes (crop 0.3, one seed): average 70.0 % against 75.0 % (−5.0)"
    )
    assert "std of the classes 14.1 % against 21.2 % (−7.1), worst class 60.0 % against 60.0 % (+0.0)" in said
    assert said.endswith("it leaves open whether the classes are closer and costs 5.0 points on average.")
    even = memory_run([0.7, 0.7], method="clam")
    assert "brings the classes closer and gains 0.0" in training.verdict(even, memory_run([0.8, 0.6]), "two")
    assert "drives the classes apart" in training.verdict(memory_run([0.9, 0.5]), memory_run([0.8, 0.6]), "two")
    assert "nothing beside it" in training.verdict(clam, None, "two classes")
    assert said.count(". ") == 0, "one sentence"


def test_the_tail_of_many_classes_has_its_name(memory_run):
    run = memory_run([i / 100 for i in range(100)])
    assert "worst tenth of the classes 4.5 %" in training.verdict(run, None, "a hundred")


def test_fetching_is_tried_only_for_what_can_be_fetched(monkeypatch):
    asked = []
    monkeypatch.setattr(training, "fetch_data", lambda *given: asked.append(given))
    monkeypatch.setattr(datasets.DatasetSpec, "find", lambda *given: None)
    chosen = training.plan(RunConfig(dataset="imagenet", epochs=1), "imagenet", instead=[{}], minutes=0)
    assert chosen.config.dataset == "fashion_mnist_mini"
    assert asked == [], "ImageNet is not to be fetched"
