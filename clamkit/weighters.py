"""The min player: objects that hold a weight for each class and move it once per epoch.

In a training loop: `loss = w.loss(logits, y)`, `w.observe(logits, y)` for each batch, `w.step()` after the epoch.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from clamkit.errors import ClamkitError, unknown
from clamkit.losses import check_labels, cross_entropy
from clamkit.simplex import LowerBounded, clip_renormalise, multiplicative_weights

PROJECTIONS = ("euclidean", "kl", "clip", "released")


class Weighter(nn.Module):
    """Counts what the model gets right in each class and keeps the class weights.

    `weights` are float64, sum to the number of classes, and stay on the CPU whatever the module is moved or cast to;
    the counts live where the logits are. Subclasses give `update`.
    """

    def __init__(self, num_classes: int, *, loss=cross_entropy):
        super().__init__()
        if num_classes < 2:
            raise ClamkitError(f"num_classes={num_classes}: weighting classes needs at least two.")
        self.num_classes = num_classes
        self.per_sample_loss = loss
        self.register_buffer("weights", torch.ones(num_classes, dtype=torch.float64))
        self.register_buffer("correct", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("loss_sum", torch.zeros(num_classes))
        self._device_weights: Tensor | None = None
        self._warned = False

    def _apply(self, fn, recurse=True):
        return self  # .to(), .cuda() and .half() leave the weights as they are

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        self._device_weights = None

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """mean over the batch of weights[y]·loss: the mean over samples, never divided by the summed weights."""
        self._check(logits, y)
        if self._device_weights is None or self._device_weights.device != y.device:
            self._device_weights = self.weights.float().to(y.device)
        return (self._device_weights[y] * self.per_sample_loss(logits, y)).mean()

    @torch.no_grad()
    def observe(self, logits: Tensor, y: Tensor) -> None:
        """Count one training batch. Call it once for each batch, not for evaluation batches."""
        self._check(logits, y)
        if self.seen.device != y.device:
            self.correct, self.seen = self.correct.to(y.device), self.seen.to(y.device)
            self.loss_sum = self.loss_sum.to(y.device)
        self.seen.index_add_(0, y, torch.ones_like(y, dtype=torch.int64))
        self.correct.index_add_(0, y, (logits.argmax(1) == y).long())
        self.loss_sum.index_add_(0, y, cross_entropy(logits, y))

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """(accuracy, mean cross entropy) of each class since the last step, over all ranks; nan where unseen."""
        counts = torch.stack([self.correct, self.seen, self.loss_sum]).to(self.loss_sum.device)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts)
        correct, seen, loss_sum = counts.cpu().double().numpy()
        with np.errstate(invalid="ignore"):
            return correct / seen, loss_sum / seen

    def step(self, *, accuracy=None, loss=None) -> None:
        """Move the weights by the counted accuracies and losses, or by the ones given; then count anew."""
        counted_accuracy, counted_loss = self.counted()
        v = counted_accuracy if accuracy is None else self._given(accuracy, "accuracy", 1.0)
        losses = counted_loss if loss is None else self._given(loss, "loss", np.inf)
        w = self.weights.numpy() / self.num_classes
        seen = ~np.isnan(v)
        if not seen.any():
            raise ClamkitError(
                "step() has nothing to go by: call observe() on the training batches, or give accuracy=."
            )
        if not seen.all() and not self._warned:
            self._warned = True
            warnings.warn(
                f"{(~seen).sum()} of {self.num_classes} classes had no sample this epoch (first: class "
                f"{np.flatnonzero(~seen)[0]}); they keep their weight.",
                stacklevel=2,
            )
        share = w[seen].sum()  # the seen classes play among themselves for the mass they hold
        w[seen] = share * self.update(w[seen] / share, v[seen], losses[seen], share)
        self.weights.copy_(torch.from_numpy(w * self.num_classes))
        self._device_weights = None
        for count in (self.correct, self.seen, self.loss_sum):
            count.zero_()

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        """New distribution over the seen classes, which together hold `share` of all weight."""
        raise TypeError(f"{type(self).__name__} does not define update()")

    def _check(self, logits: Tensor, y: Tensor) -> None:
        check_labels(logits, y)
        if logits.shape[1] != self.num_classes:
            raise ClamkitError(
                f"the model gives {logits.shape[1]} logits, the weights are for {self.num_classes} classes: "
                "build both with the same number."
            )

    def _given(self, values, name: str, high: float) -> np.ndarray:
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

    def update(self, w, v, losses, share):
        return w


class CLAM(Weighter):
    """w ← π(w·exp(−τv)/Z) (paper, eq. 6); π by `projection`.

    euclidean  the nearest point with w ≥ u_min, as the text says (default)
    kl         the nearest point in KL divergence, for which the convergence theorem holds
    clip       max(x, u_min)/Z, the map used in the paper's proof; may leave the set
    released   clip to [1/(2n), 2/n] and renormalise, as in the released code
    """

    def __init__(
        self, num_classes: int, tau: float = 1.0, u_min: float | None = None, projection: str = "euclidean", **kw
    ):
        super().__init__(num_classes, **kw)
        if projection not in PROJECTIONS:
            raise unknown("projection", projection, PROJECTIONS)
        if not (np.isfinite(tau) and tau >= 0):
            raise ClamkitError(f"tau={tau} is not a step size: it must be a finite number ≥ 0 (the paper uses 1).")
        self.tau, self.projection = float(tau), projection
        self.u_min = LowerBounded(num_classes, 0.5 / num_classes if u_min is None else u_min).u_min

    def update(self, w, v, losses, share):
        x = multiplicative_weights(w, v, self.tau)
        n, floor = len(w), self.u_min / share
        if self.projection == "released":
            return clip_renormalise(x, 0.5 / n, 2 / n)
        if self.projection == "clip":
            return clip_renormalise(x, floor)
        return LowerBounded(n, min(floor, (1 - 1e-12) / n)).project(x, self.projection)
