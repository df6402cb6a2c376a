"""Every rule by which class weights move, as a pure function of distributions: w (sum 1) → w (sum 1).

The weighters of `clamkit.methods` and the game of `clamkit.theory.game` both play by these. v are class accuracies in
[0, 1], losses class losses ≥ 0, n the number of classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from clamkit.checks import step_size
from clamkit.errors import ClamkitError, check_known
from clamkit.metrics import tail_size
from clamkit.theory.sets import PROJECTIONS, SymmetricSet, normalise

MAPS = (*PROJECTIONS, "clip", "released")  # ways back into the set after a multiplicative step
RELEASED_CLIP = (0.5, 2.0)  # bounds of the released code, for weights with mean 1


def multiplicative_step(w: np.ndarray, v: np.ndarray, tau: float) -> np.ndarray:
    """One hedge step x = w·exp(−τv) / Z (paper, eq. 8 before the projection).

    v is shifted by its minimum first, so that a large τ cannot turn every entry into zero.
    """
    alive = w > 0  # the shift is by the smallest v that still carries weight
    return normalise(w * np.exp(-step_size(tau) * np.maximum(v - v[alive].min(), 0)))


def clip_renormalise(x: ArrayLike, low: float, high: float = np.inf) -> np.ndarray:
    """clip(x, low, high) / Z, the map of the paper's proof (high = ∞) and of the released code.

    Not a projection: the result may leave [low, high]. With low = 1/6, (.7, .25, .05) goes to (.627, .224, .149).
    """
    return normalise(np.clip(np.asarray(x, dtype=np.float64), low, high))


def released_clip(x: np.ndarray) -> np.ndarray:
    """Clip to [1/(2n), 2/n] and renormalise, as the released code does."""
    low, high = RELEASED_CLIP
    return clip_renormalise(x, low / len(x), high / len(x))


def into_set(x: np.ndarray, S: SymmetricSet, projection: str) -> np.ndarray:
    """π(x), the way back into S after a step.

    "euclidean", "kl": the nearest point of S; "clip": clip to the bounds of S and renormalise (the map of the paper's
    proof); "released": clip to [1/(2n), 2/n] and renormalise, whatever S is.
    """
    if projection == "released":
        return released_clip(x)
    if projection in PROJECTIONS:
        return S.project(x, projection)
    check_known("projection", projection, MAPS)
    if S.bounds is None:
        lacks = f"which {type(S).__name__} does not have"
        raise ClamkitError(f"projection='clip' needs bounds on each weight, {lacks}: take LowerBounded or Box, or kl.")
    return clip_renormalise(x, *S.bounds)


def clam(w: np.ndarray, v: np.ndarray, S: SymmetricSet, tau: float, projection: str) -> np.ndarray:
    """w ← π(w·exp(−τv)/Z): the paper's eq. 8."""
    return into_set(multiplicative_step(w, v, tau), S, projection)


def mixed(q: np.ndarray, gamma: float) -> np.ndarray:
    """γ/n + (1 − γ)·q: into {w ≥ γ/n} by mixing with the uniform distribution in place of projecting (CFOL).

    With hedge on q, regret against any w̃ ≥ γ/n is (1 − γ) times that of q: at most (1 − γ)·(ln n/(τT) + τ/8), with the
    best τ (1 − γ)·√(ln n/(2T)). The KL projection on the same set has √(D/(2T)), `game.corrected_bound`.
    """
    return gamma / len(q) + (1 - gamma) * q


def toward_worst(w: np.ndarray, v: np.ndarray, alpha: float) -> np.ndarray:
    """w ← (1 − α)·w + α·uniform on the worst tenth of the classes by accuracy: the linear ascent of TLA."""
    worst = np.zeros(len(w))
    worst[np.argsort(v, kind="stable")[: tail_size(len(w))]] = 1
    return (1 - alpha) * w + alpha * worst / worst.sum()


def tilted(w: np.ndarray, losses: np.ndarray, gamma: float) -> np.ndarray:
    """w ← (1 − γ)w + γ·softmax(losses): TCE (paper, appendix "Baselines")."""
    return (1 - gamma) * w + gamma * normalise(np.exp(losses - losses.max()))


def gini(badness: np.ndarray, alpha: float, w_min: float) -> np.ndarray:
    """w_i ∝ max(α^(rank_i − 1), w_min), rank 1 the largest `badness`: GGF (paper, appendix "Baselines").

    Equals share their ranks: each gets the mean of the weights of those ranks, so no class gains by its number.
    """
    by_rank = np.maximum(alpha ** np.arange(len(badness)), w_min)
    _, place, count = np.unique(-badness, return_inverse=True, return_counts=True)
    return normalise((np.add.reduceat(by_rank, np.cumsum(count) - count) / count)[place])


def star_adapted(w: np.ndarray, losses: np.ndarray, alpha: float, k: int) -> np.ndarray:
    """w ← αw + (1 − α)/(K·|worst|) on the worst tenth by loss, then the released clip: the CLAM authors' APStar."""
    worst = np.zeros(len(w), dtype=bool)
    worst[np.argsort(-losses, kind="stable")[: tail_size(len(w))]] = True
    return released_clip(_toward(w, worst, alpha, k))


def star_original(w: np.ndarray, losses: np.ndarray, alpha: float, k: int, best: float) -> np.ndarray:
    """The same toward the classes with a loss ≥ the best worst loss so far, without a clip (Martinez et al. 2020)."""
    return normalise(_toward(w, losses >= best, alpha, k))


def _toward(w: np.ndarray, chosen: np.ndarray, alpha: float, k: int) -> np.ndarray:
    return alpha * w + (1 - alpha) * chosen / (chosen.sum() * k)
