"""A weighter as a criterion like torch's own: reductions, labels, groups, states, and what is refused."""

import contextlib
import copy
import io
import pickle
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from clamkit.errors import ClamkitError
from clamkit.methods import losses
from clamkit.methods.peers import CFOL, TLA, ClassBalanced, Fixed, GroupDRO, LogitAdjusted
from clamkit.methods.weighters import CLAM, GGF, TCE, APStar, MaxMin, Uniform, build_method
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded

ACCURACY = [0.1, 0.9, 0.5, 0.4, 0.8]


def batch(n=5, shape=(64,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, n, shape, generator=generator)
    return torch.randn(shape[0], n, *shape[1:], generator=generator), y


def moved(**options):
    clam = CLAM(5, **options)
    clam.step(accuracy=ACCURACY)
    return clam


# like torch's


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(64,), (4, 6), (3, 4, 5)])
@pytest.mark.parametrize("ignored", [None, -100, 255, 2])
def test_with_equal_weights_it_is_torchs(reduction, smoothing, shape, ignored):
    logits, y = batch(shape=shape)
    options = {"label_smoothing": smoothing, "reduction": reduction}
    if ignored is not None:
        options["ignore_index"] = ignored
        y = torch.where(y == 0, ignored, y)
    found, wanted = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    mine, torchs = CLAM(5, **options)(found, y), nn.CrossEntropyLoss(**options)(wanted, y)
    assert torch.allclose(mine, torchs, atol=1e-6)
    mine.sum().backward()
    torchs.sum().backward()
    assert torch.allclose(found.grad, wanted.grad, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [None, 255, 2])
def test_dense_labels_weigh_and_count_like_a_loop_over_pixels(ignored, smoothing):
    logits, y = batch(shape=(3, 4, 5))
    clam = moved(label_smoothing=smoothing, **({} if ignored is None else {"ignore_index": ignored}))
    if ignored is not None:
        y = torch.where(y == 0, ignored, y)
    weighted, right, seen, loss = [], np.zeros(5), np.zeros(5), np.zeros(5)
    for i, j, k in np.ndindex(y.shape):
        label, pixel = int(y[i, j, k]), logits[i, :, j, k]
        if label == ignored:
            continue
        weighted.append(float(clam.weights[label] * F.cross_entropy(pixel, y[i, j, k], label_smoothing=smoothing)))
        right[label] += int(pixel.argmax()) == label
        seen[label] += 1
        loss[label] += float(F.cross_entropy(pixel, y[i, j, k]))
    assert clam(logits, y).item() == pytest.approx(np.mean(weighted), rel=1e-5)
    assert [total.tolist() for total in clam.totals()[:2]] == [right.tolist(), seen.tolist()]
    assert clam.totals()[2].numpy() == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(43,), (3, 4, 5)])
def test_loss_and_counts_in_one_pass_give_the_gradient_of_weighted_samples_to_the_bit(shape, reduction):
    logits, y = batch(shape=shape)
    clam, one, other = moved(reduction=reduction), logits.clone().requires_grad_(), logits.clone().requires_grad_()
    each = F.cross_entropy(other, y, reduction="none") * clam.weights.float()[y]
    value, wanted = clam(one, y), getattr(each, reduction)()
    assert torch.allclose(value, wanted, rtol=1e-6)
    value.backward(), wanted.backward()
    assert torch.equal(one.grad, other.grad)  # training does not see which way it was computed


def test_losses_of_very_many_pixels_are_summed_whole():
    y = torch.zeros(4, 512, 512, dtype=torch.long)
    logits = torch.stack([torch.full(y.shape, 4.0), torch.zeros(y.shape)], dim=1).requires_grad_()
    tce, dro = TCE(2), GroupDRO(2, eta=1.0)
    for _ in range(2):  # a million each: one by one, float32 is off by 3e-4, and after 2²⁴ the sum stands still
        tce.observe(logits, y)
    assert tce.counted()[1][0] == pytest.approx(np.log1p(np.exp(-4.0)), rel=1e-5)
    dro.observe(logits, y)
    q = np.exp([np.log1p(np.exp(-4.0)), 0.0])
    assert (dro.weights / 2).tolist() == pytest.approx((q / q.sum()).tolist(), rel=1e-6)


@pytest.mark.parametrize("method", ["focal", "pw"])
def test_other_losses_take_dense_labels_and_leave_ignored_ones_out(method):
    logits, y = batch(shape=(3, 4, 5))
    y[0] = -100
    weighter = build_method(method, "cifar10", 5)
    kept, labels = logits.movedim(1, -1)[y != -100], y[y != -100]
    assert weighter(logits, y).item() == pytest.approx(weighter.per_sample_loss(kept, labels).mean().item(), rel=1e-5)
    assert weighter.seen.tolist() == np.bincount(labels, minlength=5).tolist()


def test_ignored_labels_cost_nothing_even_where_the_loss_is_infinite():
    logits, y = batch()
    logits[:, 0] = -torch.inf  # a class that the model rules out
    y = torch.where(y == 0, -100, y)
    logits.requires_grad_()
    clam = moved()
    clam(logits, y).backward()
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(clam.loss_sum).all()


@pytest.mark.parametrize("y", [torch.zeros(0, dtype=torch.long), torch.full((4,), -100)], ids=["empty", "all ignored"])
def test_nothing_to_learn_from_is_no_loss_and_no_gradient(y):
    logits = torch.randn(len(y), 5).requires_grad_()
    clam = moved()
    loss = clam(logits, y)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()
    assert clam.seen.sum() == 0
    assert clam.eval()(logits, y) == 0


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_evaluation_has_the_same_yardstick_whatever_the_weights(how):
    (logits, y), clam = batch(), moved(sizes=[1, 2, 3, 4, 5])
    assert clam(logits, y) != pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-3)
    seen = clam.seen.clone()
    if how == "eval":
        found = clam.eval()(logits, y)
    else:
        with getattr(torch, how)():
            found = clam(logits, y)
    assert found.item() == pytest.approx(F.cross_entropy(logits, y).item())
    assert torch.equal(clam.seen, seen)
    assert clam.loss(logits, y) != found  # asked for, it is weighted also then


def test_the_count_is_argmax_also_between_equals_and_in_half_precision():
    """The quick way on CPUs finds what torch finds: of equals the first."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shape in ((200, 7), (5, 7, 40)):
            logits = torch.randint(-2, 3, shape, generator=generator).to(dtype)
            assert torch.equal(losses.predicted(logits), logits.argmax(1))


def test_keyword_names_are_torchs():
    logits, y = batch()
    assert CLAM(5)(input=logits, target=y) == CLAM(5)(logits, y)


def test_repr_has_what_differs_from_the_usual():
    text = "CLAM(5, tau=1.0, projection='euclidean', u_min=0.1, label_smoothing=0.1, ignore_index=255)"
    assert repr(CLAM(5, label_smoothing=0.1, ignore_index=255)) == text
    assert repr(eval(text)) == text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*classes had no sample")
@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: CLAM(5), {}),
        (lambda: CLAM(5, label_smoothing=0.1, ignore_index=2, reduction="sum"), {}),
        (lambda: build_method("focal", "cifar10", 5), {}),
        (lambda: CLAM(3, sizes=[1, 1, 2]), {"group": torch.arange(64) % 3}),
    ],
    ids=["plain", "options", "focal", "groups"],
)
def test_compiles_without_a_graph_break(make, given):
    torch._dynamo.reset()
    eager, weighter = make(), make()
    logits, y = batch()
    for each in (eager, weighter):
        each.step(accuracy=np.linspace(0.1, 0.9, each.num_classes))
    compiled = torch.compile(weighter, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        eager(one, y, **given).backward()
        compiled(other, y, **given).backward()
        assert torch.allclose(one.grad, other.grad, atol=1e-7)
        for mine, theirs in zip(eager.totals(), weighter.totals(), strict=True):
            assert torch.allclose(mine, theirs)
        eager.step()
        weighter.step()
    assert torch.allclose(eager.weights, weighter.weights)


# what a model or a loader may give


def test_outputs_of_models_are_unpacked():
    logits, y = batch()
    wanted = CLAM(5)(logits, y)
    for output in (
        {"logits": logits},
        {"out": logits, "aux": torch.zeros(1)},
        SimpleNamespace(logits=logits),
        (logits, torch.zeros(3)),
        [logits],
    ):
        assert CLAM(5)(output, y) == wanted


@pytest.mark.parametrize("output", [{"scores": 1}, (), None, "logits", (3.0,)])
def test_outputs_without_logits_are_refused(output):
    with pytest.raises(ClamkitError, match="no logits were found"):
        CLAM(5)(output, torch.zeros(2, dtype=torch.long))


L5 = torch.zeros(4, 5)


@pytest.mark.parametrize(
    ("logits", "y", "says"),
    [
        (L5, ["cat", "dog", "cat", "cat"], "labels are text .the first is 'cat'"),
        (L5, np.array(["cat", "dog", "cat", "cat"]), "labels are text"),
        (L5, [0, 1, 2, 3], "labels are of type list: give a tensor"),
        (L5, torch.tensor([0, 1, 5, 2]), "label 5 is out of range: labels run from 0 to 4"),
        (L5, torch.tensor([0, -1, 5, 2]), "label -1 is out of range"),
        (L5, torch.full((4, 5), 0.2), "Soft labels"),
        (L5, F.one_hot(torch.arange(4), 5).float(), "y.argmax.1."),
        (L5, torch.ones(4, 5), "multi-label"),
        (L5, torch.ones(4, 5, dtype=torch.long), "multi-label"),
        (L5, torch.ones(4, 5, dtype=torch.bool), "multi-label"),
        (torch.zeros(4), torch.ones(4), "BCEWithLogitsLoss"),
        (torch.zeros(4, 1), torch.ones(4, 1), "BCEWithLogitsLoss"),
        (torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]), "one logit a sample .*take two outputs"),
        (torch.zeros(4, 1, 2, 2), torch.zeros(4, 2, 2, dtype=torch.long), "take two outputs"),
        (torch.zeros(4, 1, 2, 2), torch.zeros(4, 1, 2, 2), "take two outputs"),
        (L5, torch.ones(4), r"give labels.long\(\)"),
        (torch.zeros(4, 7, 5), torch.zeros(4, 7, dtype=torch.long), r"movedim\(-1, 1\)"),
        (torch.zeros(4, 7), torch.zeros(4, dtype=torch.long), "7 logits.*5 classes"),
        (L5, torch.zeros(4, 1, dtype=torch.long), "do not fit"),
        (torch.zeros(()), torch.zeros((), dtype=torch.long), "one logit a sample"),
    ],
)
def test_each_kind_of_label_that_cannot_be_counted_has_its_own_sentence(logits, y, says):
    clam = CLAM(5)
    with pytest.raises(ClamkitError, match=says):
        clam(logits, y)
    assert clam.seen.sum() == 0


@pytest.mark.parametrize("make", [TLA, lambda n, sizes: LogitAdjusted(n, sizes=sizes)])
def test_evaluation_has_it_also_where_margins_move(make):
    logits, y = batch()
    weighter = make(5, sizes=[1, 2, 3, 4, 5])
    for _ in range(3):
        weighter.step(accuracy=ACCURACY)
    plain = F.cross_entropy(logits, y).item()
    assert weighter(logits.requires_grad_(), y).item() != pytest.approx(plain, rel=1e-3)
    with torch.no_grad():
        assert weighter(logits, y).item() == pytest.approx(plain)


# losses of one's own


def test_a_loss_with_a_mean_is_refused_when_built_and_when_called():
    logits, y = batch()
    with pytest.raises(ClamkitError, match="one value for each"):
        CLAM(5, loss=nn.CrossEntropyLoss())
    with pytest.raises(ClamkitError, match=r"gave shape \(\) for \(64,\)"):
        CLAM(5, loss=F.cross_entropy)(logits, y)
    clam = CLAM(5, loss=nn.CrossEntropyLoss(reduction="none"))
    assert clam(logits, y).item() == pytest.approx(F.cross_entropy(logits, y).item())
    for given in (None, "focal", nn.CrossEntropyLoss):
        with pytest.raises(ClamkitError, match="is no function of"):
            CLAM(5, loss=given)
    with pytest.raises(ClamkitError, match="put it into the loss"):
        CLAM(5, loss=nn.CrossEntropyLoss(reduction="none"), label_smoothing=0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reduction": "avg"}, "unknown reduction"),
        ({"label_smoothing": 2}, "label_smoothing=2"),
        ({"num_classes": 2.5}, "num_classes=2.5"),
        ({"start_epoch": 1.5}, "start_epoch=1.5"),
    ],
)
def test_bad_options(options, says):
    with pytest.raises(ClamkitError, match=says):
        CLAM(**{"num_classes": 5} | options)


# steps by given numbers


def test_a_class_that_was_not_seen_may_be_nan():
    given, alone = CLAM(5, projection="kl"), CLAM(4, projection="kl", u_min=0.1 / 0.8)
    with pytest.warns(UserWarning, match="1 of 5 classes"):
        given.step(accuracy=[0.1, 0.9, 0.5, np.nan, 0.8])
    alone.step(accuracy=[0.1, 0.9, 0.5, 0.8])
    assert given.weights[3] == 1
    assert given.weights[[0, 1, 2, 4]].numpy() == pytest.approx(alone.weights.numpy())
    with pytest.raises(ClamkitError, match="nothing to go by"):
        given.step(accuracy=[np.nan] * 5)


@pytest.mark.parametrize("make", [TCE, APStar])
def test_a_class_whose_loss_is_infinite_keeps_its_weight(make):
    weighter, plain = make(3), make(3)
    logits = torch.tensor([[-torch.inf, 1, 2], [1, 0, 1], [0, 1, 2]], requires_grad=True)  # class 0 is ruled out
    weighter(logits, torch.tensor([0, 1, 2]))
    with pytest.warns(UserWarning, match=r"1 of 3 classes had no sample with a finite loss .*class 0"):
        weighter.step()
    losses = F.cross_entropy(logits[1:], torch.tensor([1, 2]), reduction="none").tolist()
    with pytest.warns(UserWarning, match="1 of 3 classes"):
        plain.step(loss=[np.nan, *losses])
    assert weighter.weights.tolist() == pytest.approx(plain.weights.tolist(), rel=1e-6)
    assert weighter.weights[0] == 1


@pytest.mark.parametrize(
    "make", [ClassBalanced, LogitAdjusted, TLA, CLAM, lambda n, sizes: CFOL(n, sizes=sizes, acts_on="sampling")]
)
@pytest.mark.parametrize("label", [lambda y: pd.Series(y).value_counts(), Counter])
def test_sizes_labelled_by_class_are_read_by_their_labels(make, label):
    y = np.repeat([0, 1, 2], [3, 50, 30])  # value_counts() has class 1 first
    found, wanted = (make(3, sizes=sizes) for sizes in (label(y), np.bincount(y)))
    logits, labels = batch(n=3)
    assert torch.equal(found.loss(logits, labels), wanted.loss(logits, labels))
    assert all(torch.equal(a, wanted.state_dict()[name]) for name, a in found.state_dict().items())


def test_accuracies_may_be_labelled_by_class():
    given, wanted = CLAM(5), CLAM(5)
    wanted.step(accuracy=ACCURACY)
    given.step(accuracy=pd.Series(ACCURACY).sort_values())
    assert torch.equal(given.weights, wanted.weights)
    with pytest.raises(ClamkitError, match="accuracy has the labels cat, dog, .*not the class numbers 0 to 4"):
        given.step(accuracy=pd.Series(ACCURACY, index=["cat", "dog", "fox", "hen", "owl"]))
    with pytest.raises(ClamkitError, match="accuracy: not numbers"):
        given.step(accuracy=["high"] * 5)


@pytest.mark.parametrize("make", [lambda: Fixed(3, [0, 1, 1]), lambda: MaxMin(3, tau=2000)])
@pytest.mark.filterwarnings("ignore:2 of 3 classes")
def test_seen_classes_without_any_weight_have_none_to_share(make):
    weighter = make()
    weighter.step(accuracy=[1.0, 0.5, 0.5])
    weighter.step(accuracy=[0.5, np.nan, np.nan])
    assert weighter.weights.tolist() == [0, 1.5, 1.5]


@pytest.mark.parametrize("make", [lambda: TCE(5), lambda: APStar(5), lambda: GGF(5, 0.9, 0.1, rank_by="loss")])
def test_rules_of_losses_do_not_take_accuracies_alone(make):
    weighter = make()
    with pytest.raises(ClamkitError, match="moves by the losses of the classes"):
        weighter.step(accuracy=ACCURACY)
    assert weighter.epoch == 0
    weighter.step(loss=[2.0, 0.1, 1.0, 1.2, 0.2])
    assert weighter.weights.argmax() == 0
    by_both = make()
    by_both.step(accuracy=ACCURACY, loss=[2.0, 0.1, 1.0, 1.2, 0.2])
    assert torch.equal(by_both.weights, weighter.weights)


# one batch, several passes


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))


def test_lbfgs_counts_each_batch_once():
    model, clam, x, y = network(), moved(), torch.randn(64, 4), torch.arange(64) % 5
    optimizer, logits = torch.optim.LBFGS(model.parameters(), max_iter=5), None

    def closure():
        nonlocal logits
        optimizer.zero_grad()
        logits = model(x)
        loss = clam.loss(logits, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    clam.observe(logits, y)
    assert clam.seen.sum() == 64


def test_sam_counts_the_first_pass_and_weighs_both():
    model, clam, x, y = network(), moved(), torch.randn(64, 4), torch.arange(64) % 5
    clam(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * p.grad / (p.grad.norm() + 1e-12)
    model.zero_grad()
    second = clam.loss(model(x), y)
    second.backward()
    assert clam.seen.sum() == 64
    each = F.cross_entropy(model(x), y, reduction="none")
    assert second.item() == pytest.approx((clam.weights[y] * each).mean().item(), rel=1e-5)


def test_activation_checkpointing_with_the_criterion_outside_counts_once():
    model, clam, x, y = network(), moved(), torch.randn(64, 4), torch.arange(64) % 5
    clam(checkpoint(model, x, use_reentrant=False), y).backward()
    assert clam.seen.sum() == 64
    checkpoint(lambda x: clam.loss(model(x), y), x, use_reentrant=False).backward()  # inside: the loss alone
    assert clam.seen.sum() == 64


def test_a_second_pass_that_is_counted_is_said_once():
    model, clam, x, y = network(), CLAM(5), torch.randn(64, 4), torch.arange(64) % 5
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = clam(model(x), y)
        loss.backward()
        return loss

    with pytest.warns(UserWarning, match="counted twice. If one batch goes .* LBFGS, SAM") as said:
        optimizer.step(closure)
    assert len(said) == 1


@pytest.mark.filterwarnings("error")
def test_other_batches_and_epochs_are_no_second_pass():
    model, clam, x, y = network(), CLAM(5), torch.randn(64, 4), torch.arange(64) % 5
    for _ in range(3):
        clam(model(x), y)  # the whole data as one batch, a step each time
        clam.step()
    buffer = y.clone()
    for _ in range(3):
        buffer.copy_(y)  # labels of the next batch in the same memory
        clam(model(x), buffer)
    clam(model(x), y.clone())
    clam(model(x), y.clone())
    clam.eval()
    clam(model(x), y)
    clam(model(x), y)
    copy.deepcopy(clam)
    pickle.loads(pickle.dumps(clam))


# any partition


def test_groups_of_any_kind_are_weighed_and_counted_like_a_loop():
    logits, y = batch()
    group = (y + torch.arange(64)) % 3
    clam = CLAM(3)
    clam.step(accuracy=[0.2, 0.9, 0.6])
    right, seen = [0] * 3, [0] * 3
    for row, label, g in zip(logits, y, group, strict=True):
        seen[g] += 1
        right[g] += int(row.argmax() == label)
    wanted = (clam.weights[group] * F.cross_entropy(logits, y, reduction="none")).mean()
    assert clam(logits, y, group=group).item() == pytest.approx(wanted.item(), rel=1e-6)
    assert (clam.correct.tolist(), clam.seen.tolist()) == (right, seen)
    w = clam.weights.numpy() / 3
    clam.step()
    expected = update.clam(w, np.divide(right, seen), LowerBounded(3, 1 / 6), 1.0, "euclidean")
    assert clam.weights.numpy() / 3 == pytest.approx(expected)


def test_groups_that_are_the_classes_change_nothing():
    logits, y = batch()
    one, other = moved(), moved()
    plain = one(logits, y)
    for found in (other(logits, y, group=y), moved()(logits, y, group=y.tolist())):
        assert torch.isclose(found, plain, rtol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(one.totals(), other.totals(), strict=True))


def test_dense_groups_leave_ignored_labels_out():
    logits, y = batch(shape=(3, 4, 5))
    y[0] = -100
    group = torch.full_like(y, 1)
    group[0] = 99  # of labels that do not count, nobody asks
    clam = CLAM(2)
    clam(logits, y, group=group)
    assert clam.seen.tolist() == [0, 40]


@pytest.mark.parametrize("scale", [1, 1000])  # shares, or numbers of samples
def test_sizes_make_each_group_count_by_its_weight_alone(scale):
    """Σ q_g · (mean loss of group g), the loss of group DRO, where the batch has the shares of the data."""
    group = torch.tensor([0] * 48 + [1] * 12 + [2] * 4)
    logits, y = batch()
    clam = CLAM(3, sizes=scale * torch.bincount(group) / 64)
    clam.step(accuracy=[0.9, 0.6, 0.1])
    each = F.cross_entropy(logits, y, reduction="none")
    wanted = sum(clam.weights[g] / 3 * each[group == g].mean() for g in range(3))
    assert clam(logits, y, group=group).item() == pytest.approx(wanted.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda logits, y: CLAM(3)(logits, y, group=y), "group [34] is out of range: groups run from 0 to 2"),
        (lambda logits, y: CLAM(3)(logits, y, group=-(y % 2)), "group -1 is out of range"),
        (lambda logits, y: CLAM(3)(logits, y, group=y[:5]), r"groups of type torch.int64 and shape \(5,\) do not fit"),
        (lambda logits, y: CLAM(3)(logits, y, group=y.float()), "groups of type torch.float32"),
        (lambda logits, y: CLAM(3)(logits, y + 1, group=y % 3), "label 5 is out of range"),
        (lambda logits, y: CLAM(3)(logits[:, :1], y * 0, group=y % 3), "take two outputs"),  # its loss is 0
        (lambda logits, y: TLA(5)(logits, y, group=y), "TLA moves the logits of classes"),
        (lambda logits, y: CLAM(3, sizes=[0.5, 0.5]), "each of 3 classes or groups"),
        (lambda logits, y: CLAM(3, sizes=[0.5, 0.5, 0]), "all above 0"),
        (lambda logits, y: CLAM(3, sizes=[0.5, 0.5, np.nan]), "sizes has shape"),
        (lambda logits, y: CLAM(3, sizes=[[1, 2, 3]]), "sizes has shape"),
    ],
)
def test_groups_and_sizes_that_do_not_fit(call, says):
    with pytest.raises(ClamkitError, match=says):
        call(*batch())


def test_sample_weights_are_those_of_the_loss():
    (logits, y), clam = batch(), moved(sizes=[1, 2, 3, 4, 5])
    weights = clam.sample_weights(y)
    assert clam.loss(logits, y).item() == pytest.approx(
        (weights * F.cross_entropy(logits, y, reduction="none")).mean().item()
    )
    for other in (y.numpy(), y.tolist(), y.numpy().astype(np.uint8)):
        found = clam.sample_weights(other)
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, weights.numpy())
    assert clam.sample_weights(torch.tensor([[0, -100]])).tolist() == [[weights[y == 0][0].item(), 0]]
    with pytest.raises(ClamkitError, match="label 5 is out of range"):
        clam.sample_weights([0, 5])
    with pytest.raises(ClamkitError, match="not class numbers"):
        clam.sample_weights([0.5])
    with pytest.raises(ClamkitError, match="type <U3 are not class numbers"):
        clam.sample_weights(["cat", "dog"])


# as a part of other modules, and of programs with other defaults


@contextlib.contextmanager
def default(given):
    """A default type of torch; or a default device: meta, on which `from_pretrained` builds, stands for a GPU too."""
    usual = torch.get_default_dtype()
    with torch.device("cpu" if isinstance(given, torch.dtype) else given):
        torch.set_default_dtype(given if isinstance(given, torch.dtype) else usual)
        try:
            yield
        finally:
            torch.set_default_dtype(usual)


@pytest.mark.parametrize("make", [CLAM, APStar, TCE, lambda n: CFOL(n, eta=0.1)])
@pytest.mark.parametrize("given", [torch.float64, torch.bfloat16, "meta"])
def test_defaults_of_torch_do_not_reach_the_state(make, given):
    logits, y = batch()
    wanted = make(5)
    with default(given):
        found = make(5)
        found(logits.requires_grad_(), y).backward()
    wanted(logits, y).backward()
    for weighter in (found, wanted):
        weighter.step()
    for name, value in wanted.state_dict().items():
        assert found.state_dict()[name].dtype == value.dtype
        assert torch.equal(found.state_dict()[name], value)


def test_a_loss_that_is_a_module_goes_where_the_weighter_goes():
    """On a GPU its class weights would stay behind otherwise."""
    clam = CLAM(5, loss=nn.CrossEntropyLoss(weight=torch.ones(5), reduction="none"))
    assert clam.double().per_sample_loss.weight.dtype == torch.float64
    assert clam.to("meta").per_sample_loss.weight.is_meta
    assert {value.device.type for value in (clam.weights, clam.seen, clam.epoch)} == {"cpu"}
    assert clam.half().weights.dtype == torch.float64


@pytest.mark.parametrize("look", [lambda w, *given: w.loss(*given), lambda w, x, y: w.sample_weights(y)])
def test_the_weights_may_be_looked_at_in_inference_mode_and_then_train(look):
    (logits, y), clam = batch(), moved()
    with torch.inference_mode():
        look(clam, logits, y)
    logits.requires_grad_()
    clam(logits, y).backward()
    wanted = moved()(logits, y)
    (gradient,) = torch.autograd.grad(wanted, logits)
    assert torch.equal(logits.grad, gradient)


def test_a_pass_that_counts_in_inference_mode_leaves_counts_that_a_step_can_clear():
    clam, there = CLAM(5), torch.device("meta")  # in place of a GPU
    with torch.inference_mode():
        clam.observe(torch.zeros(4, 5, device=there), torch.zeros(4, dtype=torch.long, device=there))
    assert clam.seen.is_meta
    clam.forget()


def test_it_has_no_buffers_but_a_state():
    model = nn.ModuleDict({"net": nn.Linear(2, 5), "clam": moved()})
    assert [name for name, _ in model.named_buffers()] == []
    saved = model.state_dict()
    assert set(saved) == {
        "net.weight", "net.bias", "clam.weights", "clam.epoch", "clam.correct", "clam.seen", "clam.loss_sum"
    }  # fmt: skip
    other = nn.ModuleDict({"net": nn.Linear(2, 5), "clam": CLAM(5)})
    other.load_state_dict(saved)
    assert torch.equal(other["clam"].weights, model["clam"].weights)
    copied = copy.deepcopy(model)
    copied["clam"].step(accuracy=ACCURACY)
    assert not torch.equal(copied["clam"].weights, model["clam"].weights)


def test_a_state_of_an_earlier_edition_loads():
    """Buffers then, the same names now."""
    old = {
        "weights": torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64),
        "epoch": torch.tensor(7),
        "correct": torch.tensor([1, 2, 3]),
        "seen": torch.tensor([4, 5, 6]),
        "loss_sum": torch.tensor([0.1, 0.2, 0.3]),
    }
    file = io.BytesIO()
    torch.save(old | {"best": torch.tensor(1.25, dtype=torch.float64), "k": torch.tensor(3)}, file)
    file.seek(0)
    star, clam = APStar(3), CLAM(3)
    star.load_state_dict(torch.load(file, weights_only=True))
    clam.load_state_dict(old)
    for name, value in old.items():
        assert torch.equal(getattr(star, name), value)
        assert torch.equal(getattr(clam, name), value)
    assert (float(star.best), int(star.k)) == (1.25, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("seen"), 'Missing key.*"seen"'),
        (lambda state: state.update(weights=torch.ones(4)), r"weights has shape \(4,\), not \(5,\)"),
        (lambda state: state.update(best=torch.ones(())), 'Unexpected key.*"best"'),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, says):
    state = dict(moved().state_dict())
    change(state)
    clam = CLAM(5)
    with pytest.raises(RuntimeError, match=f"(?s){says}"):
        clam.load_state_dict(state)


class Together(nn.Module):
    """A network that brings its criterion along."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.clam = nn.Linear(4, 5), CLAM(5)

    def forward(self, x, y):
        return self.clam(self.net(x), y)


def _rank(rank, port, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    together = Together()
    model = DistributedDataParallel(together)
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(10 * rank + seed)
        x, y = torch.randn(20 + 30 * rank, 4, generator=generator), torch.arange(20 + 30 * rank) % 5
        model(x, y).backward()
    results[rank] = together.clam.totals()[1].tolist(), together.clam.seen.tolist()
    together.clam.step()
    results[rank] += (together.clam.weights.tolist(),)
    dist.destroy_process_group()


@pytest.mark.slow
def test_counts_inside_a_ddp_module_are_those_of_each_rank(two_ranks):
    found = two_ranks(_rank)
    assert [found[rank][0] for rank in (0, 1)] == [[28] * 5] * 2
    assert [found[rank][1] for rank in (0, 1)] == [[8] * 5, [20] * 5]
    assert found[0][2] == found[1][2]


def test_uniform_is_plain_cross_entropy():
    logits, y = batch()
    assert torch.equal(Uniform(5)(logits, y), F.cross_entropy(logits, y, reduction="none").mean())
