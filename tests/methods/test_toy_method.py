"""A new method is one rule and one entry: then it trains, and is in the help, in a grid, in a table and in a figure."""

import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from clamkit import METHODS, RunConfig, train
from clamkit.engine.store import as_frame

TOY = '''
import numpy as np
from clamkit.methods.specs import METHODS, Method
from clamkit.methods.weighters import Weighter

class Toy(Weighter):
    """Half of all weight goes to the class with the lowest accuracy."""
    def update(self, w, v, losses, share):
        new = np.full(len(w), 0.5 / (len(w) - 1))
        new[v.argmin()] = 0.5
        return new

about = "Half of all weight goes to the class with the lowest accuracy; the others share the rest."
METHODS["toy"] = Method("Toy of mine", "#ff00ff", "8", about, weighter=Toy)
'''


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(METHODS, "toy", None)  # taken out again after the test
    exec(TOY, {})
    return METHODS["toy"]


@pytest.fixture
def toy_runs(toy, small_npz):
    """The runs of a grid with the toy on an axis."""
    from clamkit.lab.grids import Grid

    content = {
        "fixed": {"dataset": str(small_npz), "epochs": 2, "batch_size": 20},
        "axes": {"method": ["normal", "toy"], "crop_lower_bound": [0.5, 1.0]},
    }
    configs = Grid.parse("toys", content).configs()
    assert [(config.method, config.strength) for config in configs] == [
        ("normal", 0.5),
        ("normal", 1.0),
        ("toy", 0.5),
        ("toy", 1.0),
    ]
    return [train(config) for config in configs]


def test_it_takes_at_most_15_lines():
    assert len([line for line in TOY.splitlines() if line.strip()]) <= 15


def test_it_trains_by_its_rule(toy, small_npz):
    run = train(RunConfig(dataset=str(small_npz), method="toy", epochs=3, batch_size=20))
    weights, seen = run.wide("weight").to_numpy(), run.wide("train_accuracy").to_numpy()
    assert weights[0].tolist() == [1, 1, 1]
    for epoch in (1, 2):
        expected = np.full(3, 0.75)
        expected[seen[epoch - 1].argmin()] = 1.5
        assert weights[epoch] == pytest.approx(expected)
    assert run.folder.parts[-3] == "toy"


@pytest.mark.slow
def test_it_is_in_the_help():
    code = f"{TOY}\nimport sys\nsys.argv = ['clamkit', 'train', '--help']\nfrom clamkit.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    option = done.stdout[done.stdout.index("--method") :]
    option = option[: option.index("--protocol")]
    assert re.search(r"\btoy\b", option)


def test_it_is_in_a_table(toy, toy_runs):
    from clamkit.lab.tables import comparison

    table = comparison(as_frame(toy_runs))
    assert table["method"].tolist().count("Toy of mine") == 2


def test_it_is_in_a_figure(toy, toy_runs):
    from clamkit import plots

    frame = as_frame(toy_runs)
    figure = plots.fairness_over_strength(frame)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Normal", "Toy of mine"]
    (line,) = [line for line in figure.axes[0].lines if to_rgb(line.get_color()) == to_rgb("#ff00ff")]
    drawn = dict(zip(*line.get_data(), strict=True))
    expected = frame[frame["method"] == "toy"].set_index("strength")["average"]
    assert drawn == pytest.approx(expected.to_dict())
