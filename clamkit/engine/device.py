"""What a run computes on, and in which precision; whether a person looks on."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import torch

from clamkit import paths
from clamkit.errors import ClamkitError, unknown
from clamkit.files import sha256, write_json

PAYS = 1.1  # times float32's speed from which amp="auto" takes bfloat16
PROBE = """
import time, torch
from torch import nn
torch.set_num_threads(1)
parts = [nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1), nn.AdaptiveMaxPool2d(2), nn.Flatten()]
model = nn.Sequential(*parts, nn.Linear(256, 256)).to(memory_format=torch.channels_last)
x = torch.randn(64, 64, 16, 16).contiguous(memory_format=torch.channels_last)
best = {}
for _ in range(8):
    for half in (False, True):
        started = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            model(x).float().sum().backward()
        best[half] = min(best.get(half, 99), time.process_time() - started)
print(best[False] / best[True])
"""


def find_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" takes CUDA, then MPS, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    kind, colon, number = name.partition(":")
    if kind not in available or (colon and not number.isdecimal()):
        raise unknown("device", name, ["auto", *available])
    if not available[kind] or (number and kind == "cuda" and int(number) >= torch.cuda.device_count()):
        raise ClamkitError(f"device {name!r} is not available here: use device='auto' or 'cpu'.")
    return torch.device(name)


def mixed_precision(device: torch.device, amp: bool | str = True) -> torch.dtype | None:
    """What the forward pass computes in: bfloat16, float16 on GPUs that are older than it, None for float32.

    amp  as in a run's config; "auto" is bfloat16 but for CPUs where it was measured not to pay
    """
    if not amp:
        return None
    if device.type == "cpu":
        speed = bfloat16_speed()
        if amp == "auto":
            return torch.bfloat16 if speed >= PAYS else None
        if not speed:
            raise ClamkitError("amp=True: bfloat16 does not work on this processor. Set amp=False, or amp='auto'.")
        if speed < 1:
            warnings.warn(f"bfloat16 has {speed:.2f} times float32's speed here; amp='auto' leaves it.", stacklevel=2)
    old = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if old else torch.bfloat16


@functools.cache
def bfloat16_speed() -> float:
    """How many times faster than float32 a CPU trains in bfloat16; 0 where it does not work.

    Measured by another Python, because some processors end it there; kept in the cache for each processor and torch.
    """
    facts = [torch.__version__, platform.machine(), os.environ.get("ONEDNN_MAX_CPU_ISA")]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts += sorted({line for line in lines if line.startswith(("model name", "flags"))})
    file = paths.cache() / f"bfloat16-{sha256(json.dumps(facts).encode())[:12]}.json"
    with suppress(OSError, ValueError):
        return float(json.loads(file.read_text(encoding="utf-8"))["speed"])
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=False)
    speed = float(done.stdout) if done.returncode == 0 else 0.0
    if done.returncode <= 0:  # measured, or ended by the processor: an error may be of today only
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"speed": speed})
    return speed


def show_progress(progress: bool | None = None) -> bool:
    """Bars are for people: a terminal or a notebook, unless CLAMKIT_PROGRESS=0."""
    if progress is not None:
        return progress
    return os.environ.get("CLAMKIT_PROGRESS") != "0" and (sys.stderr.isatty() or "ipykernel" in sys.modules)
