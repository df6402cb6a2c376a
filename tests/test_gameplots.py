"""The theory's figures: corners of the sets are right, everything draws."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from clamkit import game, gameplots, paper
from clamkit.simplex import LowerBounded, Permutahedron, RatioBounded


@pytest.mark.parametrize(
    ("S", "count", "corner"),
    [
        (LowerBounded(3, 1 / 6), 3, [2 / 3, 1 / 6, 1 / 6]),
        (Permutahedron([0.5, 0.3, 0.2]), 6, [0.2, 0.5, 0.3]),
        (RatioBounded(3, 2), 6, [0.5, 0.25, 0.25]),
    ],
)
def test_corners_of_a_set(S, count, corner):
    found = gameplots.vertices(S)
    assert len(np.unique(found.round(9), axis=0)) == count
    assert np.abs(found - corner).sum(1).min() < 1e-9
    assert all(S.contains(w) for w in found)


def test_figures():
    S = gameplots.constrained(3)
    v = np.random.default_rng(0).random((30, 3))
    played = {name: game.play(v, S, 0.5, name) for name in ("euclidean", "kl")}
    frame = pd.DataFrame({"n": 3, "T": [10, 20], "projection": "kl", "sequence": "random", "regret": [0.1, 0.05]})
    figures = [
        gameplots.paths_on_the_simplex(played, mark=np.full(3, 1 / 3)),
        gameplots.flow(S, lambda w: v[0], 0.4, ("euclidean", "kl")),
        gameplots.oscillation(played),
        gameplots.convergence([10, 100, 1000], {"a": [0.1, 0.03, 0.01]}, [0.2, 0.1, 0.05]),
        gameplots.regrets(frame, {"bound": lambda n, T: 1 / T}),
        gameplots.welfare({"average": np.mean, "max-min": np.min}, grid=12),
        gameplots.last_iterates(played, {"euclidean": 0.5, "kl": 0.5}),
        gameplots.alpha_over_epochs({"clam": np.array([0.0, 0.1])}, 0.1),
        gameplots.possible_std(10, {"a row": (20.0, 6.0)}),
        gameplots.audit(
            paper.results().query("table == 'tau'").assign(source="τ table"), paper.range_without_augmentation()
        ),
    ]
    assert all(isinstance(figure, Figure) for figure in figures)
    plt.close("all")
