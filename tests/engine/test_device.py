"""What a run computes on: named devices, the precision they have, and bars for people only."""

import sys

import pytest
import torch

from clamkit.engine.device import find_device, mixed_precision, show_progress
from clamkit.errors import ClamkitError


def test_devices():
    assert find_device("cpu").type == "cpu"
    with pytest.raises(ClamkitError, match="unknown device 'gpu'"):
        find_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ClamkitError, match="'cuda' is not available"):
            find_device("cuda")


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_auto_takes_the_fastest_there_is(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert find_device().type == chosen
    assert find_device("auto").type == chosen
    if cuda:
        assert find_device("cuda:1") == torch.device("cuda", 1)


def test_precision(monkeypatch):
    assert mixed_precision(torch.device("cpu")) == torch.bfloat16
    for supported, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported, **_: supported)
        assert mixed_precision(torch.device("cuda")) == expected


def test_bars_are_for_people(monkeypatch):
    assert show_progress(True)
    assert not show_progress(False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("CLAMKIT_PROGRESS", "0")
    assert not show_progress()
    assert show_progress(True), "who asks gets it"
    monkeypatch.delenv("CLAMKIT_PROGRESS")
    assert show_progress()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert not show_progress()
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert show_progress(), "a notebook"
