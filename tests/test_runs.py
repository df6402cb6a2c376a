"""A flipped bit in the small files of an unfinished run, in one place after the other."""

import json
from contextlib import suppress

import numpy as np
import torch

from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.runs import COLUMNS, Run, RunStore, write_json


def flips(raw: bytes, step: int = 1):
    for place in range(0, 8 * len(raw), step):
        hurt = bytearray(raw)
        hurt[place // 8] ^= 1 << place % 8
        yield bytes(hurt)


def test_bits_of_an_unfinished_config(tmp_path):
    """Its folder is named after it: another value of anything that has an effect is seen."""
    config = RunConfig(dataset="mine.npz", method="clam_ratio", ratio=3.0, lr=0.05, epochs=7, seed=3)
    run = RunStore(tmp_path).run(config)
    run.folder.mkdir(parents=True)
    path = run.folder / "config.json"
    write_json(path, config.model_dump())
    other = 0  # flips after which it still reads as a config, but as another one
    for hurt in flips(path.read_bytes(), step=3):
        path.write_bytes(hurt)
        with suppress(ValueError, TypeError):
            other += RunConfig(**json.loads(hurt)).identity() != config.identity()
        try:
            assert Run(run.folder).config.identity() == config.identity()
        except ClamkitError as error:
            assert "damaged" in str(error)  # noqa: PT017 — either is right, the wrong config is not
    assert other > 10, "or there was nothing to see"


def test_bits_of_an_unfinished_history(tmp_path):
    rng = np.random.default_rng(0)
    run = Run(tmp_path)
    run.save_history({name: torch.from_numpy(rng.random((4, 3))) for name in COLUMNS})
    path, right = tmp_path / "history.parquet", run.history
    refused = 0
    for hurt in flips(path.read_bytes(), step=61):  # every byte now and then, each bit of it in turn
        path.write_bytes(hurt)
        try:
            assert Run(tmp_path).history.equals(right)
        except ClamkitError:
            refused += 1
    assert refused > 100
