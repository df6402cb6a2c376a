"""What a run computes on: named devices, the precision they have, and bars for people only."""

import sys

import pytest
import torch

from clamkit.engine import device
from clamkit.engine.device import find_device, mixed_precision, show_progress
from clamkit.errors import ClamkitError


def test_devices():
    assert find_device("cpu").type == "cpu"
    with pytest.raises(ClamkitError, match="unknown device 'gpu'"):
        find_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ClamkitError, match="'cuda' is not available"):
            find_device("cuda")
    for name in ("cpu:abc", "cuda:", "cuda:-1"):
        with pytest.raises(ClamkitError, match=f"unknown device '{name}'"):
            find_device(name)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ClamkitError, match="'cuda:2' is not available"):
        find_device("cuda:2")


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_auto_takes_the_fastest_there_is(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert find_device().type == chosen
    assert find_device("auto").type == chosen


@pytest.mark.parametrize(
    ("speed", "amp", "expected"),
    [(1.8, "auto", torch.bfloat16), (1.05, "auto", None), (0.0, "auto", None), (1.2, True, torch.bfloat16)],
)
def test_auto_takes_bfloat16_where_it_pays(monkeypatch, speed, amp, expected):
    monkeypatch.setattr(device, "bfloat16_speed", lambda: speed)
    assert mixed_precision(torch.device("cpu"), amp) == expected
    assert mixed_precision(torch.device("cpu"), False) is None


def test_bfloat16_where_it_is_slow_or_broken(monkeypatch):
    monkeypatch.setattr(device, "bfloat16_speed", lambda: 0.25)
    with pytest.warns(UserWarning, match=r"bfloat16 has 0\.25 times float32's speed"):
        assert mixed_precision(torch.device("cpu"), True) == torch.bfloat16
    monkeypatch.setattr(device, "bfloat16_speed", lambda: 0.0)
    with pytest.raises(ClamkitError, match="does not work on this processor"):
        mixed_precision(torch.device("cpu"), True)


@pytest.mark.slow
def test_bfloat16_is_measured_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CLAMKIT_DATA", str(tmp_path))
    device.bfloat16_speed.cache_clear()
    speed = device.bfloat16_speed()
    assert speed >= 0
    device.bfloat16_speed.cache_clear()
    monkeypatch.setattr(device, "PROBE", "this is no Python")
    assert device.bfloat16_speed() == speed
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # another setting is measured anew
    failing = ["this is no Python", "print(2.5)"]  # an error of today is not kept
    dying = ["import os; os.abort()", "print(2.5)"]  # as by a processor without the instructions: kept
    for probes, speeds in ((failing, [0, 2.5]), (dying, [0, 0])):
        for probe, expected in zip(probes, speeds, strict=True):
            device.bfloat16_speed.cache_clear()
            monkeypatch.setattr(device, "PROBE", probe)
            assert device.bfloat16_speed() == expected
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    device.bfloat16_speed.cache_clear()


def test_precision_of_gpus(monkeypatch):
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
