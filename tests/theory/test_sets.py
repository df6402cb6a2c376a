"""The sets against SLSQP and HiGHS of scipy, optimality conditions, and numbers worked by hand."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from scipy.special import rel_entr, xlogy

from clamkit.errors import ClamkitError
from clamkit.theory.sets import PROJECTIONS, Box, LowerBounded, Permutahedron, RatioBounded

KINDS = ("lower", "ratio", "box", "permutahedron")
quick = settings(derandomize=True, deadline=None, max_examples=60)


def make(kind: str, n: int, strength: float):
    """A set of each kind; strength 0 is nearly the whole simplex, strength 1 nearly the uniform point."""
    if kind == "lower":
        return LowerBounded(n, 0.999 * strength / n)
    if kind == "ratio":
        return RatioBounded(n, 1 + 20 * (1 - strength) ** 2)
    if kind == "box":
        return Box(n, 0.999 * strength / n, 1 / n + (1 - strength) * (1 - 1 / n) * 0.6)
    return Permutahedron((1 - strength) * np.arange(1, n + 1) / (n * (n + 1) / 2) + strength / n)


def inequalities(S) -> tuple[np.ndarray, np.ndarray]:
    """S as {A w ≤ b, Σw = 1}, written out from its definition."""
    n = S.n
    eye = np.eye(n)
    if isinstance(S, LowerBounded):
        return -eye, np.full(n, -S.u_min)
    if isinstance(S, Box):
        return np.vstack([-eye, eye]), np.append(np.full(n, -S.low), np.full(n, S.high))
    if isinstance(S, RatioBounded):  # w_i ≤ ratio·w_j for all pairs
        rows = [eye[i] - S.ratio * eye[j] for i, j in permutations(range(n), 2)]
        return np.array([*rows, *-eye]), np.zeros(len(rows) + n)
    subsets = [c for k in range(1, n) for c in combinations(range(n), k)]  # no k entries above the k largest of w
    return np.array([eye[list(c)].sum(0) for c in subsets]), np.array([np.sort(S.w)[-len(c) :].sum() for c in subsets])


def distance(w, x, projection):
    return 0.5 * ((w - x) ** 2).sum() if projection == "euclidean" else rel_entr(np.maximum(w, 0), x).sum()


def slsqp(S, x, projection):
    A, b = inequalities(S)
    gradient = (lambda w: w - x) if projection == "euclidean" else (lambda w: np.log(np.maximum(w, 1e-15) / x) + 1)
    return minimize(
        distance,
        np.full(S.n, 1 / S.n),
        args=(x, projection),
        jac=lambda w, *_: gradient(w),
        method="SLSQP",
        bounds=[(0, 1)] * S.n,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(S.n)},
            {"type": "ineq", "fun": lambda w: b - A @ w, "jac": lambda w: -A},
        ],
        options={"ftol": 1e-14, "maxiter": 300},
    ).x


def assert_optimal(S, x, w, projection, tol):
    """First-order condition of a convex problem: no point of S lies below w along the gradient at w."""
    gradient = w - x if projection == "euclidean" else np.log(w / (x / x.sum()))
    assert S.contains(w, 1e-11)
    assert gradient @ w - S.value(gradient) <= tol


entries = st.one_of(st.floats(0.01, 1), st.sampled_from([0.25, 0.5, 1.0]))
points = st.integers(2, 7).flatmap(lambda n: st.lists(entries, min_size=n, max_size=n)).map(np.array)
strengths = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]))


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_projection_is_what_slsqp_finds(kind, projection):
    @quick
    @given(points, strengths, st.floats(-2, 2))
    def check(x, strength, shift):
        S = make(kind, len(x), strength)
        x = x / x.sum() if projection == "kl" else x + shift
        w, reference = S.project(x, projection), slsqp(S, x, projection)
        assert S.contains(w, 1e-12)
        assert distance(w, x, projection) <= distance(reference, x, projection) + 1e-8
        assert np.abs(w - reference).max() < 2e-4
        assert_optimal(S, x, w, projection, 1e-11)

    check()


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [8142, 200_000])
def test_large_projections_satisfy_the_optimality_condition(kind, projection, n):
    rng = np.random.default_rng(n)
    for strength, concentration in ((0.5, 0.3), (0.2, 3.0)):
        S = make(kind, n, strength)
        x = np.round(rng.dirichlet(np.full(n, concentration)), 9) + 1e-12  # rounding makes ties
        x /= x.sum()
        assert_optimal(S, x, S.project(x, projection), projection, 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_classes_work(kind, projection):
    x, S = np.random.default_rng(0).exponential(1e-6, 1_000_000), make(kind, 1_000_000, 0.5)
    assert S.contains(S.project(x, projection))


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_the_entries_between_the_bounds_move_together(projection):
    n, x = 8142, np.random.default_rng(3).dirichlet(np.full(8142, 0.5))
    for S, low, high in ((LowerBounded(n, 0.5 / n), 0.5 / n, np.inf), (Box(n, 0.5 / n, 2 / n), 0.5 / n, 2 / n)):
        w = S.project(x, projection)
        free = (w > low * (1 + 1e-9)) & (w < high * (1 - 1e-9))
        move = (x - w)[free] if projection == "euclidean" else (w / x)[free]
        assert free.sum() > 100
        assert np.ptp(move) < 1e-12 * (1 if projection == "euclidean" else move[0])
        raw = x - move[0] if projection == "euclidean" else x * move[0]
        assert (raw[w <= low * (1 + 1e-9)] <= low * (1 + 1e-9)).all()
        assert (raw[w >= high * (1 - 1e-9)] >= high * (1 - 1e-9)).all()


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(x=points, strength=strengths, which=st.sampled_from(PROJECTIONS))
def test_projecting_twice_is_projecting_once(kind, x, strength, which):
    S = make(kind, len(x), strength)
    once = S.project(x, which)
    assert np.abs(S.project(once, which) - once).max() < 1e-13


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_points_inside_come_back_unchanged(kind, projection):
    rng = np.random.default_rng(5)
    for n in (2, 5, 1000):
        S = make(kind, n, 0.3)
        mixed = rng.dirichlet(np.ones(4)) @ np.array([S.argmin(rng.random(n)) for _ in range(4)])
        for w in (np.full(n, 1 / n), mixed, S.argmin(rng.random(n))):
            assert np.abs(S.project(w, projection) - w).max() < 1e-14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    "x", [(1, 0, 0, 0, 0), (0.7, 0.3, 0, 0, 0), (0.5, 0.2, 0.2, 0.1, 0), (0, 0.25, 0.25, 0.25, 0.25)]
)
def test_zeros_are_the_limit_of_small_entries(kind, strength, x):
    S, x = make(kind, 5, strength), np.array(x)
    w = S.project(x, "kl")
    assert S.contains(w, 1e-12)
    assert np.abs(w - S.project(np.where(x > 0, x, 1e-290), "kl")).max() < 2e-12
    assert np.abs(w - S.project(np.where(x > 0, x, 1e-310), "kl")).max() < 2e-12
    assert_optimal(S, x, S.project(x), "euclidean", 1e-12)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_one_class_has_all_the_weight(projection):
    for S in (LowerBounded(1, 0.5), LowerBounded(1, 1), RatioBounded(1, 3), Box(1, 0, 1), Permutahedron([1.0])):
        assert S.project([0.2], projection).tolist() == [1.0]
        assert S.argmin([0.4]).tolist() == [1.0]
        assert S.value([0.4]) == pytest.approx(0.4)
        assert S.kl_diameter() == pytest.approx(0)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_sets_that_are_one_point(projection):
    x = np.array([0.6, 0.3, 0.1])
    for S in (RatioBounded(3, 1), Box(3, 1 / 3, 1 / 3), Box(3, 1 / 3, 1), Box(3, 0, 1 / 3), Permutahedron([1 / 3] * 3)):
        assert S.project(x, projection) == pytest.approx([1 / 3] * 3, abs=1e-15)
        assert S.value(x) == pytest.approx(1 / 3)


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("n", [2, 7, 49, 8142])
def test_a_floor_one_rounding_step_below_uniform(n, projection):
    w = LowerBounded(n, np.nextafter(1 / n, 0)).project(np.arange(n) + 1.0, projection)
    assert w == pytest.approx(np.full(n, 1 / n), rel=1e-9)


def test_far_away_points():
    for S in (LowerBounded(3, 1 / 6), Box(3, 1 / 6, 2 / 3), RatioBounded(3, 4), Permutahedron([4 / 6, 1 / 6, 1 / 6])):
        assert S.project([1e6, 0, 0]) == pytest.approx([2 / 3, 1 / 6, 1 / 6], abs=1e-9)
        assert S.project(np.array([1e6, 1e6, 1e6])) == pytest.approx([1 / 3] * 3, abs=1e-9)
    assert LowerBounded(2, 0.25).project([1e17, 0]).tolist() == [0.75, 0.25]


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("ratio", [1e6, 1e9, 1e15])
def test_large_ratios_are_kept_to_the_last_digits(ratio, projection):
    S, rng = RatioBounded(5, ratio), np.random.default_rng(0)
    for spread in (0.05, 0.5):
        for x in rng.dirichlet(np.full(5, spread), size=50):
            w = S.project(np.maximum(x, 1e-200), projection)
            assert w.min() > 0
            assert w.max() <= ratio * w.min() * (1 + 1e-12)


# f(v): the linear programs of the definitions


def linear_program(S, v):
    """min w·v over S as a linear program, with a doubly stochastic matrix for the permutahedron."""
    n = S.n
    if isinstance(S, Permutahedron):
        rows, columns = np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))
        return linprog(np.outer(v, S.w).ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.ones(2 * n)).fun
    if isinstance(S, RatioBounded):  # variables (w, a): a ≤ w_i ≤ ratio·a
        eye, one = np.eye(n), np.ones((n, 1))
        A = np.vstack([np.hstack([-eye, one]), np.hstack([eye, -S.ratio * one])])
        return linprog(np.append(v, 0), A_ub=A, b_ub=np.zeros(2 * n), A_eq=[[1] * n + [0]], b_eq=[1]).fun
    bounds = (S.low, S.high) if isinstance(S, Box) else (S.u_min, None)
    return linprog(v, A_eq=np.ones((1, n)), b_eq=[1], bounds=bounds).fun


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(v=points, strength=strengths)
def test_value_and_argmin_are_what_highs_finds(kind, v, strength):
    S = make(kind, len(v), strength)
    w = S.argmin(v)
    assert S.value(v) == pytest.approx(linear_program(S, v), abs=1e-12)
    assert w @ v == pytest.approx(S.value(v), abs=1e-14)
    assert S.contains(w, 1e-12)


def test_closed_forms_of_the_value():
    v = np.array([0.2, 0.9, 0.4, 0.7])
    assert LowerBounded(4, 1 / 8).value(v) == pytest.approx(0.5 * v.mean() + 0.5 * v.min())
    assert Permutahedron([0.1, 0.2, 0.3, 0.4]).value(v) == pytest.approx(0.4 * 0.2 + 0.3 * 0.4 + 0.2 * 0.7 + 0.1 * 0.9)
    assert Box(4, 0.1, 0.4).value(v) == pytest.approx(0.4 * 0.2 + 0.4 * 0.4 + 0.1 * 0.7 + 0.1 * 0.9)
    by_k = [(3 * np.sort(v)[:k].sum() + np.sort(v)[k:].sum()) / (4 - k + 3 * k) for k in range(5)]
    assert RatioBounded(4, 3).value(v) == pytest.approx(min(by_k))


@pytest.mark.parametrize("n", range(1, 7))
def test_ggf_is_the_smallest_weighted_sum_over_all_orders(n):
    rng = np.random.default_rng(n)
    w, v = rng.dirichlet(np.ones(n)), rng.random(n)
    brute_force = min(np.dot(order, v) for order in permutations(w))
    assert Permutahedron(w).value(v) == pytest.approx(brute_force, abs=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(v=points, strength=st.floats(0, 0.99), data=st.data())
def test_proposition_monotone_schur_concave_symmetric(kind, v, strength, data):
    S = make(kind, len(v), strength)
    assert S.value(v + data.draw(st.floats(0, 1)) * np.eye(len(v))[0]) >= S.value(v) - 1e-14
    assert S.value(v[::-1]) == pytest.approx(S.value(v), abs=1e-14)
    transfer = data.draw(st.floats(0, 1)) * (v.max() - v.min())
    closer = v.copy()
    closer[np.argmax(v)] -= transfer
    closer[np.argmin(v)] += transfer
    assert S.value(closer) >= S.value(v) - 1e-14


def test_monotonicity_is_strict_at_the_rate_u_min():
    S, v = LowerBounded(3, 1 / 6), np.array([0.2, 0.5, 0.9])
    assert S.value([0.2, 0.5, 1.0]) - S.value(v) == pytest.approx(0.1 / 6)


def test_a_set_that_is_not_symmetric_breaks_the_proposition():
    def f(v):  # {w₁ ≥ .6, w₂ ≥ .1}
        return linprog(v, A_eq=[[1, 1]], b_eq=[1], bounds=[(0.6, None), (0.1, None)]).fun

    assert [f([1, 0]), f([0, 1]), f([0.5, 0.5])] == pytest.approx([0.6, 0.1, 0.5])


# D = max KL(w‖uniform)


@pytest.mark.parametrize(("n", "expected"), [(2, 0.1308), (3, 0.2310), (10, 0.6257), (100, 1.6375)])
def test_kl_diameter_at_half_the_uniform_weight(n, expected):
    S = LowerBounded(n, 0.5 / n)
    u, a = 0.5 / n, 1 - (n - 1) * 0.5 / n
    assert S.kl_diameter() == pytest.approx(a * np.log(n * a) + (n - 1) * u * np.log(n * u))
    assert S.kl_diameter() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.0, 0.3, 0.8])
def test_kl_diameter_is_the_largest_over_the_vertices(kind, strength):
    S = make(kind, 5, strength)
    vertices = [S.argmin(v) for v in np.random.default_rng(0).random((3000, 5)) ** 4]
    largest = max(xlogy(w, 5 * w).sum() for w in vertices)
    assert S.kl_diameter() == pytest.approx(largest, abs=1e-12)
    assert LowerBounded(5, 0).kl_diameter() == pytest.approx(np.log(5))


# numbers worked by hand


def test_projections_worked_by_hand():
    x, S = [0.7, 0.25, 0.05], LowerBounded(3, 1 / 6)
    theta = (0.7 + 0.25 - (1 - 1 / 6)) / 2  # the third class on the floor, the others share the rest
    assert S.project(x) == pytest.approx([0.7 - theta, 0.25 - theta, 1 / 6])
    c = (1 - 1 / 6) / 0.95
    assert S.project(x, "kl") == pytest.approx([0.7 * c, 0.25 * c, 1 / 6])
    assert LowerBounded(3, 0.1).project([0.98, 0.01, 0.01], "kl") == pytest.approx([0.8, 0.1, 0.1])


# bad input


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LowerBounded(10, 0.2), "leaves no room for 10 classes"),
        (lambda: LowerBounded(4, 0.25), "below 1/4"),
        (lambda: LowerBounded(3, -0.1), "at least 0"),
        (lambda: LowerBounded(1, -1), "at least 0"),
        (lambda: LowerBounded(3, np.nan), "u_min=nan"),
        (lambda: LowerBounded(0, 0), "n=0"),
        (lambda: LowerBounded(2.5, 0), "whole number"),
        (lambda: RatioBounded(3, 0.5), "at least 1"),
        (lambda: RatioBounded(3, np.inf), "finite"),
        (lambda: RatioBounded(3, np.nan), "ratio=nan"),
        (lambda: Box(3, 0.4, 0.9), "no distribution over 3 classes"),
        (lambda: Box(3, 0.1, 0.3), "high at least"),
        (lambda: Box(3, 0.5, 0.2), "no distribution"),
        (lambda: Box(3, -0.1, 0.5), "low must be from 0"),
        (lambda: Box(3, 0.1, np.nan), "nan"),
        (lambda: Permutahedron([]), "at least 1"),
        (lambda: Permutahedron([[0.5, 0.5]]), "each of 2 classes"),
        (lambda: Permutahedron([0.5, 0.6]), "sum 1.1"),
        (lambda: Permutahedron([1.5, -0.5]), "non-negative"),
        (lambda: Permutahedron([0.5, np.nan]), "nan"),
    ],
)
def test_sets_that_do_not_exist_are_refused(build, words):
    with pytest.raises(ClamkitError, match=words):
        build()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_that_do_not_fit_are_refused(kind):
    S = make(kind, 3, 0.5)
    for call in (S.contains, S.project, S.value, S.argmin):
        with pytest.raises(ClamkitError, match="each of 3 classes"):
            call([0.5, 0.5])
        with pytest.raises(ClamkitError, match="is nan: it must be a finite number"):
            call([0.5, np.nan, 0.5])
    with pytest.raises(ClamkitError, match="non-negative"):
        S.project([0.5, -0.5, 1], "kl")
    with pytest.raises(ClamkitError, match="positive"):
        S.project([0, 0, 0], "kl")
    with pytest.raises(ClamkitError, match="Did you mean 'euclidean'"):
        S.project([0.5, 0.3, 0.2], "euclidian")


@pytest.mark.parametrize("kind", KINDS)
def test_contains_sees_both_the_sum_and_the_bounds(kind):
    S = make(kind, 4, 0.5)
    assert S.contains(np.full(4, 0.25))
    assert not S.contains(np.full(4, 0.3))
    assert not S.contains([1, 0, 0, 0])
    edge = S.argmin([0.1, 0.2, 0.3, 0.4])
    outside = edge + 1e-4 * (edge - 0.25)
    assert S.contains(edge)
    assert not S.contains(outside)
    assert S.contains(outside, tol=1e-3)
