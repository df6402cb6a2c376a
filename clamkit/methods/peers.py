"""The peers of CLAM: weights that are given, and other people's rules for moving them.

Rules that move every batch do so in `after_batch`, when the batch is counted, which comes before its loss. On several
ranks what the batch was is summed over all of them first, so all move alike, as one that had the whole batch would.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from clamkit import paths
from clamkit.checks import class_sizes, fraction, of_classes, positive, step_size
from clamkit.errors import ClamkitError, check_known
from clamkit.methods.criterion import Weighter, exact_sums
from clamkit.theory import update
from clamkit.theory.sets import normalise

WEIGHTS = "a number for each class, a .json or .npy file of them, or a finished run"  # what a person may give


def by_class(y: Tensor, num_classes: int, values: Tensor | None = None) -> Tensor:
    """[n] on the labels' device: the samples of each class in the batch, or the sum of their values, over all ranks."""
    sums = exact_sums(y, torch.ones_like(y) if values is None else values, num_classes)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
    return sums


class Fixed(Weighter):
    """Class weights that are given and stay, scaled to sum to n.

    class_weights  a number for each class; a .json or .npy file of them; or a run, of which
    weights_of     "mean" (default) takes the mean over its epochs, the averaged strategy of the paper's Algorithm 1,
                   and "last" the weights that its last epoch had

    >>> Fixed(3, class_weights=[1, 1, 2]).weights.tolist()
    [0.75, 0.75, 1.5]
    """

    def __init__(
        self,
        num_classes: int,
        class_weights: ArrayLike | str | os.PathLike | Any = None,
        weights_of: str | None = None,
        **common: Any,
    ):
        super().__init__(num_classes, **common)
        self.source, given = _read_weights(class_weights, weights_of)
        given = of_classes(given, num_classes, self.source, 0)
        if not given.any():
            raise ClamkitError(f"{self.source} is zero for every class: at least one weight must be above 0.")
        self.set_weights(given / given.max() / (given / given.max()).sum())  # the largest first: no sum overflows

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return w

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        before = self.weights.clone()
        super()._load_from_state_dict(*args, **kwargs)
        if not np.allclose(before, self.weights, rtol=1e-9, atol=1e-12):
            raise ClamkitError(f"what is loaded was begun with other weights than {self.source} has now: restore them.")


def _read_weights(given: Any, weights_of: str | None) -> tuple[str, Any]:
    """(what it is called in errors, the weights as given)"""
    check_known("choice of weights_of", weights_of or "mean", ("mean", "last"))
    if given is None:
        raise ClamkitError(f"method 'fixed' needs class_weights=: {WEIGHTS}.")
    if hasattr(given, "wide"):  # a run
        weights = given.wide("weight").to_numpy()
        return f"the run {given.name}", weights[-1] if weights_of == "last" else weights.mean(axis=0)
    if weights_of is not None:
        raise ClamkitError(f"weights_of={weights_of!r} chooses among the epochs of a run: give class_weights= a run.")
    name = "class_weights"
    try:
        if isinstance(given, str | os.PathLike):
            path = Path(os.path.expanduser(given))
            name = paths.shown(path)
            given = np.load(path, allow_pickle=False) if path.suffix == ".npy" else json.loads(path.read_bytes())
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise ClamkitError(f"{name} cannot be read as class weights ({error}): give {WEIGHTS}.") from error
    return name, given


class GroupDRO(Weighter):
    """q_c ← q_c·exp(η·loss_c)/Z with every batch, whose loss is then Σ q_c·loss_c (Sagawa et al. 2020, Algorithm 1).

    loss_c is the mean cross entropy of the batch's samples of class c; a class with none counts as 0, as in the
    authors' code, so the loss is smaller where a batch misses classes. The weights are n·q.

    >>> dro = GroupDRO(2, eta=0.1)
    >>> loss = dro(torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True), torch.tensor([0, 1]))
    >>> bool(dro.weights[1] > dro.weights[0])  # class 1 has the larger loss
    True
    """

    shown = ("eta",)

    def __init__(self, num_classes: int, eta: float = 0.01, **common: Any):
        super().__init__(num_classes, **common)
        if self.shares is not None:
            raise ClamkitError("GroupDRO takes no sizes=: it divides by the size of each class or group in the batch.")
        self.eta = positive(eta, "eta", "Sagawa et al. take 0.01.")

    def after_batch(self, y: Tensor, right: Tensor, losses: Tensor) -> None:
        n = self.num_classes
        mean = (by_class(y, n, losses) / by_class(y, n).clamp_min(1)).cpu().double().numpy()
        if np.isfinite(mean).all():  # a loss that is not is the training loop's to report
            self.set_weights(update.multiplicative_step(self.weights.numpy() / n, -mean, self.eta))

    def batch_weights(self, index: Tensor, valid: Tensor | None = None) -> Tensor:
        """q_c·(size of the batch)/(samples of class c in it): its mean over the batch is Σ q_c·loss_c."""
        seen = by_class(index.flatten(), self.num_classes, None if valid is None else valid.flatten())
        return super().batch_weights(index) * (seen.sum() / self.num_classes / seen.clamp_min(1)[index])

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return w  # moved already


class CFOL(Weighter):
    """Class-focused online learning (Pethick et al. 2023): classes have the probabilities p = γ/n + (1 − γ)·q.

    With every batch ln q_c grows, for each sample of class c that is wrong, by η over the probability with which the
    class was drawn: q = softmax(w) with w_c += η·1[wrong]/p_c. The weights are n·p.

    gamma    the share of the uniform distribution; at ½ the floor of p is CLAM's 1/(2n)
    eta      default 1/(training images), by `sizes`: an epoch moves ln q_c by the error of class c, as a step of CLAM
             with τ = 1 does. The authors' 5e-6 for 40,000 images is 0.2 of that, for 100 or 200 epochs.
    acts_on  "sampling": images are drawn by the weight of their class, for an epoch at a time by those of its
             beginning, and the loss is plain. "loss": they come as they are, weighted by n·p, the authors' `reweight`.
    sizes    training images in each class; equal where none are given, and then classes are drawn with p itself

    >>> cfol = CFOL(2, eta=0.5)
    >>> loss = cfol(torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True), torch.tensor([0, 1]))
    >>> bool(cfol.weights[1] > cfol.weights[0])  # class 1 was wrong
    True
    """

    shown = ("gamma", "eta", "acts_on")
    q: Tensor
    drawn: Tensor

    def __init__(
        self,
        num_classes: int,
        gamma: float = 0.5,
        eta: float | None = None,
        *,
        acts_on: str = "loss",
        sizes: ArrayLike | None = None,
        **common: Any,
    ):
        super().__init__(num_classes, **common)
        if eta is None and sizes is None:
            raise ClamkitError("CFOL needs a step size: give eta=, about 1/(number of training images), or sizes=.")
        check_known("acts_on", acts_on, ("loss", "sampling"))
        counts = np.ones(num_classes) if sizes is None else class_sizes(sizes, num_classes, images=eta is None)
        self.gamma = positive(fraction(gamma, "gamma"), "gamma", "At 0 a class may never be drawn again.")
        self.eta, self.acts_on = positive(1 / counts.sum() if eta is None else eta, "eta"), acts_on
        self.weighs_loss, self.class_shares = acts_on == "loss", counts / counts.sum()
        self.keep("q", np.full(num_classes, 1 / num_classes))
        self.keep("drawn", self.class_shares)  # the probability of each class this epoch

    def after_batch(self, y: Tensor, right: Tensor, losses: Tensor) -> None:
        wrong = by_class(y, self.num_classes, ~right).cpu().double().numpy()
        q = update.multiplicative_step(self.q.numpy(), -wrong / self.drawn.numpy(), self.eta)
        self.q.copy_(torch.from_numpy(q))
        self.set_weights(update.mixed(q, self.gamma))

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        if self.acts_on == "sampling":
            self.drawn.copy_(torch.from_numpy(normalise(self.weights.numpy() * self.class_shares)))
        return w  # moved already


class TLA(Weighter):
    """Margins in place of weights: cross entropy on logits + τ·(ln prior − ln π) (Choi & Seo, "linear ascent").

    After an epoch π ← (1 − α)·π + α·uniform on the worst tenth of the classes by accuracy. It begins at the prior, the
    shares of the classes in `sizes`, or equal. The weights are n·π and multiply nothing; plain logits predict.

    >>> tla = TLA(4, alpha=0.1)
    >>> tla.step(accuracy=[0.9, 0.8, 0.7, 0.2])
    >>> tla.weights.round(decimals=2).tolist()
    [0.9, 0.9, 0.9, 1.3]
    """

    shown = ("tau", "alpha")
    weighs_loss = False

    def __init__(
        self, num_classes: int, tau: float = 1.0, alpha: float = 0.01, *, sizes: ArrayLike | None = None, **common: Any
    ):
        super().__init__(num_classes, **common)
        self.tau = step_size(tau)
        self.alpha = fraction(alpha, "alpha", "At 1 all but the worst classes are given up.", below=1)
        counts = np.ones(num_classes) if sizes is None else class_sizes(sizes, num_classes)
        self.prior = torch.from_numpy(normalise(counts))
        self.set_weights(self.prior.numpy())

    def _checked(self, output: Any, y: Any, group: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        if group is not None:
            raise ClamkitError("TLA moves the logits of classes, and groups have none: call it without group=.")
        return super()._checked(output, y, None)

    def _each(self, logits: Tensor, y: Tensor) -> Tensor:
        margins = self.tau * (self.prior.log() - (self.weights / self.num_classes).log())
        margins = margins.float().to(logits.device).view(-1, *[1] * (logits.ndim - 2))  # classes are dimension 1
        return super()._each(logits.float() + margins, y)

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        return update.toward_worst(w, v, self.alpha)


def LogitAdjusted(num_classes: int, tau: float = 1.0, *, sizes: ArrayLike | None = None, **common: Any) -> TLA:
    """Cross entropy on logits + τ·ln prior (Menon et al. 2021), for unbalanced data: TLA whose π stays uniform.

    >>> adjusted = LogitAdjusted(2, sizes=[900, 100], reduction="none")
    >>> adjusted(torch.zeros(2, 2), torch.tensor([0, 1]))  # −ln 0.9, −ln 0.1
    tensor([0.1054, 2.3026])
    """
    weighter = TLA(num_classes, tau, alpha=0.0, sizes=class_sizes(sizes, num_classes), **common)
    weighter.set_weights(np.full(num_classes, 1 / num_classes))
    return weighter


def ClassBalanced(num_classes: int, beta: float = 0.9999, *, sizes: ArrayLike | None = None, **common: Any) -> Fixed:
    """Fixed weights ∝ (1 − β)/(1 − β^size), the inverse effective number of samples (Cui et al. 2019).

    >>> ClassBalanced(2, sizes=[5000, 50]).weights.round(decimals=2).tolist()
    [0.03, 1.97]
    """
    fraction(beta, "beta", "0 is equal weights, near 1 is one over the size.", below=1)
    return Fixed(num_classes, (1 - beta) / (1 - beta ** class_sizes(sizes, num_classes, images=True)), **common)
