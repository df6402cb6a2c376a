"""What a notebook found, shown as Markdown with the regime of its runs."""

import numpy as np
import pytest

from clamkit.engine.config import RunConfig
from helpers import found
from tests.memory_run import MemoryRun


@pytest.fixture
def shown(monkeypatch):
    texts = []
    monkeypatch.setattr(found, "display", lambda markdown: texts.append(markdown.data))
    return texts


def run(accuracy, **fields) -> MemoryRun:
    return MemoryRun(RunConfig(**fields), np.array([accuracy]), np.ones((1, len(accuracy))))


def test_claim_and_verdict_are_bold_and_the_rest_is_not(shown):
    found.found("A is better: not decided, as nothing ran.", "In one seed it was +1.", "B: the opposite. It is −2.")
    assert shown == [
        "- **A is better: not decided**, as nothing ran.\n- In one seed it was +1.\n- **B: the opposite**. It is −2."
    ]


def test_the_regime_is_that_of_the_runs(shown):
    fields = {"epochs": 7, "model": "tiny_resnet"}
    runs = [run([0.5, 0.9], method="normal", crop_lower_bound=bound, seed=3, **fields) for bound in (0.3, 1.0)]
    found.found("It is so.", runs=[*runs, run([0.1, 0.2], method="clam", seed=4, **fields)])
    (text,) = shown
    assert text.startswith(
        "- It is so.\n\n*Regime*: the embedded part of Fashion-MNIST; tiny_resnet, 7 epochs; 3 runs "
    )
    assert "crop bounds, 2 seeds)" in text
    assert text.endswith("70 % of the test images."), "of Normal's alone"
    found.found("It is so.", "B: the opposite. It is −2.", runs=runs)
    assert "notebook 05 corrects for all" in shown[1], "a verdict says what it is corrected for"


def test_without_normal_the_runs_that_never_move_the_weights_count():
    runs = [run([0.5, 0.7], method="clam", tau=0), run([0.1, 0.2], method="clam", tau=1)]
    assert ". τ = 0 is right in " in found.regime(runs)
    assert "60 % of the test images" in found.regime(runs)
    assert "is right in" not in found.regime(runs[1:])


def test_no_runs_are_said():
    assert found.regime([]) == "no run has finished"
