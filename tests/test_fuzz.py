"""Anything may come in; what comes out is right or a ClamkitError, never another crash. 5,250 cases, or a few."""

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clamkit import metrics
from clamkit.data.dataset import dataset_from_arrays
from clamkit.data.datasets import load_data
from clamkit.engine.config import MODELS, RunConfig
from clamkit.engine.store import COLUMNS, RunFolder
from clamkit.errors import ClamkitError
from clamkit.lab.grids import Grid
from clamkit.lab.notebooks import notebook_config
from clamkit.methods.specs import METHODS
from clamkit.methods.weighters import build_method
from helpers.run_measures import fairness_over_epochs, order_agreement, settling_epoch
from tests.faults.fuzzing import fuzzed

fuzz = partial(settings, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
numbers = st.floats() | st.integers() | st.integers(-3, 3) | st.floats(0, 1)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=30)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3)
)
texts = ["/", "..", "../..", "", "~", "~nobody-here/x", "a" * 5000, "\0", ".hidden", "a\\b", "é/ü.npz", "\n"]
choices = {
    "method": st.sampled_from([*METHODS]),
    "model": st.sampled_from([*MODELS]),
    "protocol": st.sampled_from(["paper", "released"]),
    "augmentation": st.sampled_from(["crop", "jitter"]),
    "dataset": st.sampled_from(texts) | st.text(max_size=30),
}
good = {
    name: choices.get(name, st.booleans() if "bool" in str(field.annotation) else numbers)
    for name, field in RunConfig.model_fields.items()
}
fields = st.fixed_dictionaries({}, optional={name: values | scalars for name, values in good.items()})
nearly_good = st.fixed_dictionaries({}, optional=choices | {"seed": st.integers(0), "epochs": st.integers(1)})


def some_or(many: int):
    """Few cases in the quick set, all of them among the slow tests."""
    few, all_ = pytest.param(many // 50, id="some"), pytest.param(many, id="all", marks=pytest.mark.slow)
    return pytest.mark.parametrize("cases", [few, all_])


def attempt(work, *arguments, **options):
    """The result, or None for a documented refusal."""
    try:
        return work(*arguments, **options)
    except ClamkitError:
        return None


@some_or(1000)
def test_configs(cases):
    @fuzz(max_examples=cases)
    @given(fields | nearly_good | st.dictionaries(st.text(max_size=12), anything, max_size=4))
    def check(given_fields):
        config = attempt(RunConfig, **given_fields)
        if config is None:
            return
        folder = config.folder()
        assert not folder.is_absolute()
        assert len(folder.parts) == 4
        assert not {".", ".."} & set(folder.parts)
        assert all(0 < len(part.encode()) < 256 and "\0" not in part for part in folder.parts)
        again = RunConfig(**json.loads(json.dumps(config.model_dump())))
        assert again.folder() == folder
        options = config.model_dump(exclude_defaults=True)
        notebook = {"method": options.pop("method", "clam"), "seed": options.pop("seed", 0), "options": options}
        assert notebook_config(notebook).folder() == folder, "as data through a notebook and back"

    check()


@some_or(1200)
def test_notebook_parameters(cases):
    @fuzz(max_examples=cases)
    @given(st.dictionaries(st.sampled_from(["scale", "options", "method", "seed", "epochs"]), anything, max_size=4))
    def check(namespace):
        attempt(notebook_config, namespace)

    check()


grids = st.fixed_dictionaries(
    {},
    optional={
        "axes": st.dictionaries(
            st.sampled_from([*RunConfig.model_fields]) | scalars, st.lists(scalars, max_size=3) | anything, max_size=3
        ),
        "fixed": fields | anything,
        "grids": st.lists(anything | st.fixed_dictionaries({"axes": st.just({"seed": [1, 2]})}), max_size=2) | anything,
        "notebook": st.text(max_size=5) | anything,
    },
)


@some_or(800)
def test_grids(cases):
    @fuzz(max_examples=cases)
    @given(grids | anything)
    def check(content):
        grid = attempt(Grid.parse, "fuzzed", content)
        runs = grid and attempt(grid.runs)
        assert not runs or len({config.folder() for config in runs}) <= len(runs)

    check()


@some_or(400)
def test_grid_files(cases, tmp_path):
    @fuzz(max_examples=cases)
    @given(
        st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | grids.map(lambda g: yaml.safe_dump(g).encode())
    )
    def check(content):
        path = tmp_path / "fuzzed.yaml"
        path.write_bytes(content)
        grid = attempt(Grid.load, path)
        if grid:
            attempt(grid.configs)

    check()


histories = st.builds(
    lambda epochs, classes, seed, wild: (epochs, classes, np.random.default_rng(seed), wild),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 2**32),
    st.sampled_from([None, np.nan, np.inf, -1.0, 2.0]),
)


def columns(epochs, classes, rng, wild):
    found = {name: torch.from_numpy(rng.random((epochs, classes))) for name in COLUMNS}
    if wild is not None:
        found[str(rng.choice(COLUMNS))][rng.integers(epochs), rng.integers(classes)] = wild
    return found


@some_or(250)
def test_histories(cases, tmp_path):
    """What was saved is read; a file with other bytes in it is read the same or refused."""

    @fuzz(max_examples=cases)
    @given(histories, st.binary(min_size=1, max_size=4), st.data())
    def check(history, noise, draw):
        saved = columns(*history)
        RunFolder(tmp_path).save_history(saved)
        read = RunFolder(tmp_path).history
        for name in COLUMNS:
            assert np.array_equal(read[name], saved[name].flatten(), equal_nan=True)
        attempt(fairness_over_epochs, read)
        attempt(settling_epoch, read)
        raw = bytearray((tmp_path / "history.parquet").read_bytes())
        place = draw.draw(st.integers(0, len(raw) - 1))
        raw[place : place + len(noise)] = noise
        (tmp_path / "history.parquet").write_bytes(raw)
        hurt = attempt(lambda: RunFolder(tmp_path).history)
        assert hurt is None or hurt.equals(read)

    check()


frames = st.dictionaries(
    st.sampled_from(["epoch", "class", "weight", "test_accuracy", "other"]),
    st.lists(numbers, min_size=2, max_size=2),
    min_size=3,
)


@some_or(400)
def test_histories_by_hand(cases):
    @fuzz(max_examples=cases)
    @given(frames)
    def check(columns):
        frame = pd.DataFrame(columns)
        attempt(fairness_over_epochs, frame)
        attempt(settling_epoch, frame)
        attempt(metrics.fairness, frame.iloc[:, 0])
        attempt(order_agreement, frame.iloc[:, 0], frame.iloc[:, 1])

    check()


sizes = st.lists(st.integers(0, 6) | st.integers(0, 300), min_size=1, max_size=60)


@some_or(700)
def test_class_sizes_through_every_method(cases):
    """Class sizes of any kind, empty classes too: counted right, and the weights stay a distribution."""

    @fuzz(max_examples=cases)
    @given(
        sizes,
        st.sampled_from([*METHODS]),
        st.fixed_dictionaries({}, optional={key: numbers for method in METHODS.values() for key in method.settings}),
        st.integers(0, 2**32),
    )
    def check(counts, method, chosen, seed):
        config = attempt(RunConfig, method=method, **chosen) or RunConfig(method=method)
        known = np.maximum(counts, 1)  # the sizes a method may look at
        weighter = attempt(build_method, method, None, len(counts), sizes=known, **config.method_settings())
        if weighter is None:
            return
        n, rng = len(counts), np.random.default_rng(seed)
        y = np.repeat(np.arange(n), counts)
        logits = rng.normal(size=(len(y), n)).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that classes had no sample
            for _ in range(2):
                if attempt(lambda: weighter.observe(torch.from_numpy(logits), torch.from_numpy(y)) or True):
                    right = [np.mean(logits[y == k].argmax(1) == k) if (y == k).any() else np.nan for k in range(n)]
                    assert np.allclose(weighter.counted()[0], right, equal_nan=True)
                    assert np.allclose(metrics.class_accuracy(y, logits.argmax(1), n), right, equal_nan=True)
                attempt(weighter.step)
        weights = weighter.weights.numpy()
        assert np.isfinite(weights).all()
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(n)

    check()


arrays = st.builds(
    lambda kind, shape, low, high, seed: (
        np.random.default_rng(seed).integers(low, max(low + 1, high), shape).astype(kind)
    ),
    st.sampled_from([np.uint8, np.int64, np.float32, bool]),
    st.lists(st.integers(0, 4), max_size=5),
    st.integers(0, 2),
    st.integers(0, 9),
    st.integers(0, 100),
)


@some_or(500)
def test_datasets(cases):
    @fuzz(max_examples=cases)
    @given(st.lists(arrays, min_size=4, max_size=4), sizes, st.booleans())
    def check(parts, counts, sound):
        content = dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True))
        if sound:
            content["class_names"] = [f"class {i}" for i in range(len(counts))]
            y = np.repeat(np.arange(len(counts)), counts)
            content |= {"y_train": y, "x_train": np.zeros((len(y), 4, 4), np.uint8)}
            content |= {"y_test": y[:1], "x_test": np.zeros((len(y[:1]), 4, 4), np.uint8)}
        dataset = attempt(dataset_from_arrays, "fuzzed", **content)
        if sound:
            assert (dataset is not None) == (len(counts) > 1 and min(counts) > 0)
            assert dataset is None or dataset.sizes.tolist() == counts

    check()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="bounds the memory as Linux does")
def test_mutated_files_and_small_ones_that_say_they_are_large(tmp_path):
    """Every kind of file that is read, in a process with little memory; `make faults` has 20,000 of them."""
    count = fuzzed(tmp_path, 500)
    assert count["crashes"] == 0
    assert count["bombs"] == 11
    assert count["inputs"] == count["read"] + count["refused in words"] == 500
    assert min(count["read"], count["refused in words"]) > 20


@pytest.mark.parametrize("name", texts)
def test_names_of_datasets_that_are_none(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attempt(load_data, name) is None
    assert not list(tmp_path.rglob("*"))
