"""What tests of the engine share: a config of a second's training, and comparisons of runs bit by bit."""

import pandas as pd
import pytest
import torch

from clamkit.engine.config import RunConfig
from clamkit.engine.loop import train
from clamkit.engine.store import RunFolder, RunStore


@pytest.fixture
def config(small_npz) -> RunConfig:
    return RunConfig(dataset=str(small_npz), epochs=4, batch_size=16, seed=3, method="clam_kl")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """whole(config): its undisturbed run on the small dataset, which is always the same; trained once for all tests."""
    kept: dict[str, RunFolder] = {}

    def undisturbed(config: RunConfig) -> RunFolder:
        fields = config.model_dump_json(exclude={"dataset"})
        if fields not in kept:
            kept[fields] = train(config, runs=tmp_path_factory.mktemp("whole"))
        return kept[fields]

    return undisturbed


@pytest.fixture
def same_bits():
    """Asserts that two runs are equal in history, predictions, network and weighter."""

    def compare(one: RunFolder, other: RunFolder) -> None:
        pd.testing.assert_frame_equal(one.history, other.history, check_exact=True)
        pd.testing.assert_frame_equal(one.predictions, other.predictions)
        first, second = (run.load_checkpoint() for run in (one, other))
        for part in ("model", "weighter"):
            for key, value in first[part].items():
                assert torch.equal(value, second[part][key]), key

    return compare


@pytest.fixture
def interrupted():
    """Makes a run that lost its process after so many epochs: interrupted(config, epochs)."""

    def stop_after(config: RunConfig, epochs: int) -> RunFolder:
        def watch(history, class_names):
            if len(history) > epochs:  # the next epoch is over and not yet saved
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(config, watch=watch)
        return RunStore().run(config)

    return stop_after
