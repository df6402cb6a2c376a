"""nbval: notebooks train into a throw-away folder, and warnings on stderr are not compared."""

import os
import tempfile

import pytest

from tests import kernels

os.environ |= {"CLAMKIT_RUNS": tempfile.mkdtemp(prefix="clamkit-nbval-"), "CLAMKIT_PROGRESS": "0"}
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
        kernels.fork()
