"""The rules of the min player: each a criterion (`clamkit.methods.criterion`) with its own way to move the weights."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from clamkit.checks import fraction, positive_int, step_size
from clamkit.errors import ClamkitError, check_known
from clamkit.methods import losses
from clamkit.methods.criterion import Weighter
from clamkit.methods.specs import METHODS
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded, RatioBounded


class Uniform(Weighter):
    """All weights stay 1: plain empirical risk ("Normal" in the paper).

    >>> Uniform(3).weights.tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, num_classes: int, **common: Any):
        super().__init__(num_classes, **common)
        self.weighs_loss = self.shares is not None

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return w


class CLAM(Weighter):
    """w ← π(w·exp(−τv)/Z) (paper, eq. 8); π by `projection`.

    euclidean  the nearest point with w ≥ u_min, as the text says (default)
    kl         the nearest point in KL divergence, for which the convergence theorem holds
    clip       max(x, u_min)/Z, the map used in the paper's proof; may leave the set
    released   clip to [1/(2n), 2/n] and renormalise, as in the released code

    With `ratio` the set is {max w / min w ≤ ratio} instead ("Practical Implementation"), euclidean or kl.

    >>> clam = CLAM(3, projection="kl")
    >>> logits = torch.tensor([[2.0, 0, 0], [0, 2, 0], [0, 2, 0]], requires_grad=True)
    >>> clam(logits, torch.tensor([0, 1, 2])).backward()  # class 2 is taken for class 1
    >>> clam.step()
    >>> clam.weights.round(decimals=2).tolist()
    [0.64, 0.64, 1.73]
    """

    def __init__(
        self,
        num_classes: int,
        tau: float = 1.0,
        u_min: float | None = None,
        projection: str = "euclidean",
        *,
        ratio: float | None = None,
        **common: Any,
    ):
        super().__init__(num_classes, **common)
        check_known("projection", projection, update.MAPS)
        if ratio is not None and (u_min is not None or projection not in ("euclidean", "kl")):
            raise ClamkitError("a ratio bound goes with projection='euclidean' or 'kl', and without u_min.")
        self.tau, self.projection = step_size(tau), projection
        self.u_min = LowerBounded(num_classes, u_min).u_min
        self.ratio = None if ratio is None else RatioBounded(num_classes, ratio).ratio
        self.shown = ("tau", "projection", "u_min" if ratio is None else "ratio")

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        n = len(w)
        floor = min(self.u_min / share, (1 - 1e-12) / n)  # below 1/n, also where the seen classes hold too little
        S = LowerBounded(n, floor) if self.ratio is None else RatioBounded(n, self.ratio)
        return update.clam(w, v, S, self.tau, self.projection)


def MaxMin(num_classes: int, tau: float = 1.0, **options: Any) -> CLAM:
    """CLAM on the full simplex: no floor, all weight may go to the worst class (paper, eq. 4).

    >>> maxmin = MaxMin(2)
    >>> maxmin.step(accuracy=[1.0, 0.0])
    >>> maxmin.weights.round(decimals=2).tolist()  # e⁻¹ : 1, with sum 2
    [0.54, 1.46]
    """
    return CLAM(num_classes, tau, u_min=0.0, **options)


class TCE(Weighter):
    """w ← (1 − γ)w + γ·softmax(class losses): tilted cross entropy (paper, appendix "Baselines").

    >>> tce = TCE(2, gamma=0.5)
    >>> tce.step(loss=[0.0, 1.0])
    >>> tce.weights.round(decimals=2).tolist()
    [0.77, 1.23]
    """

    shown = ("gamma",)
    by_loss = True

    def __init__(self, num_classes: int, gamma: float = 0.5, **common: Any):
        super().__init__(num_classes, **common)
        self.gamma = fraction(gamma, "gamma")

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return update.tilted(w, losses, self.gamma)


class GGF(Weighter):
    """w_i ∝ max(α^(rank_i − 1), w_min), rank 1 the worst class: generalised Gini weights (appendix "Baselines").

    rank_by    "accuracy", lowest first, as the paper; "loss", highest first, as the released code
    frequency  the paper's f: every f-th epoch has these weights, those between have equal ones

    >>> ggf = GGF(3, alpha=0.5, w_min=0.1)
    >>> ggf.step(accuracy=[0.9, 0.5, 0.7])
    >>> ggf.weights.round(decimals=2).tolist()  # ranks 3, 1, 2
    [0.43, 1.71, 0.86]
    """

    shown = ("alpha", "w_min", "frequency", "rank_by")

    def __init__(
        self, num_classes: int, alpha: float, w_min: float, frequency: int = 1, rank_by: str = "accuracy", **common: Any
    ):
        super().__init__(num_classes, **common)
        check_known("ranking", rank_by, ("accuracy", "loss"))
        self.alpha, self.w_min = fraction(alpha, "alpha"), fraction(w_min, "w_min")
        self.frequency, self.rank_by = positive_int(frequency, "frequency"), rank_by
        self.by_loss = rank_by == "loss"

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        if (int(self.epoch) - 1 - self.start_epoch) % self.frequency:
            return np.full(len(w), 1 / len(w))
        return update.gini(-v if self.rank_by == "accuracy" else losses, self.alpha, self.w_min)


class APStar(Weighter):
    """Approximate projection on star sets (Martinez et al. 2020), as the CLAM authors adapted it, or the original.

    adapted   the worst 10 % of the classes by loss get w·α + (1 − α)·n/(kK), the others w·α; then the released clip.
              K is 1 when the worst loss is the best so far, else one more than before.
    original  the classes with a loss ≥ the best worst loss so far share (1 − α)/K; no clip. An improvement brings K
              back to `k_min` if it is larger, each step adds one. The network of the best step is the result.

    >>> apstar = APStar(4, alpha=0.5)
    >>> apstar.step(loss=[0.1, 0.2, 0.3, 2.0])
    >>> int(apstar.weights.argmax())
    3
    """

    shown = ("alpha", "original")
    by_loss = True
    best: Tensor
    k: Tensor

    def __init__(self, num_classes: int, alpha: float = 0.5, *, original: bool = False, k_min: int = 20, **common: Any):
        super().__init__(num_classes, **common)
        self.alpha, self.original, self.k_min = fraction(alpha, "alpha"), original, positive_int(k_min, "k_min")
        self.keep("best", np.inf)
        self.keep("k", np.int64(original))

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        improved = bool(losses.max() < self.best)
        self.best.clamp_max_(losses.max())
        if not self.original:
            self.k.fill_(1 if improved else int(self.k) + 1)
            return update.star_adapted(w, losses, self.alpha, int(self.k))
        self.keeps_network = improved
        if improved:
            self.k.clamp_max_(self.k_min)
        w = update.star_original(w, losses, self.alpha, int(self.k), float(self.best))
        self.k += 1
        return w


def build_method(
    name: str,
    dataset: str | None,
    num_classes: int,
    *,
    protocol: str = "paper",
    label_smoothing: float = 0.0,
    sizes: ArrayLike | None = None,
    **settings: Any,
) -> Weighter:
    """The weighter of a method with the paper's settings for that dataset; settings given (not None) win.

    sizes  training images in each class, for the methods that look at them

    >>> build_method("ggf", "cifar10", 10)
    GGF(10, alpha=0.9, w_min=0.1, frequency=1, rank_by='accuracy')
    """
    method = METHODS[name]
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        check_known(f"setting of method {name!r}", key, method.settings)
    values = method.values(dataset, num_classes, protocol) | given
    common: dict[str, Any] = {"label_smoothing": label_smoothing} if label_smoothing else {}
    if method.loss:
        common, values = {"loss": partial(getattr(losses, method.loss), **values)}, {}
    if method.needs_sizes:
        values["sizes"] = sizes
    build = method.weighter
    if isinstance(build, str):
        home, _, attribute = build.rpartition(".")
        build = getattr(import_module(f"clamkit.methods.{home or 'weighters'}"), attribute)
    return build(num_classes, **values, **method.fixed, **common)
