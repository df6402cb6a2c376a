"""Every rule by which class weights move against the same rule written as plain loops, and numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from clamkit.errors import ClamkitError
from clamkit.theory import game, update
from clamkit.theory.sets import Box, LowerBounded, RatioBounded
from tests.theory import references

fixed = settings(derandomize=True, deadline=None, max_examples=60)
shares = st.floats(0, 1)


@st.composite
def rounds(draw, high=1.0):
    """(w, v): a distribution and a number from 0 to `high` for each class, no two of them equal."""
    n = draw(st.integers(2, 12))
    w = np.array(draw(st.lists(st.floats(0.01, 1), min_size=n, max_size=n)))
    steps = draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n, unique=True))
    return w / w.sum(), np.array(steps) * high / 10**6


def agree(got, expected):
    assert got == pytest.approx(expected, abs=1e-9)
    assert got.sum() == pytest.approx(1)
    assert got.dtype == np.float64


@fixed
@given(rounds(), st.floats(0, 50))
def test_multiplicative_step(given_round, tau):
    w, v = given_round
    agree(update.multiplicative_step(w, v, tau), references.hedge(w, v, tau))


@fixed
@given(rounds(), st.sampled_from(update.MAPS), st.floats(0, 3), st.floats(0, 0.99))
def test_clam(given_round, projection, tau, floor):
    w, v = given_round
    S = LowerBounded(len(w), floor / len(w))
    agree(update.clam(w, v, S, tau, projection), references.clam(w, v, S.u_min, tau, projection))


@fixed
@given(rounds(), st.sampled_from(update.MAPS), st.floats(0, 0.99))
def test_into_set(given_round, projection, floor):
    x, _ = given_round
    S = LowerBounded(len(x), floor / len(x))
    got = update.into_set(x, S, projection)
    agree(got, references.MAPS[projection](x, S.u_min))
    if projection in ("euclidean", "kl"):
        assert S.contains(got)


@fixed
@given(rounds(), st.floats(0, 1), st.floats(1, 5))
def test_clip_renormalise_to_both_bounds(given_round, low, high):
    x, _ = given_round
    n = len(x)
    clipped = [min(max(xi, low / n), high / n) for xi in x]
    agree(update.clip_renormalise(x, low / n, high / n), references.divided_by_sum(clipped))
    S = Box(n, low / n, high / n)
    agree(update.into_set(x, S, "clip"), references.divided_by_sum([min(max(xi, S.low), S.high) for xi in x]))


@fixed
@given(rounds())
def test_released_clip(given_round):
    x, _ = given_round
    agree(update.released_clip(x), references.released(x))
    assert update.RELEASED_CLIP == (0.5, 2.0)


@fixed
@given(rounds(), shares)
def test_mixed(given_round, gamma):
    q, _ = given_round
    got = update.mixed(q, gamma)
    agree(got, [gamma * (1 / len(q)) + (1 - gamma) * qi for qi in q])
    assert got.min() >= gamma / len(q) - 1e-15


@fixed
@given(rounds(), shares)
def test_toward_worst(given_round, alpha):
    w, v = given_round
    agree(update.toward_worst(w, v, alpha), references.toward_worst(w, v, alpha))


@fixed
@given(rounds(high=20), shares)
def test_tilted(given_round, gamma):
    w, losses = given_round
    agree(update.tilted(w, losses, gamma), references.tilted(w, losses, gamma))


@fixed
@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), shares, st.floats(0, 1))
def test_gini_also_with_equals(badness, alpha, w_min):
    agree(update.gini(np.array(badness, dtype=float), alpha, w_min), references.gini(badness, alpha, w_min))


@fixed
@given(rounds(high=5), shares, st.integers(1, 30))
def test_star_adapted(given_round, alpha, k):
    w, losses = given_round
    agree(update.star_adapted(w, losses, alpha, k), references.star_adapted(w, losses, alpha, k))


@fixed
@given(rounds(high=5), shares, st.integers(1, 30), st.data())
def test_star_original(given_round, alpha, k, data):
    w, losses = given_round
    best = data.draw(st.sampled_from(losses.tolist()))
    agree(update.star_original(w, losses, alpha, k, best), references.star_original(w, losses, alpha, k, best))


@fixed
@given(rounds())
def test_no_rule_changes_what_it_is_given(given_round):
    w, v = given_round
    kept = w.copy(), v.copy()
    S = LowerBounded(len(w), 0.5 / len(w))
    for projection in update.MAPS:
        update.clam(w, v, S, 1.0, projection)
    update.tilted(w, v, 0.5)
    update.mixed(w, 0.5)
    update.toward_worst(w, v, 0.5)
    update.gini(v, 0.5, 0.1)
    update.star_adapted(w, v, 0.5, 1)
    update.star_original(w, v, 0.5, 1, v.max())
    assert (w == kept[0]).all()
    assert (v == kept[1]).all()


# numbers worked by hand


def test_a_large_step_leaves_a_distribution():
    w, v = np.array([0.2, 0.3, 0.5]), np.array([0.9, 0.8, 1.0])
    assert update.multiplicative_step(w, v, 1e6) == pytest.approx([0, 1, 0])
    without_first = np.array([0.0, 0.4, 0.6])  # the class with the smallest v has no weight: it must not set the scale
    assert update.multiplicative_step(without_first, np.array([0.0, 0.8, 1.0]), 1e6) == pytest.approx([0, 1, 0])


def test_star_adapted_takes_a_tenth_of_the_classes_also_among_equals():
    w = update.star_adapted(np.full(20, 1 / 20), np.ones(20), alpha=0.5, k=1)
    assert np.count_nonzero(w > 1 / 20) == 2


def test_gini_by_hand():
    raw = np.array([0.2, 1, 0.25, 0.5])  # ranks 4, 1, 3, 2 of the losses; ½³ is below w_min
    assert update.gini(np.array([0.1, 3.0, 0.5, 2.0]), 0.5, 0.2) == pytest.approx(raw / raw.sum())


def test_tilted_by_hand():
    w = update.tilted(np.array([0.5, 0.5]), np.log([1.0, 3.0]), 0.5)  # softmax (¼, ¾)
    assert w == pytest.approx([0.375, 0.625])


def test_clip_renormalise_leaves_the_set_and_its_limit_is_the_kl_projection():
    x, S = np.array([0.7, 0.25, 0.05]), LowerBounded(3, 1 / 6)
    once = update.clip_renormalise(x, 1 / 6)
    assert once == pytest.approx([0.627, 0.224, 0.149], abs=5e-4)
    assert not S.contains(once)
    for _ in range(200):
        x = update.clip_renormalise(x, 1 / 6)
    assert x == pytest.approx(S.project([0.7, 0.25, 0.05], "kl"), abs=1e-14)


def test_the_released_map_leaves_its_interval_but_keeps_the_ratio():
    rng = np.random.default_rng(0)
    w = np.array([update.clip_renormalise(rng.dirichlet(np.full(10, 0.3)), 0.05, 0.2) * 10 for _ in range(200)])
    assert w.min() < 0.5
    assert w.max() > 2
    assert (w.max(1) <= 4 * w.min(1) * (1 + 1e-12)).all()


def test_the_first_step_of_the_papers_proof_fails():
    n, tau = 10, 0.2
    w, v = np.array([0.06, 0.54] + [0.05] * 8), np.array([0, 0] + [1.0] * 8)
    comparator = np.array([0.55] + [0.05] * 9)
    x = update.multiplicative_step(w, v, tau)
    projected = LowerBounded(n, 0.05).project(x)
    left = rel_entr(comparator, projected).sum() - rel_entr(comparator, x).sum()
    right = (comparator * tau * v)[projected > x].sum()
    assert left == pytest.approx(0.0946, abs=5e-5)
    assert right == pytest.approx(0.0800, abs=5e-5)


def test_the_papers_bound_on_the_normaliser_fails():
    w, v, tau = np.array([1 / 6, 1 / 6, 2 / 3]), np.array([1, 1, 0.0]), 0.5
    Z = np.maximum(update.multiplicative_step(w, v, tau), 1 / 6).sum()
    assert pytest.approx(1.1006, abs=5e-5) == Z
    assert np.exp(tau * v.min()) == 1 < Z


# mixing with the uniform distribution beside projecting: two ways into w ≥ γ/n


def adversaries(n, T):
    """Sequences [T, n], and max players that look at the weights."""
    rng = np.random.default_rng(n)
    yield rng.integers(0, 2, (T, n)).astype(float)
    switched = np.ones((T, n))
    switched[: T // 3, 1], switched[T // 3 :, 0] = 0, 0
    switched[T // 3 :, 1] = 0.7
    yield switched
    yield lambda w: (w >= np.median(w)).astype(float)
    yield lambda w: (w < w.max()).astype(float)
    yield lambda w: (w == w.max()).astype(float)


def regret_of_mixing(max_player, n, gamma, tau, T):
    """Hedge on q; the rounds are lost with the mixture; the best w̃ ≥ γ/n in hindsight is a vertex, by hand."""
    q, lost, total = np.full(n, 1 / n), 0.0, np.zeros(n)
    for t in range(T):
        w = update.mixed(q, gamma)
        v = max_player(w) if callable(max_player) else max_player[t]
        lost, total = lost + w @ v, total + v
        q = np.array(references.hedge(q, v, tau))
    return (lost - (gamma * total.mean() + (1 - gamma) * total.min())) / T


@pytest.mark.parametrize("gamma", [0.5, 0.1])
@pytest.mark.parametrize(("n", "T"), [(2, 60), (3, 300), (10, 300), pytest.param(100, 100, marks=pytest.mark.slow)])
def test_the_regret_of_mixing_is_bounded_beside_that_of_projecting(n, T, gamma):
    S, best = LowerBounded(n, gamma / n), np.sqrt(8 * np.log(n) / T)
    for tau in (best, 3 * best, best / 3):
        for max_player in adversaries(n, T):
            mixing = regret_of_mixing(max_player, n, gamma, tau, T)
            assert mixing <= (1 - gamma) * (np.log(n) / (tau * T) + tau / 8) + 1e-12
            assert game.regret(game.play(max_player, S, tau, "kl", T)) <= game.corrected_bound(S, tau, T) + 1e-12


def test_where_mixing_has_the_smaller_bound():
    """With the best τ of each: (1 − γ)²·ln n against D, at γ = ½. The constants of D are those of theory.md."""
    for n, diameter, mixing_is_better in (
        (2, 0.1308, False),
        (3, 0.2310, False),
        (10, 0.6257, True),
        (100, 1.6375, True),
    ):
        assert LowerBounded(n, 0.5 / n).kl_diameter() == pytest.approx(diameter, abs=5e-5)
        assert (np.log(n) / 4 < diameter) == mixing_is_better


def test_coins_cost_two_thirds_of_the_bound_of_mixing():
    """v = (coin, 1 − coin): w loses ½ a round, the best in hindsight E|walk|/2 less: √(1/(π ln 2)) of the bound."""
    n, T, rng = 2, 400, np.random.default_rng(0)
    tau, bound = np.sqrt(8 * np.log(n) / T), 0.5 * np.sqrt(np.log(n) / (2 * T))
    coins = rng.integers(0, 2, (100, T))
    shares = [regret_of_mixing(np.stack([c, 1.0 - c], axis=1), n, 0.5, tau, T) / bound for c in coins]
    assert max(shares) <= 1
    assert np.mean(shares) == pytest.approx(np.sqrt(1 / (np.pi * np.log(2))), abs=0.15)  # three standard errors


# bad input


@pytest.mark.parametrize("tau", [-1, np.nan, np.inf])
def test_bad_steps_are_refused(tau):
    with pytest.raises(ClamkitError, match="finite number ≥ 0"):
        update.multiplicative_step(np.array([0.5, 0.5]), np.array([0.1, 0.2]), tau)


def test_maps_that_are_none_are_refused():
    x = np.array([0.5, 0.5])
    with pytest.raises(ClamkitError, match="Did you mean 'released'"):
        update.into_set(x, LowerBounded(2, 0.1), "relased")
    with pytest.raises(ClamkitError, match="needs bounds on each weight, which RatioBounded does not have"):
        update.into_set(x, RatioBounded(2, 3), "clip")


def test_gini_gives_equals_the_mean_of_their_ranks():
    """Four classes with nothing wrong yet: equal weights, whatever their order; then two equals behind the worst."""
    assert update.gini(np.zeros(4), 0.5, 0.1).tolist() == [0.25] * 4
    raw = np.array([0.375, 1, 0.375, 0.125])  # ranks 2 and 3 weigh 0.5 and 0.25
    assert update.gini(np.array([0.3, 0.9, 0.3, 0.1]), 0.5, 0.1) == pytest.approx(raw / raw.sum())
