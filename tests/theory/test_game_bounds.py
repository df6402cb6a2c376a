"""The theorem, lemma and step sizes of the paper, where they hold and where they fail, by numbers checked by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import rel_entr

from clamkit.theory import game
from clamkit.theory.sets import Box, LowerBounded, Permutahedron, RatioBounded
from clamkit.theory.update import clip_renormalise
from helpers import players

SETS = {
    "lower": lambda n, u: LowerBounded(n, u / n),
    "box": lambda n, u: Box(n, u / n, min(1, (1.2 + 3 * (1 - u)) / n)),
    "ratio": lambda n, u: RatioBounded(n, 1 + 9 * (1 - u)),
    "permutahedron": lambda n, u: Permutahedron(u / n + (1 - u) * 2 * np.arange(1, n + 1) / (n * (n + 1))),
}


def half(n):
    """The paper's set: w ≥ 1/(2n)."""
    return LowerBounded(n, 0.5 / n)


def four_digits(x):
    return pytest.approx(x, abs=5e-5)


# Theorem 1


@pytest.mark.parametrize(
    ("n", "T", "K", "share", "a", "alpha", "regret", "bound", "kl_regret"),
    [
        pytest.param(3, 10_000, 500, 0.99, 0.247, 1, 0.0970, 0.0211, -0.0073, marks=pytest.mark.slow),
        (10, 300, 60, 0.99, 0.720, 1, 0.2374, 0.1829, 0.0432),
        (10, 1000, 100, 0.95, 0.691, 0.921, 0.2875, 0.0945, 0.0243),
        pytest.param(100, 10_000, 500, 0.99, 0.961, 1, 0.4466, 0.0434, 0.0120, marks=pytest.mark.slow),
    ],
)
def test_the_trap_breaks_the_stated_bound_for_the_euclidean_projection(
    n, T, K, share, a, alpha, regret, bound, kl_regret
):
    S = half(n)
    level = share * players.trap_limit(n)
    v = players.trap_sequence(n, T, K, level)
    assumed, measured = players.self_consistent_alpha(v, S)
    trapped = game.regret(game.play(v, S, players.tau_paper(n, T, assumed)))
    tau = players.tau_paper(n, T, measured)
    by_kl = game.regret(game.play(v, S, tau, "kl"))
    assert level == pytest.approx(a, abs=5.1e-4)  # the a above are cut to three digits
    assert measured == pytest.approx(alpha, abs=5e-4)
    assert trapped == four_digits(regret)
    assert players.stated_bound(n, T, measured) == four_digits(bound)
    assert by_kl == four_digits(kl_regret)
    assert trapped > players.stated_bound(n, T, assumed) >= players.stated_bound(n, T, measured)
    assert by_kl <= game.corrected_bound(S, tau, T)


def test_alpha_and_tau_may_have_no_common_fixed_point():
    v = players.trap_sequence(10, 1000, 100, 0.95 * players.trap_limit(10))
    assumed, measured = players.self_consistent_alpha(v, half(10))
    assert (assumed, measured) == (1, pytest.approx(0.9205, abs=5e-5))
    back = players.alpha_t(game.play(v, half(10), players.tau_paper(10, 1000, measured))).max()
    assert back == pytest.approx(1)


@pytest.mark.slow
def test_the_trap_holds_below_its_limit_and_not_above():
    for n, u in ((3, 1 / 6), (5, 0.05), (10, 0.05)):
        for share, held in ((0.97, True), (1.03, False)):
            v = players.trap_sequence(n, 2500, 250, share * players.trap_limit(n, u))
            last = game.play(v, LowerBounded(n, u), 0.03).weights[-1]
            assert (np.argmax(last) == 1) == held


def test_no_trap_breaks_the_stated_bound_at_the_lengths_the_paper_trains_for():
    for n, T in product((3, 10), (50, 150)):
        for K, share in product((10, 25, T // 2), (0.6, 0.9, 0.99)):
            v = players.trap_sequence(n, T, K, share * players.trap_limit(n))
            assumed, _ = players.self_consistent_alpha(v, half(n))
            played = game.play(v, half(n), players.tau_paper(n, T, assumed))
            assert game.regret(played) <= players.stated_bound(n, T, assumed)


@pytest.mark.parametrize("projection", ["euclidean", "kl", "clip"])
def test_a_small_floor_breaks_the_stated_bound_for_every_map(projection):
    S, T = LowerBounded(2, 1e-3), 300
    v = players.alternating_sequence(2, T, 88)
    assert v[:2].tolist() == [[1, 0], [0, 1]]
    assert v[-88:].tolist() == [[0, 1]] * 88
    played = game.play(v, S, players.tau_paper(2, T, 0), projection)
    assert players.alpha_t(played).max() == 0
    assert game.regret(played) == pytest.approx(0.052746, abs=5e-7)
    assert players.stated_bound(2, T, 0) == pytest.approx(0.050378, abs=5e-7)
    dropped = 0.5 * np.sqrt(np.log(2) / T) * S.value(v.mean(0))
    assert game.regret(played) <= players.stated_bound(2, T, 0) + dropped


def test_two_classes_have_one_projection():
    v = np.random.default_rng(4).random((200, 2))
    by_kl, euclidean = (game.play(v, half(2), 0.5, p).weights for p in ("kl", "euclidean"))
    assert by_kl == pytest.approx(euclidean, abs=1e-12)


@pytest.mark.parametrize(("n", "reached", "bound"), [(10, 0.01705, 0.01769), (100, 0.02713, 0.02861)])
def test_the_corrected_bound_is_nearly_reached(n, reached, bound):
    T = 1000
    tau = game.tau_kl(n, T)
    regrets = [
        game.regret(game.play(players.alternating_sequence(n, T, int(pushes)), half(n), tau, "kl"))
        for pushes in (3 * np.log(n) / tau, 2.5 / tau if n == 10 else 4.7 / tau)
    ]
    limit = game.corrected_bound(half(n), tau, T)
    assert limit == pytest.approx(bound, abs=5e-6)
    assert limit == pytest.approx(np.sqrt(half(n).kl_diameter() / (2 * T)))
    assert regrets[0] == pytest.approx(reached, abs=5e-6)
    assert 0.985 * limit < regrets[1] <= limit  # a shorter push comes closer still


def test_the_stated_bound_follows_from_the_corrected_one_where_d_is_small():
    for n in (2, 3, 10, 100):
        assert half(n).kl_diameter() <= 7 / 8 * np.log(n)
        for T, alpha in product((1, 2, 5, 20, 150, 10_000), (0, 0.1, 0.5, 1, 3)):
            tau = players.tau_paper(n, T, alpha)
            assert game.corrected_bound(half(n), tau, T) <= players.stated_bound(n, T, alpha)


def prefix_regrets(played):
    """Regret after each of the T rounds; the sets with one kind of vertex only."""
    rounds = np.arange(1, len(played.losses) + 1)
    profile = np.sort(played.S.argmin(np.arange(played.S.n)))[::-1]
    best = np.sort(np.cumsum(played.payoffs, axis=0), axis=1) @ profile
    return (np.cumsum(played.losses) - best) / rounds


def max_player(kind, rng, n, T):
    """Random and adversarial answers to the min player."""
    switch = int(rng.integers(T + 1))
    if kind == "uniform":
        return rng.random((T, n))
    if kind == "binary":
        return (rng.random((T, n)) < rng.random()).astype(float)
    if kind == "trap":
        return players.trap_sequence(n, T, switch, rng.random())
    if kind == "alternating":
        return players.alternating_sequence(n, T, switch)
    if kind == "against the weights":  # right where the min player stands, wrong elsewhere
        return lambda w: (w >= np.quantile(w, rng.choice([0.1, 0.5, 0.9]))).astype(float)
    drift = np.cumsum(rng.normal(0, 0.1, (T, n)), axis=0) + 0.5
    return np.clip(drift, 0, 1)


PLAYERS = ("uniform", "binary", "trap", "alternating", "against the weights", "drift")


@pytest.mark.parametrize(
    ("projection", "kind"),
    [("kl", "lower"), ("clip", "lower"), ("kl", "box"), ("kl", "permutahedron"), ("clip", "box")],
)
@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    n=st.integers(2, 50),
    T=st.integers(1, 60),
    u=st.floats(0, 0.95),
    log_tau=st.floats(-2, 0.7),
    player=st.sampled_from(PLAYERS),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_corrected_bound_holds(projection, kind, n, T, u, log_tau, player, seed):
    S, rng = SETS[kind](n, u), np.random.default_rng(seed)
    played = game.play(max_player(player, rng, n, T), S, 10**log_tau, projection, T)
    rounds = np.arange(1, T + 1)
    bounds = S.kl_diameter() / (played.tau * rounds) + played.tau / 8
    assert bounds[-1] == pytest.approx(game.corrected_bound(S, played.tau, T))
    assert (prefix_regrets(played) <= bounds + 1e-12).all()
    assert game.regret(played) == pytest.approx(prefix_regrets(played)[-1], abs=1e-12)


@pytest.mark.parametrize("projection", ["kl", "clip"])
@pytest.mark.parametrize("player", PLAYERS)
def test_the_corrected_bound_holds_over_500_rounds(projection, player):
    rng = np.random.default_rng(0)
    for n in (2, 10, 50):
        S, tau = half(n), game.tau_kl(n, 500)
        played = game.play(max_player(player, rng, n, 500), S, tau, projection, 500)
        assert (prefix_regrets(played) <= S.kl_diameter() / (tau * np.arange(1, 501)) + tau / 8 + 1e-12).all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(n=st.integers(2, 20), u=st.floats(0, 0.95), player=st.sampled_from(PLAYERS), seed=st.integers(0, 2**32 - 1))
def test_the_corrected_bound_holds_on_the_ratio_set(n, u, player, seed):
    S, rng = SETS["ratio"](n, u), np.random.default_rng(seed)
    played = game.play(max_player(player, rng, n, 40), S, 0.3, "kl", 40)
    assert game.regret(played) <= game.corrected_bound(S, 0.3, 40) + 1e-12


@pytest.mark.parametrize(("projection", "kind"), [*(("kl", kind) for kind in SETS), ("clip", "lower"), ("clip", "box")])
@settings(derandomize=True, deadline=None, max_examples=60)
@given(n=st.integers(2, 50), u=st.floats(0, 0.99), spread=st.floats(0.05, 5), seed=st.integers(0, 2**32 - 1))
def test_projecting_by_kl_brings_every_point_of_the_set_nearer(projection, kind, n, u, spread, seed):
    S, rng = SETS[kind](n, u), np.random.default_rng(seed)
    x = np.maximum(rng.dirichlet(np.full(n, spread)), 1e-200)
    x /= x.sum()
    projected = S.project(x, "kl") if projection == "kl" else clip_renormalise(x, *S.bounds)
    inside = rng.dirichlet(np.ones(3)) @ np.array([S.argmin(rng.random(n)) for _ in range(3)])
    for w in (inside, S.argmin(rng.random(n)), S.argmin(-projected / x)):
        assert rel_entr(w, projected).sum() <= rel_entr(w, x).sum() + 1e-10


# the lemma on the last iterate


@pytest.mark.parametrize("projection", ["euclidean", "kl"])
def test_the_weights_may_converge_while_the_loss_does_not(projection):
    a = game.play(np.tile([[1.0] * 3, [0.0] * 3], (100, 1)), half(3), 0.5, projection)
    assert a.weights == pytest.approx(np.full((201, 3), 1 / 3))
    assert a.losses[-2:] == pytest.approx([1, 0])
    assert half(3).value(a.payoffs.mean(0)) == pytest.approx(0.5)

    b = game.play(np.tile([[0, 1, 1], [0, 0.5, 0.5]], (100, 1)), half(3), 0.5, projection)
    assert b.weights[-50:] == pytest.approx(np.tile([2 / 3, 1 / 6, 1 / 6], (50, 1)))
    assert b.losses[-2:] == pytest.approx([1 / 3, 1 / 6])
    assert half(3).value(b.payoffs.mean(0)) == pytest.approx(1 / 4)


def test_euclidean_iterates_converge_to_the_wrong_vertex_and_kl_ones_do_not():
    v = np.array([[1.0, 0, 1]] * 60 + [[0, 0.2, 1]] * 3000)
    euclidean, by_kl = (game.play(v, half(3), 0.1, p) for p in ("euclidean", "kl"))
    assert euclidean.weights[-1] == pytest.approx([1 / 6, 2 / 3, 1 / 6])
    assert euclidean.losses[-1] == pytest.approx(0.3)
    assert by_kl.losses[-1] == pytest.approx(0.2) == half(3).value(v[-1])


def test_the_corrected_lemma():
    v = np.array([0.6, 0.8, 0.9, 0.95])
    played = game.play(np.tile(v, (2000, 1)) * (1 - 0.5 ** np.arange(1, 2001))[:, None], half(4), 0.1, "kl")
    assert played.losses[-1] == pytest.approx(0.70625, abs=1e-9)
    assert half(4).value(v) == pytest.approx(0.70625)


# τ


def test_step_sizes():
    assert players.tau_paper(100, 150, 0.1) == four_digits(0.1478)
    assert players.tau_paper(10, 50, 0.1) == four_digits(0.1782)
    assert game.tau_kl(10, 1000) == pytest.approx(np.sqrt(8 * 0.625695 / 1000), rel=1e-6)
    assert game.tau_kl(10, 1000, 0) == pytest.approx(np.sqrt(8 * np.log(10) / 1000))
    taus = np.geomspace(0.01, 1, 200)
    best = min(game.corrected_bound(half(10), tau, 1000) for tau in taus)
    assert game.corrected_bound(half(10), game.tau_kl(10, 1000), 1000) <= best
