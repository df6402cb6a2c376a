"""Each weighter's step against the pure rule it applies, a general solver, and numbers worked by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from clamkit.methods.weighters import CLAM, GGF, TCE, APStar, MaxMin, Uniform, build_method
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded, RatioBounded


def reference_step(w, v, tau, u_min, projection):
    """The update of the paper written out: hedge, then the projection by a general solver."""
    x = w * np.exp(-tau * v)
    x = x / x.sum()
    if projection == "clip":
        x = np.maximum(x, u_min)
        return x / x.sum()
    if projection == "released":
        n = len(w)
        d = np.exp(-v)
        clipped = np.clip(n * w * d / d.mean() / (w * d / d.mean()).sum() / n * 1.0, 0.5 / n, 2 / n)
        return clipped / clipped.sum()
    objective = {
        "euclidean": lambda y: ((y - x) ** 2).sum(),
        "kl": lambda y: (y * np.log(np.maximum(y, 1e-300) / x)).sum(),
    }[projection]
    bounds = [(u_min, 1)] * len(w)
    constraint = {"type": "eq", "fun": lambda y: y.sum() - 1}
    start = np.full(len(w), 1 / len(w))
    options = {"ftol": 1e-15, "maxiter": 1000}
    return minimize(objective, start, bounds=bounds, constraints=constraint, method="SLSQP", options=options).x


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.sampled_from(update.MAPS), st.integers(2, 6), st.floats(0, 2), st.integers(0, 1000), st.floats(0.1, 0.9))
def test_clam_steps_match_the_reference(projection, n, tau, seed, floor):
    rng = np.random.default_rng(seed)
    if projection == "released":
        tau, floor = 1.0, 0.5
    clam = CLAM(n, tau=tau, u_min=floor / n, projection=projection)
    w = np.full(n, 1 / n)
    for _ in range(3):
        v = rng.random(n)
        clam.step(accuracy=v)
        w = reference_step(w, v, tau, floor / n, projection)
        assert np.allclose(clam.weights.numpy() / n, w, atol=2e-5)
        w = clam.weights.numpy() / n


HALF = LowerBounded(6, 0.5 / 6)
RULES = {  # a weighter for 6 classes, and the pure rule that it applies to (w, v, losses)
    "clam": (lambda: CLAM(6, tau=0.7), lambda w, v, losses: update.clam(w, v, HALF, 0.7, "euclidean")),
    "kl": (lambda: CLAM(6, projection="kl"), lambda w, v, losses: update.clam(w, v, HALF, 1.0, "kl")),
    "clip": (lambda: CLAM(6, projection="clip"), lambda w, v, losses: update.clam(w, v, HALF, 1.0, "clip")),
    "released": (lambda: CLAM(6, projection="released"), lambda w, v, _: update.clam(w, v, HALF, 1.0, "released")),
    "ratio": (lambda: CLAM(6, ratio=3.0), lambda w, v, _: update.clam(w, v, RatioBounded(6, 3.0), 1.0, "euclidean")),
    "maxmin": (lambda: MaxMin(6), lambda w, v, losses: update.multiplicative_step(w, v, 1.0)),
    "tce": (lambda: TCE(6, gamma=0.3), lambda w, v, losses: update.tilted(w, losses, 0.3)),
    "ggf": (lambda: GGF(6, 0.9, 0.1), lambda w, v, losses: update.gini(-v, 0.9, 0.1)),
    "ggf by loss": (lambda: GGF(6, 0.9, 0.1, rank_by="loss"), lambda w, v, losses: update.gini(losses, 0.9, 0.1)),
    "apstar": (lambda: APStar(6, 0.5), lambda w, v, losses: update.star_adapted(w, losses, 0.5, 1)),
    "apstar original": (
        lambda: APStar(6, 0.5, original=True),
        lambda w, v, losses: update.star_original(w, losses, 0.5, 1, losses.max()),
    ),
    "uniform": (lambda: Uniform(6), lambda w, v, losses: w),
}


@pytest.mark.parametrize("name", RULES)
def test_a_step_is_the_pure_rule(name):
    build, rule = RULES[name]
    rng = np.random.default_rng(0)
    for _ in range(5):
        weighter, v, losses = build(), rng.random(6), 2 * rng.random(6)
        w = rng.dirichlet(np.full(6, 8.0))
        weighter.weights.copy_(torch.from_numpy(6 * w))
        weighter.step(accuracy=v, loss=losses)
        assert weighter.weights.numpy() / 6 == pytest.approx(rule(w, v, losses), abs=1e-14)


@pytest.mark.parametrize("projection", ["euclidean", "kl"])
def test_ratio_keeps_its_bound_and_is_the_projection(projection):
    weighter = build_method("clam_ratio", None, 6, ratio=3.0, projection=projection)
    rng, w = np.random.default_rng(0), np.full(6, 1 / 6)
    for _ in range(10):
        v = rng.random(6)
        weighter.step(accuracy=v)
        x = w * np.exp(-v)
        w = RatioBounded(6, 3.0).project(x / x.sum(), projection)  # checked against SLSQP in theory/test_sets
        assert weighter.weights.numpy() / 6 == pytest.approx(w)
        assert weighter.weights.max() / weighter.weights.min() <= 3 + 1e-9


def test_released_clip_reproduces_its_known_numbers():
    clam = CLAM(10, projection="released")
    clam.step(accuracy=np.r_[0.0, np.ones(9)])
    assert clam.weights[:2].numpy() == pytest.approx([2.066, 0.8816], abs=1e-3)
    clam = CLAM(10, projection="released")
    clam.step(accuracy=np.r_[1.0, np.zeros(9)])
    assert clam.weights[:2].numpy() == pytest.approx([0.4947, 1.056], abs=1e-3)


def test_weights_sum_to_n_and_normal_stays_at_one():
    clam, normal = CLAM(4), Uniform(4)
    for seed in range(20):
        v = np.random.default_rng(seed).random(4)
        clam.step(accuracy=v)
        normal.step(accuracy=v)
    assert clam.weights.sum().item() == pytest.approx(4)
    assert clam.weights.dtype == torch.float64
    assert clam.weights.min() >= 0.5 - 1e-12
    assert torch.equal(normal.weights, torch.ones(4, dtype=torch.float64))


def test_ggf_plays_every_fth_epoch_and_ranks_by_loss_where_asked():
    ggf = GGF(4, alpha=0.5, w_min=0.2, frequency=2, rank_by="loss")
    loss = [0.1, 3.0, 0.5, 2.0]
    seen = []
    for _ in range(4):
        ggf.step(accuracy=[0.5] * 4, loss=loss)
        seen.append(ggf.weights.tolist())
    raw = np.array([0.2, 1, 0.25, 0.5])
    assert seen[0] == seen[2] == pytest.approx((4 * raw / raw.sum()).tolist())
    assert seen[1] == seen[3] == [1.0] * 4


def test_start_epoch_delays_the_first_move():
    clam = CLAM(3, start_epoch=2)
    for epoch in range(4):
        clam.step(accuracy=[0.1, 0.5, 0.9])
        assert bool((clam.weights == 1).all()) == (epoch < 2)


def test_maxmin_may_leave_a_class_alone_but_stays_finite():
    weighter = MaxMin(3, tau=50.0)
    for _ in range(100):
        weighter.step(accuracy=[0.1, 0.9, 1.0])
    assert weighter.weights.tolist() == pytest.approx([3, 0, 0], abs=1e-9)


def test_the_original_apstar_keeps_the_network_of_an_improvement():
    original, adapted = APStar(3, original=True), APStar(3)
    kept = []
    assert not original.keeps_network
    for worst in (2.0, 1.5, 1.8, 1.5, 1.0):
        for weighter in (original, adapted):
            weighter.step(accuracy=[0.5, 0.5, 0.5], loss=[0.3, worst, 0.2])
        kept.append(original.keeps_network)
        assert not adapted.keeps_network
    assert kept == [True, True, False, False, True]
    assert not CLAM(3).keeps_network
