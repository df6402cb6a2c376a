"""The two-player game of the paper (section 4): classes against classifier, with numpy and scipy alone.

The min player holds weights w in a set S, the max player answers with class accuracies v in [0, 1]ⁿ, and the min
player loses w·v. `play` runs the paper's Algorithm 1, `regret` and the bounds say how well the min player did,
`equilibrium` solves a finite game exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from clamkit.checks import positive, positive_int
from clamkit.errors import ClamkitError, unknown
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded, Permutahedron, RatioBounded, SymmetricSet, normalise

PROJECTIONS = (*update.MAPS, "best_response")
Respond = Callable[[np.ndarray], np.ndarray]  # w → v, or x → π(x)
Step = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (w, v) → x
RAISED = 1e-12  # a weight counts as raised by the projection when it grew by more than this share (rounding)


@dataclass(frozen=True)
class Play:
    """All iterates of a game of T rounds over n classes."""

    S: SymmetricSet
    tau: float
    projection: str
    weights: np.ndarray  # [T + 1, n]: w¹ uniform, w² … w^{T+1}
    payoffs: np.ndarray  # [T, n]: v¹ … v^T
    unprojected: np.ndarray  # [T, n]: x² … x^{T+1}, after the multiplicative step, before the projection
    losses: np.ndarray  # [T]: w^t·v^t


class Learner(Protocol):
    """A max player with a memory."""

    def start(self) -> Respond: ...


@dataclass(frozen=True)
class Equilibrium:
    """Optimal play of both sides: value = max over q of min over S of w·Mq."""

    value: float
    weights: np.ndarray  # [n]: the min player's point of S
    strategy: np.ndarray  # [m]: the max player's distribution over the columns of M


def checked_accuracies(v: ArrayLike, n: int, where: str) -> np.ndarray:
    v = np.asarray(v, dtype=np.float64)
    if v.shape != (n,):
        raise ClamkitError(f"the accuracies of {where} have shape {v.shape}: give one for each of {n} classes.")
    if not (v.min() >= 0 and v.max() <= 1):  # a nan fails too
        bad = np.flatnonzero(~((v >= 0) & (v <= 1)))[0]
        raise ClamkitError(f"in {where} class {bad} has accuracy {v[bad]:g}: it must lie in [0, 1] (not percent).")
    return v


def _min_player(S: SymmetricSet, tau: float, projection: str) -> tuple[Step, Respond]:
    """The step (w, v) → x and the map x → π(x) of the update rule."""
    if projection == "best_response":
        return lambda w, v: S.argmin(v), lambda x: x
    if projection not in update.MAPS:
        raise unknown("projection", projection, PROJECTIONS)
    return partial(update.multiplicative_step, tau=tau), partial(update.into_set, S=S, projection=projection)


def _max_player(given: Any, T: int | None) -> tuple[Respond, int]:
    """The function w → v of a fresh max player, and the number of rounds."""
    if hasattr(given, "start") or callable(given):
        return given.start() if hasattr(given, "start") else given, positive_int(T, "T")
    T = positive_int(len(given) if T is None else T, "T")
    if len(given) < T:
        raise ClamkitError(f"T={T} rounds, but the sequence has {len(given)}: give a longer one or a smaller T.")
    rows = iter(np.asarray(given))
    return lambda w: next(rows), T


def play(
    max_player: ArrayLike | Respond | Learner,
    S: SymmetricSet,
    tau: float,
    projection: str = "euclidean",
    T: int | None = None,
) -> Play:
    """w ← π(w·exp(−τv)/Z) for T rounds from the uniform w (paper, Algorithm 1 and eq. 8).

    max_player  an array [T, n] of accuracies, or a function w → v; one with a memory has `start()`, which returns
                such a function afresh
    projection  "euclidean" and "kl": the nearest point of S; "clip": clip to the bounds of S and renormalise (the
                map of the paper's proof); "released": clip to [1/(2n), 2/n] and renormalise, whatever S is;
                "best_response": no step at all, w ← argmin over S of w·v, which does not look at τ
    """
    tau = positive(tau, "tau", "The paper uses 1; tau_paper and tau_kl give the values of the theorems.")
    step, pi = _min_player(S, tau, projection)
    respond, T = _max_player(max_player, T)
    weights, payoffs, unprojected = np.empty((T + 1, S.n)), np.empty((T, S.n)), np.empty((T, S.n))
    weights[0] = 1 / S.n
    for t in range(T):
        payoffs[t] = checked_accuracies(respond(weights[t].copy()), S.n, f"round {t + 1}")
        unprojected[t] = step(weights[t], payoffs[t])
        weights[t + 1] = pi(unprojected[t])
    losses = np.einsum("tn,tn->t", weights[:-1], payoffs)
    return Play(S, tau, projection, weights, payoffs, unprojected, losses)


def regret(played: Play, S: SymmetricSet | None = None) -> float:
    """(1/T) Σ w^t·v^t − min over S of (1/T) Σ w·v^t, what Theorem 1 bounds.

    S is the set that was played on, or another one to compare with.
    """
    S = played.S if S is None else S
    return float(played.losses.mean() - S.value(played.payoffs.mean(axis=0)))


def alpha_t(played: Play, comparator: ArrayLike | None = None) -> np.ndarray:
    """α_t of Theorem 1 for each round: the share of w̃·v^t that lies on classes the projection raised (ε_i > 0).

    w̃ is the best fixed point of S unless another comparator is given; a round with w̃·v^t = 0 counts as 0.
    """
    w = played.S.argmin(played.payoffs.mean(axis=0)) if comparator is None else np.asarray(comparator)
    raised = played.weights[1:] > played.unprojected * (1 + RAISED)
    total = played.payoffs @ w
    return np.divide((played.payoffs * raised) @ w, total, out=np.zeros(len(total)), where=total > 0)


def _rate(n: int, T: int, alpha: float) -> float:
    """√(ln n / T), for an α that makes sense."""
    if not 0 <= alpha < np.inf:
        raise ClamkitError(f"alpha={alpha:g}: it is a share (Theorem 1), so it cannot be negative or infinite.")
    return float(np.sqrt(np.log(positive_int(n, "n")) / positive_int(T, "T")))


def half_uniform(n: int, u_min: float | None) -> LowerBounded:
    return LowerBounded(n, 0.5 / n if u_min is None else u_min)


def tau_paper(n: int, T: int, alpha: float) -> float:
    """τ of Theorem 1: ln(1 + √(ln n / T) / (1 + α))."""
    return float(np.log1p(_rate(n, T, alpha) / (1 + alpha)))


def tau_kl(n: int, T: int, u_min: float | None = None) -> float:
    """τ = √(8D/T), for which the corrected bound on w ≥ u_min (1/(2n) unless given) is smallest."""
    return float(np.sqrt(8 * half_uniform(n, u_min).kl_diameter() / positive_int(T, "T")))


def stated_bound(n: int, T: int, alpha: float) -> float:
    """The paper's Theorem 1: ln n / T + (1 + α) √(ln n / T). The Euclidean projection can break it."""
    s = _rate(n, T, alpha)
    return s**2 + (1 + alpha) * s


def corrected_bound(S: SymmetricSet | float, tau: float, T: int) -> float:
    """D/(τT) + τ/8, which holds for the KL projection and for clipping to bounds; S is a set or its D.

    By KL(w̃‖π(x)) ≤ KL(w̃‖x) for w̃ in S and Hoeffding's lemma on ln Z; with τ = √(8D/T) it is √(D/(2T)).
    """
    D = S.kl_diameter() if isinstance(S, SymmetricSet) else S
    if not 0 <= D < np.inf:
        raise ClamkitError(f"D={D:g}: give a set, or its kl_diameter(), a finite number ≥ 0.")
    tau = positive(tau, "tau", "tau_kl gives the value that makes this bound smallest.")
    return float(D / (tau * positive_int(T, "T")) + tau / 8)


def checked_matrix(M: ArrayLike, n: int) -> np.ndarray:
    M = np.asarray(M, dtype=np.float64)
    if M.ndim != 2 or len(M) != n or not M.size or not np.isfinite(M).all():
        raise ClamkitError(
            f"M has shape {M.shape}: it must be a matrix of finite numbers with {n} rows, one for each class, "
            "and a column for each strategy of the max player."
        )
    return M


def _lifted(S: SymmetricSet) -> tuple[Any, Any, Any, tuple[float, float | None]]:
    """S as the image w = Lz of {Az ≤ 0, Ez = 1, bounds on each z}: (L, A, E, bounds)."""
    n, eye, ones = S.n, sp.identity(S.n), np.ones((1, S.n))
    if (bounds := getattr(S, "bounds", None)) is not None:
        return eye, sp.csr_matrix((0, n)), ones, bounds
    if isinstance(S, RatioBounded):  # z = (w, a) with a ≤ w ≤ ratio·a
        A = sp.bmat([[eye, np.full((n, 1), -S.ratio)], [-eye, ones.T]])
        return sp.hstack([eye, sp.csr_matrix((n, 1))]), A, np.append(ones, [[0.0]], axis=1), (0, None)
    if isinstance(S, Permutahedron):  # z = the rows of a doubly stochastic P, w = P·(w of the set)
        E = sp.vstack([sp.kron(eye, ones), sp.kron(ones, eye)])
        return sp.kron(eye, S.w[None, :]), sp.csr_matrix((0, n * n)), E, (0, None)
    raise ClamkitError(f"equilibrium needs LowerBounded, Box, RatioBounded or Permutahedron, not {type(S).__name__}.")


def equilibrium(M: ArrayLike, S: SymmetricSet) -> Equilibrium:
    """The exact solution of max over q of min over w in S of w·Mq, q a distribution over the columns of M.

    As a linear program (HiGHS): the smallest t with (Mᵀw)_j ≤ t for all j; its multipliers are q.
    M is [n, m], a row for each class and a column for each strategy of the max player.
    """
    M = checked_matrix(M, S.n)
    m = M.shape[1]
    L, A, E, bounds = _lifted(S)
    answer = linprog(
        np.append(np.zeros(L.shape[1]), 1.0),
        A_ub=sp.bmat([[sp.csr_matrix(M.T) @ L, -np.ones((m, 1))], [A, None]]),
        b_ub=np.zeros(m + A.shape[0]),
        A_eq=sp.hstack([E, sp.csr_matrix((E.shape[0], 1))]),
        b_eq=np.ones(E.shape[0]),
        bounds=[bounds] * L.shape[1] + [(None, None)],
        method="highs",
    )
    if not answer.success:
        raise ClamkitError(f"the linear program has no solution, is S = {vars(S)} empty? HiGHS says: {answer.message}")
    return Equilibrium(
        value=float(answer.fun),
        weights=L @ answer.x[:-1],
        strategy=normalise(np.clip(-answer.ineqlin.marginals[:m], 0, None)),
    )
