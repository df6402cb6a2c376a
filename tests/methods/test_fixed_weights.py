"""Class weights that are given: numbers, files and runs of them, and what bad ones get."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from clamkit import RunConfig, train
from clamkit.errors import ClamkitError
from clamkit.methods.peers import Fixed


@pytest.mark.parametrize(
    "given",
    [
        [1, 3, 4],
        (0.125, 0.375, 0.5),
        np.array([1e300, 3e300, 4e300]),
        torch.tensor([1.0, 3.0, 4.0]),
        pd.Series([1, 3, 4]),
        pd.Series([4, 1, 3], index=[2, 0, 1]),
        {2: 4, 0: 1, 1: 3},  # as sklearn's class_weight
    ],
)
def test_weights_given_are_scaled_to_sum_to_n_and_stay(given):
    weighter = Fixed(3, given)
    for _ in range(5):
        assert weighter.weights.tolist() == pytest.approx([0.375, 1.125, 1.5], rel=1e-12)
        weighter.step(accuracy=[0.0, 0.5, 1.0])


def test_weights_from_files(tmp_path):
    (tmp_path / "w.json").write_text("[1, 3, 4]")
    (tmp_path / "labelled.json").write_text('{"1": 3, "2": 4, "0": 1}')
    np.save(tmp_path / "w.npy", np.array([1, 3, 4]))
    for name in ("w.json", "labelled.json", "w.npy"):
        for path in (tmp_path / name, str(tmp_path / name)):
            assert Fixed(3, path).weights.tolist() == pytest.approx([0.375, 1.125, 1.5])


def test_weights_of_a_run_are_their_mean_over_the_epochs_or_the_last(memory_run):
    weight = np.array([[1, 1, 1], [0.5, 1, 1.5], [0.3, 0.7, 2.0]])
    run = memory_run(np.full((3, 3), 0.5), weight)
    mean = [(1 + 0.5 + 0.3) / 3, (1 + 1 + 0.7) / 3, (1 + 1.5 + 2) / 3]
    assert Fixed(3, run).weights.tolist() == pytest.approx(mean)
    assert Fixed(3, run, "mean").weights.tolist() == pytest.approx(mean)
    assert Fixed(3, run, "last").weights.tolist() == pytest.approx([0.3, 0.7, 2.0])


def test_a_run_trains_with_the_weights_of_another(small_npz, tmp_path):
    common = {"dataset": str(small_npz), "epochs": 2, "batch_size": 20}
    first = train(RunConfig(**common, tau=4.0))
    expected = {"mean": first.wide("weight").mean(), "last": first.wide("weight").iloc[-1]}
    histories = {}
    for which in ("mean", "last"):
        run = train(RunConfig(**common, method="fixed", class_weights=str(first.folder), weights_of=which))
        weights = run.wide("weight")
        assert (weights - expected[which]).abs().to_numpy().max() < 1e-12
        histories[which] = run.history
        listed = train(RunConfig(**common, method="fixed", class_weights=tuple(expected[which])))
        pd.testing.assert_frame_equal(listed.history, run.history, atol=1e-6)
    assert not histories["mean"].equals(histories["last"])


def test_a_file_that_changes_under_an_unfinished_run_is_refused(small_npz, tmp_path):
    place = tmp_path / "w.json"
    place.write_text("[1, 1, 4]")
    config = RunConfig(dataset=str(small_npz), method="fixed", class_weights=str(place), epochs=2, batch_size=20)

    def stop(history, class_names):
        if len(history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, watch=stop)
    place.write_text("[1, 1, 5]")
    with pytest.raises(ClamkitError, match="begun with other weights than .*w.json has now"):
        train(config)
    place.write_text("[2, 2, 8]")
    assert train(config).done


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("1, 2.5,3", (1.0, 2.5, 3.0)),
        ("(1.0, 2.5)", (1.0, 2.5)),
        ([1, 2], (1.0, 2.0)),
        (np.array([1, 2]), (1.0, 2.0)),
        ({1: 2, 0: 1}, (1.0, 2.0)),
        (pd.Series([2, 1], index=[1, 0]), (1.0, 2.0)),
        ("some/run,folder", "some/run,folder"),
        ("w.json", "w.json"),
        (None, None),
    ],
)
def test_the_field_of_a_config(given, kept):
    config = RunConfig(method="fixed", class_weights=given)
    assert config.class_weights == kept
    again = RunConfig(**json.loads(json.dumps(config.model_dump())))
    assert again.folder() == config.folder()
    assert RunConfig(method="clam", class_weights=given).hash() == RunConfig().hash(), "clam does not listen to it"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "'fixed' needs class_weights=: a number for each class"),
        ([1, 2], r"class_weights has shape \(2,\): give one number for each of 3 classes"),
        ([1, -1, 2], "class_weights of class 1 is -1.0: it must be a finite number from 0"),
        ([1, 2, np.nan], "of class 2 is nan"),
        ([1, np.inf, 2], "of class 1 is inf"),
        ([0, 0, 0], "is zero for every class"),
        ("nowhere.json", "nowhere.json cannot be read as class weights .*No such file"),
        (["a", "b", "c"], "class_weights: not numbers .*'a'"),
        (3, r"class_weights has shape \(\): give one number for each of 3 classes"),
        ([[1, 2, 3]], r"class_weights has shape \(1, 3\)"),
        ([10**400, 1, 1], "class_weights: not numbers .*too large"),
        ({"cat": 1, "dog": 2, "fox": 3}, "has the labels cat, dog, fox, …, not the class numbers 0 to 2"),
        ({0: 1, 1: 2}, "has the labels 0, 1, …, not the class numbers 0 to 2: label it by these, or give a list"),
    ],
)
def test_bad_weights(given, message):
    with pytest.raises(ClamkitError, match=message):
        Fixed(3, given)


def test_bad_choices_of_weights(memory_run, tmp_path):
    with pytest.raises(ClamkitError, match="chooses among the epochs of a run"):
        Fixed(3, [1, 2, 3], "mean")
    with pytest.raises(ClamkitError, match="unknown choice of weights_of 'best'"):
        Fixed(2, memory_run(np.full((1, 2), 0.5)), "best")
    with pytest.raises(ClamkitError, match=r"class_weights=3.0 is not allowed: give a number for each class"):
        RunConfig(class_weights=3.0)
    (tmp_path / "w.json").write_text('{"a": 1}')
    with pytest.raises(ClamkitError, match="w.json has the labels a, …, not the class numbers 0 to 1"):
        Fixed(1 + 1, tmp_path / "w.json")
    (tmp_path / "w.npy").write_bytes(b"no array")
    with pytest.raises(ClamkitError, match="cannot be read"):
        Fixed(2, tmp_path / "w.npy")
