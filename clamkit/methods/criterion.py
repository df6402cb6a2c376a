"""The min player as a criterion: `loss = w(logits, y)` for each batch, `w.step()` after the epoch.

Where one batch goes through the network more than once (the closure of LBFGS, SAM, activation checkpointing) it must
not be counted twice: two calls do it, `w.loss(logits, y)` each time and `w.observe(logits, y)` once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from clamkit.checks import class_sizes, fraction, of_classes, positive_int
from clamkit.errors import ClamkitError, check_known
from clamkit.methods.losses import WHOLE, as_logits, check_range, checked_labels, cross_entropy, predicted
from clamkit.theory.sets import normalise

REDUCTIONS = ("mean", "sum", "none")


class Weighter(nn.Module):
    """A criterion like `nn.CrossEntropyLoss` that counts what the model gets right in each class and weighs by it.

    label_smoothing, reduction, ignore_index   as in torch; the mean is over samples, never divided by summed weights
    start_epoch  how many epochs end without a move of the weights
    loss         a loss of one's own, (logits, labels) -> one value for each label
    sizes        the size (or share) of each class or group: weights are divided by the share, so that each counts by
                 its weight and not by its weight times how many samples it has

    After eval(), and without gradients, a call gives the plain unweighted loss and counts nothing: a fixed yardstick.
    With `group=` weights and counts are those of any other partition than the classes: build it for that many groups.
    `weights` are float64, sum to the number of classes, and stay on the CPU whatever the module is moved or cast to;
    the counts live where the logits are. Neither are buffers: a weighter may be part of a DistributedDataParallel
    module, which overwrites buffers. Subclasses give `update`, whether it looks at losses (`by_loss`) and, in `shown`,
    which of their settings describe them.

    >>> class ByError(Weighter):
    ...     def update(self, w, v, losses, share):
    ...         return (1 - v) / (1 - v).sum()
    >>> rule = ByError(2)
    >>> rule.step(accuracy=[0.9, 0.7])
    >>> rule.weights.round(decimals=2).tolist()
    [0.5, 1.5]
    """

    shown: tuple[str, ...] = ()
    by_loss = False  # the rule moves by class losses, not by accuracies
    weighs_loss = True  # False: the weights act on something else than the loss
    keeps_network = False  # whether the network as it was at the last step is the result, unless a later one is
    weights: Tensor
    epoch: Tensor
    correct: Tensor
    seen: Tensor
    loss_sum: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        start_epoch: int = 0,
        loss: Callable[..., Tensor] = cross_entropy,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        ignore_index: int = -100,
        sizes: ArrayLike | Tensor | None = None,
    ):
        super().__init__()
        if positive_int(num_classes, "num_classes") < 2:
            raise ClamkitError(f"num_classes={num_classes}: weighting classes needs at least two.")
        if start_epoch < 0 or start_epoch % 1:
            raise ClamkitError(f"start_epoch={start_epoch}: give the number of epochs without a move, 0 or more.")
        check_known("reduction", reduction, REDUCTIONS)
        if not callable(loss) or isinstance(loss, type):
            raise ClamkitError(f"loss={loss!r} is no function of (logits, labels): give one, of reduction='none'.")
        if getattr(loss, "reduction", "none") != "none":
            raise _one_value_each(f"{loss!r} has reduction={loss.reduction!r}")  # type: ignore[attr-defined]
        if label_smoothing and loss is not cross_entropy:
            raise ClamkitError("label_smoothing goes with the cross entropy alone: put it into the loss you give.")
        self.num_classes, self.start_epoch, self.per_sample_loss = num_classes, start_epoch, loss
        self.label_smoothing = fraction(label_smoothing, "label_smoothing")
        self.reduction, self.ignore_index = reduction, ignore_index
        self.shares: Tensor | None = None
        if sizes is not None:
            self.shares = torch.from_numpy(normalise(class_sizes(sizes, num_classes)))
        self._kept: list[str] = []
        self.keep("weights", np.ones(num_classes))
        self.keep("epoch", np.int64(0))  # steps made so far
        self.keep("correct", np.zeros(num_classes, dtype=np.int64))
        self.keep("seen", np.zeros(num_classes, dtype=np.int64))
        self.keep("loss_sum", np.zeros(num_classes, dtype=np.float32))
        self._is_cross_entropy = loss is cross_entropy and not label_smoothing and type(self)._each is Weighter._each
        self._moves_every_batch = type(self).after_batch is not Weighter.after_batch
        own_weights = type(self).batch_weights is not Weighter.batch_weights
        self._one_pass = self._is_cross_entropy and reduction != "none" and not own_weights
        self._device_weights: Tensor | None = None
        self._warned = self._warned_of_a_second_pass = False
        self._last: tuple[Tensor, int] | None = None  # labels counted last, and how often they had been written to

    def extra_repr(self) -> str:
        common = {"start_epoch": 0, "label_smoothing": 0.0, "reduction": "mean", "ignore_index": -100}
        changed = [name for name, usual in common.items() if getattr(self, name) != usual]
        named = [f"{name}={getattr(self, name)!r}" for name in (*self.shown, *changed)]
        return ", ".join([str(self.num_classes), *named])

    # state: in `state_dict` like buffers, but left where it is by `.to()`, `.half()` and DistributedDataParallel

    def keep(self, name: str, value: Tensor | ArrayLike) -> None:
        """A part of the state, like a buffer; from numpy, torch's default type and device have no say in it."""
        setattr(self, name, value if isinstance(value, Tensor) else torch.from_numpy(np.array(value)))
        self._kept.append(name)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: getattr(self, name) for name in self._kept})

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list, unexpected: list, errors: list
    ) -> None:
        own = {prefix + name: getattr(self, name) for name in self._kept}
        others = {key: value for key, value in state_dict.items() if key not in own}
        super()._load_from_state_dict(others, prefix, metadata, strict, missing, unexpected, errors)
        missing += [key for key in own if key not in state_dict]
        wrong = [key for key in own if key in state_dict and state_dict[key].shape != own[key].shape]
        errors += [f"{key} has shape {tuple(state_dict[key].shape)}, not {tuple(own[key].shape)}." for key in wrong]
        if not wrong:
            for key in own.keys() & state_dict.keys():
                own[key].copy_(state_dict[key])
        self._device_weights = None

    # loss and counts

    def forward(self, input: Any, target: Tensor, group: Tensor | None = None, *, plain: bool = False) -> Tensor:
        """The weighted loss of a training batch, which is counted; after eval() or without gradients the plain loss.

        input   logits [B, C, …], or a model's output that has them as `logits`, "logits" or in the first place
        target  class numbers [B, …]
        group   the group of each label where the weights are those of groups; C is then free
        plain   count, but do not weigh: the weights act on something else, such as the sampling
        """
        logits, y, index, valid = self._checked(input, target, group)
        if not (self.training and torch.is_grad_enabled()):
            return self._reduced(Weighter._each(self, logits, y), valid)  # without a subclass's margins
        if not torch.compiler.is_compiling():
            self._warn_of_a_second_pass(target)
        weighs = self.weighs_loss and not plain
        if weighs and self._one_pass and index is y and valid is None:  # what follows, in fewer operations
            log_p = F.log_softmax(logits.float(), dim=1)
            self._count(logits, y, y, None, F.nll_loss(log_p.detach(), y, reduction="none"))
            total = F.nll_loss(log_p, y, weight=self._weights_on(y.device), reduction="sum")
            return total if self.reduction == "sum" else total / max(y.numel(), 1)
        each = self._each(logits, y)
        self._count(logits, y, index, valid, each if self._is_cross_entropy else None)
        # counted first: some rules move with every batch
        return self._reduced(each, valid, self.batch_weights(index, valid) if weighs else None)

    def _warn_of_a_second_pass(self, target: Any) -> None:
        """Once, where the same labels come twice in a row: they were counted already, and are counted again."""
        if self._warned_of_a_second_pass or not isinstance(target, Tensor) or target.is_inference():
            return
        last, self._last = self._last, (target, target._version)
        if last and last[0] is target and last[1] == target._version:
            self._warned_of_a_second_pass, self._last = True, None
            warnings.warn(
                "the same tensor of labels came twice in a row and was counted twice. If one batch goes through the "
                "network more than once, as by LBFGS, SAM or checkpointing, take loss(), and observe() once a batch.",
                stacklevel=3,
            )

    def loss(self, logits: Any, y: Tensor, group: Tensor | None = None) -> Tensor:
        """The weighted loss alone, whatever the mode; nothing is counted."""
        logits, y, index, valid = self._checked(logits, y, group)
        weights = self.batch_weights(index, valid) if self.weighs_loss else None
        return self._reduced(self._each(logits, y), valid, weights)

    def batch_weights(self, index: Tensor, valid: Tensor | None = None) -> Tensor:
        """The weight of each sample of a batch, by its class or group; `valid`: which count, None for all."""
        return self._weights_on(index.device).take(index)

    def observe(self, logits: Any, y: Tensor, group: Tensor | None = None) -> None:
        """Count one training batch. Call it once for each batch, not for evaluation batches."""
        self._count(*self._checked(logits, y, group))

    def sample_weights(self, y: Any) -> Any:
        """The weight of each sample's class (or group), on the device of y; 0 where y is `ignore_index`.

        An array gives an array: `model.fit(x, y, sample_weight=w.sample_weights(y))` in sklearn.
        """
        labels = y if isinstance(y, Tensor) else np.asarray(y)
        if not (labels.dtype in WHOLE if isinstance(labels, Tensor) else labels.dtype.kind in "iu"):
            raise ClamkitError(f"labels of type {labels.dtype} are not class numbers: give whole numbers.")
        index = labels.long() if isinstance(labels, Tensor) else torch.from_numpy(labels.astype(np.int64))
        check_range(index, self.num_classes, "label", self.ignore_index)
        valid = index != self.ignore_index
        found = self._weights_on(index.device).take(index * valid) * valid
        return found if isinstance(y, Tensor) else found.numpy()

    def _checked(self, output: Any, y: Any, group: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(logits, labels, whose weight each takes, which labels count); None: all. What does not count has label 0."""
        logits = as_logits(output)
        y, valid = checked_labels(logits, y, self.num_classes if group is None else None, self.ignore_index)
        if group is None:
            return logits, y, y, valid
        group = torch.as_tensor(group, device=y.device)
        if group.shape != y.shape or group.dtype not in WHOLE:
            raise ClamkitError(
                f"groups of type {group.dtype} and shape {tuple(group.shape)} do not fit labels of shape "
                f"{tuple(y.shape)}: give one whole number for each label."
            )
        group = group.long() if valid is None else group.long() * valid
        check_range(group, self.num_classes, "group")
        return logits, y, group, valid

    def _each(self, logits: Tensor, y: Tensor) -> Tensor:
        if self.per_sample_loss is cross_entropy:
            return cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        each = self.per_sample_loss(logits, y)
        if each.shape != y.shape:
            raise _one_value_each(f"the loss given gave shape {tuple(each.shape)} for {tuple(y.shape)}")
        return each

    def _weights_on(self, device: torch.device) -> Tensor:
        if self._device_weights is None or self._device_weights.device != device:
            weights = self.weights if self.shares is None else self.weights / (self.num_classes * self.shares)
            with torch.inference_mode(False):  # training may be the next to need them
                self._device_weights = weights.float().to(device)
        return self._device_weights

    def _count(
        self, logits: Tensor, y: Tensor, index: Tensor, valid: Tensor | None, each: Tensor | None = None
    ) -> None:
        """Count a batch; `each` is its cross entropy where that is known already."""
        if self.seen.device != y.device:
            with torch.inference_mode(False):  # or step() could not write to them
                self.correct, self.seen = self.correct.to(y.device), self.seen.to(y.device)
                self.loss_sum = self.loss_sum.to(y.device)
        logits = logits.detach()
        each, hit = cross_entropy(logits, y) if each is None else each.detach(), predicted(logits) == y
        if valid is not None:
            each, hit = each.masked_fill(~valid, 0), hit & valid
        if y.ndim > 1:
            index, each, hit = index.flatten(), each.flatten(), hit.flatten()
            self.loss_sum += exact_sums(index, each, self.num_classes)  # one by one, float32 would stop growing
        else:
            self.loss_sum.index_add_(0, index, each)
        self.seen.index_add_(0, index, torch.ones_like(index) if valid is None else valid.long().flatten())
        self.correct.index_add_(0, index, hit.long())
        if self.training and self._moves_every_batch and self.epoch >= self.start_epoch:
            counted = slice(None) if valid is None else valid.flatten()
            self.after_batch(index[counted], hit[counted], each[counted])

    def after_batch(self, index: Tensor, right: Tensor, losses: Tensor) -> None:
        """For rules that move every batch, as it is counted: each sample's class or group, whether right, its loss."""

    def set_weights(self, w: np.ndarray) -> None:
        """The weights as n·w, w a distribution."""
        self.weights.copy_(torch.from_numpy(w * self.num_classes))
        self._device_weights = None

    def _reduced(self, each: Tensor, valid: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """`reduction` over what counts, times its weights. The mean over nothing, an empty batch, is 0 and not nan."""
        if weights is not None:
            each = each * weights
        if valid is not None:
            each = each.masked_fill(~valid, 0)
        if self.reduction == "none":
            return each
        if self.reduction == "sum" or not each.numel():
            return each.sum()
        return each.mean() if valid is None else each.sum() / valid.sum().clamp_min(1)

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
        """Move the weights by what was counted, or what is given (nan: a class keeps its weight); then count anew."""
        if self.by_loss and accuracy is not None and loss is None:
            name = type(self).__name__
            raise ClamkitError(f"{name} moves by the losses of the classes: give step(loss=...) too, or let it count.")
        counted_accuracy, counted_loss = self.counted()
        n = self.num_classes
        v = counted_accuracy if accuracy is None else of_classes(accuracy, n, "accuracy", 0, 1, nan=True)
        losses = counted_loss if loss is None else of_classes(loss, n, "loss", 0, nan=True)
        w = self.weights.numpy() / n
        seen = np.isfinite(losses if self.by_loss else v)
        if not seen.any():
            raise ClamkitError(
                "step() has nothing to go by: no training batch was counted, or none with a finite loss. Take the "
                "training loss from the weighter (or from its callback), call observe(), or give accuracy=."
            )
        if not seen.all() and not self._warned:
            self._warned = True
            none = f"no sample{' with a finite loss' * self.by_loss} this epoch (first: class {(~seen).argmax()})"
            warnings.warn(f"{(~seen).sum()} of {n} classes had {none}; they keep their weight.", stacklevel=2)
        self.epoch += 1
        share = w[seen].sum()  # the seen classes play among themselves for the mass they hold, if any
        if self.epoch > self.start_epoch and share > 0:
            w[seen] = share * self.update(w[seen] / share, v[seen], losses[seen], share)
            self.set_weights(w)
        self.forget()

    def forget(self) -> None:
        """Count anew, without a step."""
        self._last = None
        for count in (self.correct, self.seen, self.loss_sum):
            count.zero_()

    def update(self, w: np.ndarray, v: np.ndarray, losses: np.ndarray, share: float) -> np.ndarray:
        """New distribution over the seen classes, which together hold `share` of all weight."""
        raise TypeError(f"{type(self).__name__} does not define update()")


def exact_sums(index: Tensor, values: Tensor, num_classes: int) -> Tensor:
    """float32 [n]: the values of each class, summed in float64 where the device has it (MPS has not)."""
    wide = values.float() if values.device.type == "mps" else values.double()
    return wide.new_zeros(num_classes).index_add_(0, index, wide).float()


def _one_value_each(given: str) -> ClamkitError:
    return ClamkitError(
        f"{given}: each sample has a weight of its own, so the loss must give one value for each (reduction='none')."
    )
