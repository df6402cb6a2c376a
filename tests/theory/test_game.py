"""The game, its players and its equilibrium against loops, brute force, SLSQP and linear programs."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.optimize import minimize

from clamkit.errors import ClamkitError
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
K_CURVES = np.array([2, 4, 6, 8, 10.0])


def half(n):
    """The paper's set: w ≥ 1/(2n)."""
    return LowerBounded(n, 0.5 / n)


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
    for t, alpha in enumerate(players.alpha_t(played)):
        epsilon = played.weights[t + 1] / played.unprojected[t] - 1
        top = sum(comparator[i] * v[t, i] for i in range(5) if epsilon[i] > 1e-12)
        assert alpha == pytest.approx(top / (comparator @ v[t]) if v[t].any() else 0)
    assert players.alpha_t(played, np.full(5, 0.2)).max() <= 1
    assert players.alpha_t(game.play(v, LowerBounded(5, 0), 0.8, "kl")).tolist() == [0] * 30  # nothing to project


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


@pytest.mark.slow
def test_averaged_weights_approach_the_equilibrium_like_one_over_the_root_of_t():
    rng = np.random.default_rng(0)
    for n in (3, 5):
        M, S, lengths = rng.random((n, n)), half(n), np.array([100, 400, 1600, 6400])
        value, gaps = game.equilibrium(M, S).value, []
        for T in lengths:
            played = game.play(players.best_response(M), S, game.tau_kl(n, int(T)), "kl", int(T))
            gaps.append((played.weights[:-1].mean(0) @ M).max() - value)
        assert (gaps <= np.sqrt(np.log(n) / (2 * lengths))).all()
        assert np.polyfit(np.log(lengths), np.log(gaps), 1)[0] == pytest.approx(-0.5, abs=0.06)


# max players


@pytest.mark.parametrize("n_u", [0, 0.25, 0.5, 0.75])
def test_the_constraint_damps_the_oscillation_of_best_responses(n_u):
    S = LowerBounded(5, n_u / 5)
    played = game.play(players.best_response_on_curves(K_CURVES), S, 1, "best_response", 200)
    moves = np.abs(np.diff(played.weights, axis=0)).sum(1)
    assert moves[10:] == pytest.approx(np.full(190, 2 * (1 - n_u)))


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("u", [0, 0.1])
def test_multiplicative_weights_converge_where_best_responses_do_not(tau, u):
    S = LowerBounded(5, u)
    played = game.play(players.best_response_on_curves(K_CURVES), S, tau, "kl", 1000)
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
    v = players.best_response_on_curves(K_CURVES)(w)
    assert w @ v == pytest.approx(-found.fun, abs=1e-8)
    assert (-np.log1p(-v) / K_CURVES).sum() == pytest.approx(1)


def test_the_best_response_on_curves_leaves_classes_without_weight():
    v = players.best_response_on_curves([1, 2, 3])(np.array([0, 1, 0.0]))
    assert v == pytest.approx([0, 1 - np.exp(-2), 0])


@pytest.mark.parametrize("lag", [0, 3])
def test_the_gradient_player_looks_at_old_weights_and_starts_afresh(lag):
    player, S = players.GradientPlayer(K_CURVES, step=0.05, lag=lag), half(5)
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
            np.diff(
                game.play(players.GradientPlayer(K_CURVES, 0.1, lag), half(5), 1.0, "kl", 2000).weights[-50:], axis=0
            )
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
        (lambda: game.play([[0.5, 1.2]], half(2), 1), "accuracy in round 1 of class 1 is 1.2: .* from 0 to 1"),
        (lambda: game.play([[0.5, 0.5], [-0.1, 0.5]], half(2), 1), "round 2 of class 0 is -0.1"),
        (lambda: game.play([[np.nan, 0.5]], half(2), 1), "class 0 is nan"),
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
        (lambda: game.play(players.best_response(np.eye(3)), half(2), 1, T=3), "2 rows"),
        (lambda: game.play(players.best_response_on_curves([1, 2, 3]), half(2), 1, T=3), "for 2 classes"),
        (lambda: game.play(players.GradientPlayer([1, 2, 3]), half(2), 1, T=3), "for 2 classes"),
        (lambda: game.play(players.GradientPlayer([1, 2], step=0), half(2), 1, T=3), "step=0"),
        (lambda: game.play(players.GradientPlayer([1, 2], lag=-1), half(2), 1, T=3), "lag"),
        (lambda: players.best_response_on_curves([1, -2]), "above 0"),
        (lambda: players.tau_paper(10, 50, -0.1), "alpha=-0.1"),
        (lambda: players.tau_paper(10, 0, 0.1), "T=0"),
        (lambda: players.stated_bound(0, 10, 0.1), "n=0"),
        (lambda: game.tau_kl(10, 50, 0.2), "no room for 10 classes"),
        (lambda: players.trap_sequence(3, 10, 11, 0.2), "K from 0 to T"),
        (lambda: players.trap_sequence(3, 10, 5, 1.2), "a=1.2"),
        (lambda: players.alternating_sequence(1, 10, 5), "at least two classes"),
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
        suite = players.suite(n, T)
        assert ("trap" in suite) == (n > 2)
        for v in suite.values():
            assert v.shape == (T, n)
            assert 0 <= v.min() <= v.max() <= 1
