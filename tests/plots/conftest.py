"""Figures are closed after each test."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")
