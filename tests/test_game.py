"""clamkit.game against linear programs, brute force, and the numbers of a hand check of the paper's theory."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import rel_entr

from clamkit import game
from clamkit.errors import ClamkitError
from clamkit.simplex import Box, LowerBounded, Permutahedron, RatioBounded, clip_renormalise

SETS = {
    "lower": lambda n, u: LowerBounded(n, u / n),
    "box": lambda n, u: Box(n, u / n, min(1, (1.2 + 3 * (1 - u)) / n)),
    "ratio": lambda n, u: RatioBounded(n, 1 + 9 * (1 - u)),
    "permutahedron": lambda n, u: Permutahedron(u / n + (1 - u) * 2 * np.arange(1, n + 1) / (n * (n + 1))),
}
K_CURVES = np.array([2, 4, 6, 8, 10.0])


def half(n):
    """The paper's set: w ≥ 1/(2n)."""
    return LowerBounded(n, 0.5 / n)


def four_digits(x):
    return pytest.approx(x, abs=5e-5)


# the loop itself


@pytest.mark.parametrize("projection", game.PROJECTIONS)
def test_play_is_the_papers_algorithm(projection):
    S, tau, v = LowerBounded(4, 0.1), 0.7, np.random.default_rng(0).random((6, 4))
    played = game.play(v, S, tau, projection)
    w = np.full(4, 0.25)
    for t in range(6):
        assert played.weights[t] == pytest.approx(w, abs=1e-15)
        assert played.losses[t] == pytest.approx(w @ v[t])
        u = w * np.exp(-tau * v[t])
        x = u / u.sum()
        w = {
            "euclidean": lambda x: S.project(x),
            "kl": lambda x: S.project(x, "kl"),
            "clip": lambda x: np.maximum(x, 0.1) / np.maximum(x, 0.1).sum(),
            "released": lambda x: np.clip(4 * x, 0.5, 2) / np.clip(4 * x, 0.5, 2).sum(),
            "best_response": lambda x, t=t: S.argmin(v[t]),
        }[projection](x)
        if projection != "best_response":
            assert played.unprojected[t] == pytest.approx(x, abs=1e-15)
    assert played.weights[6] == pytest.approx(w, abs=1e-15)
    assert played.payoffs.tolist() == v.tolist()
    assert (played.weights.shape, played.unprojected.shape, played.losses.shape) == ((7, 4), (6, 4), (6,))


def test_clip_takes_both_bounds_of_a_box():
    S, v = Box(3, 0.2, 0.5), np.array([[0, 0.5, 1]] * 4)
    played = game.play(v, S, 2.0, "clip")
    assert played.weights[-1] == pytest.approx(clip_renormalise(played.unprojected[-1], 0.2, 0.5))


def test_a_sequence_may_be_cut_short_and_a_function_may_be_the_max_player():
    v = np.random.default_rng(1).random((9, 3))
    rows = iter(v)
    by_function = game.play(lambda w: next(rows), half(3), 0.5, T=5)
    assert by_function.weights.tolist() == game.play(v, half(3), 0.5, T=5).weights.tolist()


def test_regret_against_a_loop_over_vertices():
    v = np.random.default_rng(2).random((50, 4))
    played = game.play(v, half(4), 0.3, "kl")
    vertices = np.full((4, 4), 1 / 8) + np.eye(4) / 2
    losses = [np.dot(w, u) for w, u in zip(played.weights, v, strict=False)]
    assert game.regret(played) == pytest.approx(np.mean(losses) - min((v @ w).mean() for w in vertices))
    assert game.regret(played, LowerBounded(4, 0)) == pytest.approx(np.mean(losses) - v.mean(0).min())


def test_alpha_is_the_papers_ratio_round_by_round():
    v = np.random.default_rng(3).random((30, 5)).round(1)
    v[7] = 0
    played = game.play(v, half(5), 0.8)
    comparator = half(5).argmin(v.mean(0))
    for t, alpha in enumerate(game.alpha_t(played)):
        epsilon = played.weights[t + 1] / played.unprojected[t] - 1
        top = sum(comparator[i] * v[t, i] for i in range(5) if epsilon[i] > 1e-12)
        assert alpha == pytest.approx(top / (comparator @ v[t]) if v[t].any() else 0)
    assert game.alpha_t(played, np.full(5, 0.2)).max() <= 1
    assert game.alpha_t(game.play(v, LowerBounded(5, 0), 0.8, "kl")).tolist() == [0] * 30  # nothing to project


# Theorem 1


@pytest.mark.parametrize(
    ("n", "T", "K", "share", "a", "alpha", "regret", "bound", "kl_regret"),
    [
        (3, 10_000, 500, 0.99, 0.247, 1, 0.0970, 0.0211, -0.0073),
        (10, 300, 60, 0.99, 0.720, 1, 0.2374, 0.1829, 0.0432),
        (10, 1000, 100, 0.95, 0.691, 0.921, 0.2875, 0.0945, 0.0243),
        (100, 10_000, 500, 0.99, 0.961, 1, 0.4466, 0.0434, 0.0120),
    ],
)
def test_the_trap_breaks_the_stated_bound_for_the_euclidean_projection(
    n, T, K, share, a, alpha, regret, bound, kl_regret
):
    S = half(n)
    level = share * game.trap_limit(n)
    v = game.trap_sequence(n, T, K, level)
    assumed, measured = game.self_consistent_alpha(v, S)
    trapped = game.regret(game.play(v, S, game.tau_paper(n, T, assumed)))
    tau = game.tau_paper(n, T, measured)
    by_kl = game.regret(game.play(v, S, tau, "kl"))
    assert level == pytest.approx(a, abs=5.1e-4)  # the a above are cut to three digits
    assert measured == pytest.approx(alpha, abs=5e-4)
    assert trapped == four_digits(regret)
    assert game.stated_bound(n, T, measured) == four_digits(bound)
    assert by_kl == four_digits(kl_regret)
    assert trapped > game.stated_bound(n, T, assumed) >= game.stated_bound(n, T, measured)
    assert by_kl <= game.corrected_bound(S, tau, T)


def test_alpha_and_tau_may_have_no_common_fixed_point():
    v = game.trap_sequence(10, 1000, 100, 0.95 * game.trap_limit(10))
    assumed, measured = game.self_consistent_alpha(v, half(10))
    assert (assumed, measured) == (1, pytest.approx(0.9205, abs=5e-5))
    back = game.alpha_t(game.play(v, half(10), game.tau_paper(10, 1000, measured))).max()
    assert back == pytest.approx(1)


def test_the_trap_holds_below_its_limit_and_not_above():
    for n, u in ((3, 1 / 6), (5, 0.05), (10, 0.05)):
        for share, held in ((0.97, True), (1.03, False)):
            v = game.trap_sequence(n, 2500, 250, share * game.trap_limit(n, u))
            last = game.play(v, LowerBounded(n, u), 0.03).weights[-1]
            assert (np.argmax(last) == 1) == held


def test_no_trap_breaks_the_stated_bound_at_the_lengths_the_paper_trains_for():
    for n, T in product((3, 10), (50, 150)):
        for K, share in product((10, 25, T // 2), (0.6, 0.9, 0.99)):
            v = game.trap_sequence(n, T, K, share * game.trap_limit(n))
            assumed, _ = game.self_consistent_alpha(v, half(n))
            assert game.regret(game.play(v, half(n), game.tau_paper(n, T, assumed))) <= game.stated_bound(n, T, assumed)


@pytest.mark.parametrize("projection", ["euclidean", "kl", "clip"])
def test_a_small_floor_breaks_the_stated_bound_for_every_map(projection):
    S, T = LowerBounded(2, 1e-3), 300
    v = game.alternating_sequence(2, T, 88)
    assert v[:2].tolist() == [[1, 0], [0, 1]]
    assert v[-88:].tolist() == [[0, 1]] * 88
    played = game.play(v, S, game.tau_paper(2, T, 0), projection)
    assert game.alpha_t(played).max() == 0
    assert game.regret(played) == pytest.approx(0.052746, abs=5e-7)
    assert game.stated_bound(2, T, 0) == pytest.approx(0.050378, abs=5e-7)
    dropped = 0.5 * np.sqrt(np.log(2) / T) * S.value(v.mean(0))
    assert game.regret(played) <= game.stated_bound(2, T, 0) + dropped


def test_two_classes_have_one_projection():
    v = np.random.default_rng(4).random((200, 2))
    by_kl, euclidean = (game.play(v, half(2), 0.5, p).weights for p in ("kl", "euclidean"))
    assert by_kl == pytest.approx(euclidean, abs=1e-12)


@pytest.mark.parametrize(("n", "reached", "bound"), [(10, 0.01705, 0.01769), (100, 0.02713, 0.02861)])
def test_the_corrected_bound_is_nearly_reached(n, reached, bound):
    T = 1000
    tau = game.tau_kl(n, T)
    regrets = [
        game.regret(game.play(game.alternating_sequence(n, T, int(pushes)), half(n), tau, "kl"))
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
            tau = game.tau_paper(n, T, alpha)
            assert game.corrected_bound(half(n), tau, T) <= game.stated_bound(n, T, alpha)


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
        return game.trap_sequence(n, T, switch, rng.random())
    if kind == "alternating":
        return game.alternating_sequence(n, T, switch)
    if kind == "against the weights":  # right where the min player stands, wrong elsewhere
        return lambda w: (w >= np.quantile(w, rng.choice([0.1, 0.5, 0.9]))).astype(float)
    drift = np.cumsum(rng.normal(0, 0.1, (T, n)), axis=0) + 0.5
    return np.clip(drift, 0, 1)


PLAYERS = ("uniform", "binary", "trap", "alternating", "against the weights", "drift")


@pytest.mark.parametrize(
    ("projection", "kind"),
    [("kl", "lower"), ("kl", "box"), ("kl", "permutahedron"), ("clip", "lower"), ("clip", "box")],
)
@settings(derandomize=True, deadline=None, max_examples=400)
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
@settings(derandomize=True, deadline=None, max_examples=200)
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
    assert game.tau_paper(100, 150, 0.1) == four_digits(0.1478)
    assert game.tau_paper(10, 50, 0.1) == four_digits(0.1782)
    assert game.tau_kl(10, 1000) == pytest.approx(np.sqrt(8 * 0.625695 / 1000), rel=1e-6)
    assert game.tau_kl(10, 1000, 0) == pytest.approx(np.sqrt(8 * np.log(10) / 1000))
    taus = np.geomspace(0.01, 1, 200)
    best = min(game.corrected_bound(half(10), tau, 1000) for tau in taus)
    assert game.corrected_bound(half(10), game.tau_kl(10, 1000), 1000) <= best
    assert game.corrected_bound(half(10).kl_diameter(), 0.1, 50) == game.corrected_bound(half(10), 0.1, 50)


# equilibrium


def vertices(S):
    n = S.n
    if isinstance(S, LowerBounded):
        return np.full((n, n), S.u_min) + np.eye(n) * (1 - n * S.u_min)
    if isinstance(S, Permutahedron):
        return np.array(list(permutations(S.w)))
    if isinstance(S, RatioBounded):
        corners = np.array(list(product((1.0, S.ratio), repeat=n)))
        return corners / corners.sum(1, keepdims=True)
    found = []
    for corner, free in product(product((S.low, S.high), repeat=n), range(n)):  # all but one at a bound
        w = np.array(corner)
        w[free] += 1 - w.sum()
        if S.low - 1e-12 <= w[free] <= S.high + 1e-12:
            found.append(w)
    return np.array(found)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("u", [0.0, 0.5])
def test_equilibrium_is_what_brute_force_over_the_vertices_finds(kind, n, u):
    S = SETS[kind](n, u)
    for seed in range(4):
        M = np.random.default_rng(seed).random((n, 2))
        first, second = (vertices(S) @ M).T  # loss of each vertex against each of two columns
        shares = [0.0, 1.0]
        for i, j in combinations(range(len(first)), 2):  # where two vertices lose the same
            slope = (first[i] - second[i]) - (first[j] - second[j])
            if abs(slope) > 1e-12:
                shares.append((second[j] - second[i]) / slope)
        q = np.clip(shares, 0, 1)[:, None]
        assert game.equilibrium(M, S).value == pytest.approx((q * first + (1 - q) * second).min(1).max(), abs=1e-9)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize(("n", "m"), [(1, 3), (5, 1), (6, 9), (30, 12)])
def test_both_sides_of_the_equilibrium_prove_its_value(kind, n, m):
    S, M = SETS[kind](n, 0.4), np.random.default_rng(n).normal(size=(n, m))
    solution = game.equilibrium(M, S)
    assert S.contains(solution.weights)
    assert LowerBounded(m, 0).contains(solution.strategy)
    assert (solution.weights @ M).max() == pytest.approx(solution.value, abs=1e-9)  # the max player gets no more
    assert S.value(M @ solution.strategy) == pytest.approx(solution.value, abs=1e-9)  # the min player loses no less


def test_matching_pennies():
    solution = game.equilibrium(np.eye(2), LowerBounded(2, 0))
    assert (solution.value, *solution.weights, *solution.strategy) == pytest.approx([0.5] * 5)


def test_averaged_weights_approach_the_equilibrium_like_one_over_the_root_of_t():
    rng = np.random.default_rng(0)
    for n in (3, 5):
        M, S, lengths = rng.random((n, n)), half(n), np.array([100, 400, 1600, 6400])
        value, gaps = game.equilibrium(M, S).value, []
        for T in lengths:
            played = game.play(game.best_response(M), S, game.tau_kl(n, int(T)), "kl", int(T))
            gaps.append((played.weights[:-1].mean(0) @ M).max() - value)
        assert (gaps <= np.sqrt(np.log(n) / (2 * lengths))).all()
        assert np.polyfit(np.log(lengths), np.log(gaps), 1)[0] == pytest.approx(-0.5, abs=0.06)


# max players


@pytest.mark.parametrize("n_u", [0, 0.25, 0.5, 0.75])
def test_the_constraint_damps_the_oscillation_of_best_responses(n_u):
    S = LowerBounded(5, n_u / 5)
    played = game.play(game.best_response_on_curves(K_CURVES), S, 1, "best_response", 200)
    moves = np.abs(np.diff(played.weights, axis=0)).sum(1)
    assert moves[10:] == pytest.approx(np.full(190, 2 * (1 - n_u)))


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("u", [0, 0.1])
def test_multiplicative_weights_converge_where_best_responses_do_not(tau, u):
    S = LowerBounded(5, u)
    played = game.play(game.best_response_on_curves(K_CURVES), S, tau, "kl", 1000)
    assert np.abs(np.diff(played.weights[-20:], axis=0)).max() < 1e-9
    assert played.losses[-1] == pytest.approx(S.value(played.payoffs[-1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_best_response_on_curves_is_what_slsqp_finds(seed):
    w = np.random.default_rng(seed).dirichlet(np.full(5, 0.7))
    found = minimize(
        lambda theta: -w @ (1 - np.exp(-K_CURVES * theta)),
        np.full(5, 0.2),
        jac=lambda theta: -w * K_CURVES * np.exp(-K_CURVES * theta),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda theta: theta.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-13},
    )
    v = game.best_response_on_curves(K_CURVES)(w)
    assert w @ v == pytest.approx(-found.fun, abs=1e-8)
    assert (-np.log1p(-v) / K_CURVES).sum() == pytest.approx(1)


def test_the_best_response_on_curves_leaves_classes_without_weight():
    v = game.best_response_on_curves([1, 2, 3])(np.array([0, 1, 0.0]))
    assert v == pytest.approx([0, 1 - np.exp(-2), 0])


@pytest.mark.parametrize("lag", [0, 3])
def test_the_gradient_player_looks_at_old_weights_and_starts_afresh(lag):
    player, S = game.GradientPlayer(K_CURVES, step=0.05, lag=lag), half(5)
    played = game.play(player, S, 0.5, "kl", 20)
    theta = np.full(5, 0.2)
    for t in range(20):
        w = played.weights[max(t - lag, 0)]
        theta = LowerBounded(5, 0).project(theta + 0.05 * w * K_CURVES * np.exp(-K_CURVES * theta))
        assert played.payoffs[t] == pytest.approx(1 - np.exp(-K_CURVES * theta))
    assert game.play(player, S, 0.5, "kl", 20).weights.tolist() == played.weights.tolist()


def test_a_lag_of_the_learner_makes_large_steps_oscillate():
    late, prompt = (
        np.abs(
            np.diff(game.play(game.GradientPlayer(K_CURVES, 0.1, lag), half(5), 1.0, "kl", 2000).weights[-50:], axis=0)
        )
        for lag in (5, 0)
    )
    assert prompt.max() < 1e-9
    assert late.max() > 0.01


# bad input


@pytest.mark.parametrize("tau", [0, -1, np.nan, np.inf])
def test_steps_that_are_none_are_refused(tau):
    with pytest.raises(ClamkitError, match="finite number above 0"):
        game.play([[0.5, 0.5]], half(2), tau)
    with pytest.raises(ClamkitError, match="finite number above 0"):
        game.corrected_bound(half(2), tau, 10)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: game.play([[0.5, 1.2]], half(2), 1), "round 1 class 1 has accuracy 1.2"),
        (lambda: game.play([[0.5, 0.5], [-0.1, 0.5]], half(2), 1), "round 2 class 0"),
        (lambda: game.play([[np.nan, 0.5]], half(2), 1), "accuracy nan"),
        (lambda: game.play(lambda w: w * 90, half(2), 1, T=3), "percent"),
        (lambda: game.play([[0.5, 0.5, 0.5]], half(2), 1), "each of 2 classes"),
        (lambda: game.play([0.5, 0.5], half(2), 1), "each of 2 classes"),
        (lambda: game.play([], half(2), 1), "T=0"),
        (lambda: game.play([[0.5, 0.5]], half(2), 1, T=2), "the sequence has 1"),
        (lambda: game.play([[0.5, 0.5]], half(2), 1, T=0), "at least 1"),
        (lambda: game.play(lambda w: w, half(2), 1), "T=None"),
        (lambda: game.play([[0.5, 0.5]], half(2), 1, "kll"), "Did you mean 'kl'"),
        (lambda: game.play([[0.5, 0.5]], RatioBounded(2, 3), 1, "clip"), "needs bounds on each weight"),
        (lambda: game.play(lambda w: w, LowerBounded(2, 0.6), 1, T=3), "no room for 2 classes"),
        (lambda: game.play(lambda w: w, RatioBounded(2, 0.5), 1, T=3), "at least 1"),
        (lambda: game.play(game.best_response(np.eye(3)), half(2), 1, T=3), "2 rows"),
        (lambda: game.play(game.best_response_on_curves([1, 2, 3]), half(2), 1, T=3), "for 2 classes"),
        (lambda: game.play(game.GradientPlayer([1, 2, 3]), half(2), 1, T=3), "for 2 classes"),
        (lambda: game.play(game.GradientPlayer([1, 2], step=0), half(2), 1, T=3), "step=0"),
        (lambda: game.play(game.GradientPlayer([1, 2], lag=-1), half(2), 1, T=3), "lag"),
        (lambda: game.best_response_on_curves([1, -2]), "above 0"),
        (lambda: game.tau_paper(10, 50, -0.1), "alpha=-0.1"),
        (lambda: game.tau_paper(10, 0, 0.1), "T=0"),
        (lambda: game.stated_bound(0, 10, 0.1), "n=0"),
        (lambda: game.tau_kl(10, 50, 0.2), "no room for 10 classes"),
        (lambda: game.corrected_bound(-1, 0.1, 50), "D=-1"),
        (lambda: game.trap_sequence(3, 10, 11, 0.2), "K from 0 to T"),
        (lambda: game.trap_sequence(3, 10, 5, 1.2), "accuracy 1.2"),
        (lambda: game.alternating_sequence(1, 10, 5), "at least two classes"),
        (lambda: game.equilibrium(np.eye(3), half(2)), "2 rows"),
        (lambda: game.equilibrium([[0.5, np.nan]] * 2, half(2)), "finite numbers"),
        (lambda: game.equilibrium(np.ones((2, 0)), half(2)), "column for each strategy"),
        (lambda: game.equilibrium([0.5, 0.5], half(2)), "must be a matrix"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ClamkitError, match=words):
        call()


def test_a_linear_program_without_solution_is_reported():
    S = half(3)
    S.bounds = (0.5, 1)  # what no constructor would let through
    with pytest.raises(ClamkitError, match="no solution"):
        game.equilibrium(np.eye(3), S)


def test_a_set_of_another_kind_is_refused():
    class Elsewhere:
        n = 2

    with pytest.raises(ClamkitError, match="not Elsewhere"):
        game.equilibrium(np.eye(2), Elsewhere())


def test_the_suite_is_made_of_accuracies():
    for n, T in ((2, 7), (3, 50), (10, 333)):
        suite = game.suite(n, T)
        assert ("trap" in suite) == (n > 2)
        for v in suite.values():
            assert v.shape == (T, n)
            assert 0 <= v.min() <= v.max() <= 1
