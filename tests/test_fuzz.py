"""Anything may come in; what comes out is right or a ClamkitError, never another crash. 5,250 cases."""

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

from clamkit import data, metrics
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.methods import METHODS, build_method
from clamkit.models import MODELS
from clamkit.runs import COLUMNS, Run
from clamkit.sweep import Grid, parameters_of

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


def attempt(work, *arguments, **options):
    """The result, or None for a documented refusal."""
    try:
        return work(*arguments, **options)
    except ClamkitError:
        return None


@fuzz(max_examples=1000)
@given(fields | nearly_good | st.dictionaries(st.text(max_size=12), anything, max_size=4))
def test_configs(given_fields):
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
    notebook = parameters_of(config, {"method", "seed"})
    assert RunConfig.from_notebook(notebook).folder() == folder, "as data through a notebook and back"


@fuzz(max_examples=1200)
@given(st.dictionaries(st.sampled_from(["In", "scale", "options", "method", "seed", "epochs"]), anything, max_size=4))
def test_notebook_parameters(namespace):
    namespace.pop("In", None)  # IPython's own
    attempt(RunConfig.from_notebook, namespace)


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


@fuzz(max_examples=800)
@given(grids | anything)
def test_grids(content):
    grid = attempt(Grid._parse, "fuzzed", content)
    runs = grid and attempt(grid.runs)
    assert not runs or len({config.folder() for config in runs}) <= len(runs)


@fuzz(max_examples=400)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | grids.map(lambda g: yaml.safe_dump(g).encode()))
def test_grid_files(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(content)
    grid = attempt(Grid.load, path)
    if grid:
        attempt(grid.configs)


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


@fuzz(max_examples=250)
@given(histories, st.binary(min_size=1, max_size=4), st.data())
def test_histories(tmp_path_factory, history, noise, draw):
    """What was saved is read; a file with other bytes in it is read the same or refused."""
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    folder.mkdir(exist_ok=True)
    saved = columns(*history)
    Run(folder).save_history(saved)
    read = Run(folder).history
    for name in COLUMNS:
        assert np.array_equal(read[name], saved[name].flatten(), equal_nan=True)
    attempt(metrics.fairness_over_epochs, read)
    attempt(metrics.settling_epoch, read)
    raw = bytearray((folder / "history.parquet").read_bytes())
    place = draw.draw(st.integers(0, len(raw) - 1))
    raw[place : place + len(noise)] = noise
    (folder / "history.parquet").write_bytes(raw)
    hurt = attempt(lambda: Run(folder).history)
    assert hurt is None or hurt.equals(read)


frames = st.dictionaries(
    st.sampled_from(["epoch", "class", "weight", "test_accuracy", "other"]),
    st.lists(numbers, min_size=2, max_size=2),
    min_size=3,
)


@fuzz(max_examples=400)
@given(frames)
def test_histories_by_hand(columns):
    frame = pd.DataFrame(columns)
    attempt(metrics.fairness_over_epochs, frame)
    attempt(metrics.settling_epoch, frame)
    attempt(metrics.fairness, frame.iloc[:, 0])
    attempt(metrics.order_agreement, frame.iloc[:, 0], frame.iloc[:, 1])


sizes = st.lists(st.integers(0, 6) | st.integers(0, 300), min_size=1, max_size=60)


@fuzz(max_examples=700)
@given(
    sizes,
    st.sampled_from([*METHODS]),
    st.fixed_dictionaries({}, optional={key: numbers for method in METHODS.values() for key in method.takes}),
    st.integers(0, 2**32),
)
def test_class_sizes_through_every_method(counts, method, chosen, seed):
    """Class sizes of any kind, empty classes too: counted right, and the weights stay a distribution."""
    config = attempt(RunConfig, method=method, **chosen) or RunConfig(method=method)
    weighter = attempt(build_method, method, None, len(counts), **config.method_settings())
    if weighter is None:
        return
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(counts)), counts)
    logits = rng.normal(size=(len(y), len(counts))).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that classes had no sample
        for _ in range(2):
            if attempt(lambda: weighter.observe(torch.from_numpy(logits), torch.from_numpy(y)) or True):
                right = [
                    np.mean(logits[y == k].argmax(1) == k) if (y == k).any() else np.nan for k in range(len(counts))
                ]
                assert np.allclose(weighter.counted()[0], right, equal_nan=True)
                assert np.allclose(metrics.class_accuracy(y, logits.argmax(1), len(counts)), right, equal_nan=True)
            attempt(weighter.step)
    weights = weighter.weights.numpy()
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(len(counts))


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


@fuzz(max_examples=500)
@given(st.lists(arrays, min_size=4, max_size=4), sizes, st.booleans())
def test_datasets(parts, counts, sound):
    names = ("x_train", "y_train", "x_test", "y_test")
    content = dict(zip(names, parts, strict=True))
    if sound:
        content["class_names"] = [f"class {i}" for i in range(len(counts))]
        y = np.repeat(np.arange(len(counts)), counts)
        content |= {"y_train": y, "x_train": np.zeros((len(y), 4, 4), np.uint8)}
        content |= {"y_test": y[:1], "x_test": np.zeros((len(y[:1]), 4, 4), np.uint8)}
    dataset = attempt(data._dataset, "fuzzed", **content)
    if sound:
        assert (dataset is not None) == (len(counts) > 1 and min(counts) > 0)
        assert dataset is None or dataset.sizes.tolist() == counts


@pytest.mark.parametrize("name", texts)
def test_names_of_datasets_that_are_none(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attempt(data.load, name) is None
    assert not list(Path(tmp_path).rglob("*"))
