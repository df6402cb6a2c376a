"""The two-player game of the paper (section 4): classes against classifier, with numpy and scipy alone.

The min player holds weights w in a set S, the max player answers with class accuracies v in [0, 1]ⁿ, and the min
player loses w·v. `play` runs the paper's Algorithm 1, `regret` and the bounds say how well the min player did,
`equilibrium` solves a finite game exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from clamkit.checks import of_classes, positive, positive_int
from clamkit.errors import ClamkitError, check_known
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded, Permutahedron, RatioBounded, SymmetricSet, normalise

PROJECTIONS = (*update.MAPS, "best_response")
Respond = Callable[[np.ndarray], np.ndarray]  # w → v


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


@dataclass(frozen=True)
class Equilibrium:
    """Optimal play of both sides: value = max over q of min over S of w·Mq."""

    value: float
    weights: np.ndarray  # [n]: the min player's point of S
    strategy: np.ndarray  # [m]: the max player's distribution over the columns of M


def _max_player(given: Any, T: int | None) -> tuple[Respond, int]:
    """The function w → v of a fresh max player, and the number of rounds."""
    given = given.start() if hasattr(given, "start") else given
    if callable(given):
        return given, positive_int(T, "T")
    T = positive_int(len(given) if T is None else T, "T")
    if len(given) < T:
        raise ClamkitError(f"T={T} rounds, but the sequence has {len(given)}: give a longer one or a smaller T.")
    rows = iter(np.asarray(given))
    return lambda w: next(rows), T


def play(max_player: Any, S: SymmetricSet, tau: float, projection: str = "euclidean", T: int | None = None) -> Play:
    """w ← π(w·exp(−τv)/Z) for T rounds from the uniform w (paper, Algorithm 1 and eq. 8).

    max_player  an array [T, n] of accuracies, or a function w → v; with a memory, `start()` gives it afresh
    projection  π of `update.into_set`; or "best_response": no step, w ← argmin over S of w·v, which does not look at τ
    """
    tau = positive(tau, "tau", "The paper uses 1; tau_kl gives the value of the corrected theorem.")
    check_known("projection", projection, PROJECTIONS)
    respond, T = _max_player(max_player, T)
    weights, payoffs, unprojected = np.empty((T + 1, S.n)), np.empty((T, S.n)), np.empty((T, S.n))
    weights[0] = 1 / S.n
    for t in range(T):
        payoffs[t] = of_classes(respond(weights[t].copy()), S.n, f"the accuracy in round {t + 1}", 0, 1)
        if projection == "best_response":
            unprojected[t] = weights[t + 1] = S.argmin(payoffs[t])
        else:
            unprojected[t] = update.multiplicative_step(weights[t], payoffs[t], tau)
            weights[t + 1] = update.into_set(unprojected[t], S, projection)
    losses = np.einsum("tn,tn->t", weights[:-1], payoffs)
    return Play(S, tau, projection, weights, payoffs, unprojected, losses)


def regret(played: Play, S: SymmetricSet | None = None) -> float:
    """(1/T) Σ w^t·v^t − min over S of (1/T) Σ w·v^t, what Theorem 1 bounds.

    S is the set that was played on, or another one to compare with.
    """
    S = played.S if S is None else S
    return float(played.losses.mean() - S.value(played.payoffs.mean(axis=0)))


def tau_kl(n: int, T: int, u_min: float | None = None) -> float:
    """τ = √(8D/T), for which the corrected bound on w ≥ u_min (1/(2n) unless given) is smallest."""
    return float(np.sqrt(8 * LowerBounded(n, u_min).kl_diameter() / positive_int(T, "T")))


def corrected_bound(S: SymmetricSet, tau: float, T: int) -> float:
    """D/(τT) + τ/8, D the KL diameter of S: holds for the KL projection and for clipping to bounds.

    By KL(w̃‖π(x)) ≤ KL(w̃‖x) for w̃ in S and Hoeffding's lemma on ln Z; with τ = √(8D/T) it is √(D/(2T)).
    """
    tau = positive(tau, "tau", "tau_kl gives the value that makes this bound smallest.")
    return float(S.kl_diameter() / (tau * positive_int(T, "T")) + tau / 8)


def checked_matrix(M: ArrayLike, n: int) -> np.ndarray:
    M = np.asarray(M, dtype=np.float64)
    if M.ndim != 2 or len(M) != n or not M.size or not np.isfinite(M).all():
        given, columns = f"M has shape {M.shape}", "a column for each strategy"
        raise ClamkitError(f"{given}: it must be a matrix of finite numbers with {n} rows (classes) and {columns}.")
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
    strategy = normalise(np.clip(-answer.ineqlin.marginals[:m], 0, None))
    return Equilibrium(float(answer.fun), L @ answer.x[:-1], strategy)
