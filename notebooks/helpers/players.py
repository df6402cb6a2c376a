"""Theorem 1 as the paper states it, and who plays against the min player: max players, sequences to try a bound on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from clamkit.checks import fraction, positive, positive_int
from clamkit.errors import ClamkitError
from clamkit.theory.game import Play, Respond, checked_matrix, equilibrium, play, tau_kl
from clamkit.theory.sets import LowerBounded, SymmetricSet

ALPHA_ASSUMED = 0.1  # the paper's max α_t, appendix "Different Values of τ"
RAISED = 1e-12  # a weight counts as raised by the projection when it grew by more than this share (rounding)


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


def tau_paper(n: int, T: int, alpha: float) -> float:
    """τ of Theorem 1: ln(1 + √(ln n / T) / (1 + α))."""
    return float(np.log1p(_rate(n, T, alpha) / (1 + alpha)))


def stated_bound(n: int, T: int, alpha: float) -> float:
    """The paper's Theorem 1: ln n / T + (1 + α) √(ln n / T). The Euclidean projection can break it."""
    s = _rate(n, T, alpha)
    return s**2 + (1 + alpha) * s


def self_consistent_alpha(payoffs: np.ndarray, S: SymmetricSet, projection: str = "euclidean") -> tuple[float, float]:
    """(assumed α, measured max α_t) of Theorem 1, whose τ depends on α, which depends on τ.

    Repeats α ← max α_t of the play with tau_paper(n, T, α), from α = 1, the largest there is. The two numbers agree
    when a fixed point is met. A jump of α_t can leave none: then α goes round a cycle, and its largest member is
    returned. It bounds what is measured from above, which is all the paper's proof asks of it.
    """
    measured: dict[float, float] = {}
    alpha = 1.0
    while alpha not in measured:
        played = play(payoffs, S, tau_paper(S.n, len(payoffs), alpha), projection)
        measured[alpha] = float(alpha_t(played).max())
        alpha = measured[alpha]
    cycle = list(measured)[list(measured).index(alpha) :]
    return max(cycle), measured[max(cycle)]


def trap_limit(n: int, u_min: float | None = None) -> float:
    """The a below which `trap_sequence` holds small Euclidean steps on the wrong vertex of w ≥ u_min.

    (1 − n·u)(n − 2) / (n (1 − (n − 1)u)); for u = 1/(2n), the default: (n − 2)/(n + 1).
    """
    u = LowerBounded(n, u_min).u_min
    return (1 - n * u) * (n - 2) / (n * (1 - (n - 1) * u))


def _ones(n: int, T: int, K: int) -> np.ndarray:
    if not (positive_int(n, "n") >= 2 and 0 <= K <= positive_int(T, "T")):
        raise ClamkitError(f"n={n}, T={T}, K={K}: the sequence needs at least two classes and K from 0 to T.")
    return np.ones((T, n))


def trap_sequence(n: int, T: int, K: int, a: float) -> np.ndarray:
    """(1, 0, 1, …, 1) for K rounds, then (0, a, 1, …, 1): Euclidean iterates stay with the second class."""
    v = _ones(n, T, K)
    v[:K, 1], v[K:, 0], v[K:, 1] = 0, 0, fraction(a, "a")
    return v


def alternating_sequence(n: int, T: int, K: int) -> np.ndarray:
    """One half of the classes at 1 and the other at 0, in turns, then K rounds of (0, 1, …, 1).

    Nearly reaches the corrected bound. For n = 2 and a small u_min it breaks the stated one without any clipping.
    """
    v = _ones(n, T, K)
    first_half = np.arange(n) < n // 2
    v[0 : T - K : 2], v[1 : T - K : 2] = first_half, ~first_half
    v[T - K :, 0] = 0
    return v


def suite(n: int, T: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Sequences [T, n] to try a bound on: harmless ones, ones that swing, and for n ≥ 3 the trap."""
    rng, t = np.random.default_rng(seed), np.arange(T)[:, None] / T
    found = {
        "random": rng.random((T, n)),
        "coin flips": rng.integers(0, 2, (T, n)).astype(float),
        "drift": 0.5 + 0.5 * np.sin(2 * np.pi * (3 * t + np.arange(n) / n)),
        "learning curves": 1 - np.exp(-np.linspace(1, 20, n) * t),
        "alternating": alternating_sequence(n, T, min(T, int(2.5 / tau_kl(n, T)))),
    }
    return found | ({"trap": trap_sequence(n, T, T // 10, 0.99 * trap_limit(n))} if n >= 3 else {})


def best_response(M: ArrayLike) -> Respond:
    """Max player of a finite game: answers w with the column of M that has the largest w·M."""
    M = np.asarray(M, dtype=np.float64)
    return lambda w: M[:, np.argmax(w @ checked_matrix(M, len(w)))]


def _curves(k: ArrayLike, n: int | None = None) -> np.ndarray:
    k = np.asarray(k, dtype=np.float64)
    if k.shape != (n or k.size,) or not k.size or not ((k > 0) & np.isfinite(k)).all():
        raise ClamkitError(f"k={k.tolist()} for {n or 'the'} classes: give one finite rate above 0 for each class.")
    return k


def best_response_on_curves(k: ArrayLike) -> Respond:
    """Max player with one unit of effort θ to share: the best answer to w on v_i = 1 − exp(−k_i θ_i), Σθ = 1.

    θ_i = (ln(w_i k_i) − μ)₊ / k_i, μ from Σθ = 1 by one sort.
    """
    k = _curves(k)

    def respond(w: np.ndarray) -> np.ndarray:
        gain = w * _curves(k, len(w))  # slope of w·v in θ_i at 0
        order = np.argsort(-gain)[: np.count_nonzero(gain > 0)]
        logs = np.log(gain[order])
        mu = (np.cumsum(logs / k[order]) - 1) / np.cumsum(1 / k[order])
        theta = np.zeros(k.size)
        theta[order] = np.maximum(logs - mu[np.count_nonzero(logs >= mu) - 1], 0) / k[order]
        return 1 - np.exp(-k * theta)

    return respond


def gaps_of_averages(M: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Value of the averaged KL weights minus that of the equilibrium, for games of these lengths with τ = √(8D/T)."""
    S, answer = LowerBounded(len(M), 0.5 / len(M)), best_response(M)
    plays = [play(answer, S, tau_kl(len(M), int(T)), "kl", int(T)) for T in lengths]
    reached = [(played.weights[:-1].mean(axis=0) @ M).max() for played in plays]
    return np.array(reached) - equilibrium(M, S).value


@dataclass(frozen=True)
class GradientPlayer:
    """Max player that learns: θ ← the simplex's nearest point to θ + step · ∇(w·v), v_i = 1 − exp(−k_i θ_i).

    θ starts uniform; w is the one of `lag` rounds ago.
    """

    k: np.ndarray
    step: float = 0.1
    lag: int = 0

    def start(self) -> Respond:
        k, step = _curves(self.k), positive(self.step, "step", "It scales the gradient of w·v.")
        past = positive_int(self.lag + 1, "lag + 1")
        efforts, theta, seen = LowerBounded(k.size, 0), np.full(k.size, 1 / k.size), []

        def respond(w: np.ndarray) -> np.ndarray:
            nonlocal theta
            seen.append(w)
            gradient = seen[-past:][0] * _curves(k, len(w)) * np.exp(-k * theta)
            theta = efforts.project(theta + step * gradient)
            return 1 - np.exp(-k * theta)

        return respond
