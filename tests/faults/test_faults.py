"""The short version of `make faults`, in a process of its own: forks want one that has not trained yet."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.faults
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
def test_nothing_is_lost_torn_or_wrong(tmp_path, root):
    for package in ("psutil", "papermill"):
        pytest.importorskip(package, reason=f"the sweeps that are killed need {package}: pip install 'clamkit[lab]'")
    command = [sys.executable, "-m", "tests.faults.report", "--short", "--json", str(tmp_path / "found.json")]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["training killed with -9"]["kills"] >= 14
    assert found["training killed with -9"]["resumes"] >= 5
    assert found["file cut or bit flipped"]["damaged files"] >= 18
    assert found["full disk"]["refused"] >= 1
    assert found["read-only folder"]["refused"] == 1
    assert found["sweep killed with -9"]["kills"] == 1
    assert found["SIGTERM, then two sweeps"]["stopped"] == 1
    assert found["power cut"]["states"] >= 100
