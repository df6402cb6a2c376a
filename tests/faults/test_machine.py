"""The walks of `make faults` through the store, a few of them and always the same; and that they see what is wrong."""

import json
import logging
from collections import Counter

import pytest
import torch

from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError
from tests.faults import machine

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, "clamkit")


def test_whatever_happens_in_whatever_order(tmp_path):
    found = machine.walk(tmp_path, 66)  # hypothesis draws constants of what is imported: by the tests before, too
    assert found["steps"] >= 2000
    assert found["kills"] >= 100
    assert found["damaged"] >= 30
    assert found["resumed"] >= 40


@pytest.mark.parametrize("fault", ["DONE first", "DONE unchecked", "checkpoint in place"])
def test_the_walks_can_fail(tmp_path, monkeypatch, fault):
    """The store with one of its precautions taken away."""
    if fault == "DONE first":
        finish = RunFolder.finish

        def early(run, *given):
            (run.folder / "DONE").write_text("{}")
            finish(run, *given)

        monkeypatch.setattr(RunFolder, "finish", early)
    elif fault == "checkpoint in place":
        in_place = lambda run, state: torch.save(state, run.folder / "checkpoint.pt")  # noqa: E731
        monkeypatch.setattr(RunFolder, "save_checkpoint", in_place)
    else:
        monkeypatch.setattr(RunFolder, "_sums", lambda run: Counter(json.loads((run.folder / "DONE").read_bytes())))
        monkeypatch.setattr(RunFolder, "damaged", lambda run, **_: [])
    with pytest.raises((AssertionError, ClamkitError)):
        machine.walk(tmp_path, 40, shorten=False)
