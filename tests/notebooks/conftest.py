"""notebooks/helpers is imported as the notebooks do it; figures are closed after each test."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "notebooks"))


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")
