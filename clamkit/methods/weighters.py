"""The min player: objects that hold a weight for each class and move it once per epoch.

In a training loop: `loss = w(logits, y)` for each batch, `w.step()` after the epoch. Where loss and count part ways,
two calls do it: `w.loss(logits, y)` and `w.observe(logits, y)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor, nn

from clamkit.checks import fraction, positive_int, step_size
from clamkit.errors import ClamkitError, unknown
from clamkit.methods import losses
from clamkit.methods.losses import checked_labels, cross_entropy
from clamkit.methods.specs import find_method
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded, RatioBounded


class Weighter(nn.Module):
    """Counts what the model gets right in each class and keeps the class weights.

    `weights` are float64, sum to the number of classes, and stay on the CPU whatever the module is moved or cast to;
    the counts live where the logits are. The weights stay equal for the first `start_epoch` epochs. Keep a weighter
    beside the model, not inside it: DistributedDataParallel would overwrite the counts with those of the first rank.
    Subclasses give `update` and, in `shown`, which of their settings describe them.
    """

    shown: tuple[str, ...] = ()
    keeps_network = False  # whether the network as it was at the last step is the result, unless a later one is
    weights: Tensor
    epoch: Tensor
    correct: Tensor
    seen: Tensor
    loss_sum: Tensor

    def __init__(self, num_classes: int, *, start_epoch: int = 0, loss: Callable[..., Tensor] = cross_entropy):
        super().__init__()
        if num_classes < 2:
            raise ClamkitError(f"num_classes={num_classes}: weighting classes needs at least two.")
        if start_epoch < 0:
            raise ClamkitError(f"start_epoch={start_epoch}: give the number of epochs with equal weights, 0 or more.")
        self.num_classes, self.start_epoch, self.per_sample_loss = num_classes, start_epoch, loss
        self.register_buffer("weights", torch.ones(num_classes, dtype=torch.float64))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))  # steps made so far
        self.register_buffer("correct", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("loss_sum", torch.zeros(num_classes))
        self._device_weights: Tensor | None = None
        self._warned = False

    def extra_repr(self) -> str:
        return ", ".join([str(self.num_classes), *(f"{name}={getattr(self, name)!r}" for name in self.shown)])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return self  # .to(), .cuda() and .half() leave the weights as they are

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._device_weights = None

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch, which is counted too, unless it is for evaluation: without gradients or after eval()."""
        if self.training and torch.is_grad_enabled():
            self.observe(logits, y)
        return self.loss(logits, y)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """mean over the batch of weights[y]·loss: the mean over samples, never divided by the summed weights."""
        y = checked_labels(logits, y, self.num_classes)
        return (self.batch_weights(y) * self._each(logits, y)).mean()

    def _each(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.per_sample_loss(logits, y)

    def batch_weights(self, y: Tensor) -> Tensor:
        """The weight of each sample of a batch, on the device of its labels."""
        if self._device_weights is None or self._device_weights.device != y.device:
            self._device_weights = self.weights.float().to(y.device)
        return self._device_weights[y]

    @torch.no_grad()
    def observe(self, logits: Tensor, y: Tensor) -> None:
        """Count one training batch. Call it once for each batch, not for evaluation batches."""
        y = checked_labels(logits, y, self.num_classes)
        if self.seen.device != y.device:
            self.correct, self.seen = self.correct.to(y.device), self.seen.to(y.device)
            self.loss_sum = self.loss_sum.to(y.device)
        right, each = logits.argmax(1) == y, cross_entropy(logits, y)
        self.seen.index_add_(0, y, torch.ones_like(y, dtype=torch.int64))
        self.correct.index_add_(0, y, right.long())
        self.loss_sum.index_add_(0, y, each)
        if self.training and self.epoch >= self.start_epoch:
            self.after_batch(y, right, each)

    def after_batch(self, y: Tensor, right: Tensor, losses: Tensor) -> None:
        """For rules that move every batch: which samples were right, and their losses. Not called after eval()."""

    def set_weights(self, w: np.ndarray) -> None:
        """The weights as n·w, w a distribution."""
        self.weights.copy_(torch.from_numpy(w * self.num_classes))
        self._device_weights = None

    def totals(self) -> tuple[Tensor, Tensor, Tensor]:
        """(correct, seen, loss_sum) since the last step, summed over all ranks: every rank must call it."""
        counts, loss_sum = torch.stack([self.correct, self.seen]), self.loss_sum.clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
            dist.all_reduce(loss_sum)
        return *counts.cpu(), loss_sum.cpu()

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """(accuracy, mean cross entropy) of each class since the last step, over all ranks; nan where unseen."""
        correct, seen, loss_sum = (total.numpy() for total in self.totals())
        with np.errstate(invalid="ignore", divide="ignore"):
            return correct / seen, loss_sum.astype(np.float64) / seen

    def step(self, *, accuracy: ArrayLike | Tensor | None = None, loss: ArrayLike | Tensor | None = None) -> None:
        """Move the weights by the counted accuracies and losses, or by the ones given; then count anew."""
        counted_accuracy, counted_loss = self.counted()
        v = counted_accuracy if accuracy is None else self._given(accuracy, "accuracy", 1.0)
        losses = counted_loss if loss is None else self._given(loss, "loss", np.inf)
        w = self.weights.numpy() / self.num_classes
        seen = ~np.isnan(v)
        if not seen.any():
            raise ClamkitError(
                "step() has nothing to go by: no training batch was counted. Take the training loss from the weighter "
                "(or from the loss of its callback), call observe(), or give accuracy=."
            )
        if not seen.all() and not self._warned:
            self._warned = True
            warnings.warn(
                f"{(~seen).sum()} of {self.num_classes} classes had no sample this epoch (first: class "
                f"{np.flatnonzero(~seen)[0]}); they keep their weight.",
                stacklevel=2,
            )
        self.epoch += 1
        if self.epoch > self.start_epoch:
            share = w[seen].sum()  # the seen classes play among themselves for the mass they hold
            w[seen] = share * self.update(w[seen] / share, v[seen], losses[seen], share)
            self.set_weights(w)
        self.forget()

    def forget(self) -> None:
        """Count anew, without a step."""
        for count in (self.correct, self.seen, self.loss_sum):
            count.zero_()

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        """New distribution over the seen classes, which together hold `share` of all weight."""
        raise TypeError(f"{type(self).__name__} does not define update()")

    def _given(self, values: ArrayLike | Tensor, name: str, high: float) -> np.ndarray:
        values = torch.as_tensor(values).detach().cpu().double().numpy()
        if values.shape != (self.num_classes,):
            raise ClamkitError(
                f"{name} has shape {values.shape}: give one number for each of {self.num_classes} classes."
            )
        bad = np.flatnonzero(~((values >= 0) & (values <= high)))
        if bad.size:
            allowed = "fractions from 0 to 1" if high == 1 else "numbers ≥ 0"
            raise ClamkitError(f"{name} of class {bad[0]} is {values[bad[0]]}: {name} values are {allowed}.")
        return values


class Uniform(Weighter):
    """All weights stay 1: plain empirical risk ("Normal" in the paper)."""

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return w


class CLAM(Weighter):
    """w ← π(w·exp(−τv)/Z) (paper, eq. 8); π by `projection`.

    euclidean  the nearest point with w ≥ u_min, as the text says (default)
    kl         the nearest point in KL divergence, for which the convergence theorem holds
    clip       max(x, u_min)/Z, the map used in the paper's proof; may leave the set
    released   clip to [1/(2n), 2/n] and renormalise, as in the released code

    With `ratio` the set is {max w / min w ≤ ratio} instead ("Practical Implementation"), euclidean or kl.
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
        if projection not in update.MAPS:
            raise unknown("projection", projection, update.MAPS)
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
    """CLAM on the full simplex: no floor, all weight may go to the worst class (paper, eq. 4)."""
    return CLAM(num_classes, tau, u_min=0.0, **options)


class TCE(Weighter):
    """w ← (1 − γ)w + γ·softmax(class losses): tilted cross entropy (paper, appendix "Baselines")."""

    shown = ("gamma",)

    def __init__(self, num_classes: int, gamma: float = 0.5, **common: Any):
        super().__init__(num_classes, **common)
        self.gamma = fraction(gamma, "gamma")

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return update.tilted(w, losses, self.gamma)


class GGF(Weighter):
    """w_i ∝ max(α^(rank_i − 1), w_min), rank 1 the worst class: generalised Gini weights (appendix "Baselines").

    rank_by    "accuracy", lowest first, as the paper; "loss", highest first, as the released code
    frequency  the paper's f: every f-th epoch has these weights, those between have equal ones
    """

    shown = ("alpha", "w_min", "frequency", "rank_by")

    def __init__(
        self, num_classes: int, alpha: float, w_min: float, frequency: int = 1, rank_by: str = "accuracy", **common: Any
    ):
        super().__init__(num_classes, **common)
        if rank_by not in ("accuracy", "loss"):
            raise unknown("ranking", rank_by, ("accuracy", "loss"))
        self.alpha, self.w_min = fraction(alpha, "alpha"), fraction(w_min, "w_min")
        self.frequency, self.rank_by = positive_int(frequency, "frequency"), rank_by

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
    """

    shown = ("alpha", "original")
    best: Tensor
    k: Tensor

    def __init__(self, num_classes: int, alpha: float = 0.5, *, original: bool = False, k_min: int = 20, **common: Any):
        super().__init__(num_classes, **common)
        self.alpha, self.original, self.k_min = fraction(alpha, "alpha"), original, k_min
        self.register_buffer("best", torch.tensor(torch.inf, dtype=torch.float64))
        self.register_buffer("k", torch.tensor(1 if original else 0))

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        improved = bool(losses.max() < self.best)
        if improved:
            self.best.fill_(losses.max())
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
    method = find_method(name)
    given = {key: value for key, value in settings.items() if value is not None}
    for key in given:
        if key not in method.settings:
            raise unknown(f"setting of method {name!r}", key, method.settings)
    values = method.values(dataset, num_classes, protocol) | given
    loss: Callable[..., Tensor] = partial(cross_entropy, label_smoothing=label_smoothing)
    if method.loss:
        loss, values = partial(getattr(losses, method.loss), **values), {}
    if method.needs_sizes:
        values["sizes"] = sizes
    build = method.weighter
    if isinstance(build, str):
        home, _, attribute = build.rpartition(".")
        build = getattr(import_module(f"clamkit.methods.{home or 'weighters'}"), attribute)
    return build(num_classes, **values, **method.fixed, loss=loss)
