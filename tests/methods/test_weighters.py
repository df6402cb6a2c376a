"""The min player: its counts, its loss and its manners inside other people's loops."""

import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from clamkit.errors import ClamkitError
from clamkit.methods.weighters import CLAM, GGF, TCE, APStar, Uniform, Weighter, build_method
from clamkit.metrics import class_accuracy
from clamkit.theory import update
from clamkit.theory.sets import LowerBounded


def batch(n=5, size=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, n, generator=generator), torch.randint(0, n, (size,), generator=generator)


# forward, loss and counts


def test_forward_is_the_loss_and_counts_in_training_mode():
    logits, y = batch()
    clam, beside = CLAM(5), CLAM(5)
    for weighter in (clam, beside):
        weighter.step(accuracy=[0.1, 0.9, 0.5, 0.4, 0.8])
    logits.requires_grad_()
    loss = clam(logits, y)
    assert torch.isclose(loss, beside.loss(logits, y), rtol=1e-6)
    beside.observe(logits, y)
    for one, other in zip(clam.totals(), beside.totals(), strict=True):
        assert torch.equal(one, other)
    assert clam.totals()[1].tolist() == np.bincount(y, minlength=5).tolist()
    (gradient,) = torch.autograd.grad(loss, logits)
    onehot, p = F.one_hot(y, 5), logits.detach().softmax(1)
    expected = clam.weights[y][:, None] * (p - onehot) / len(y)  # of cross entropy, times the weight, over the batch
    assert torch.allclose(gradient.double(), expected, atol=1e-7)


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_forward_does_not_count_evaluation(how):
    logits, y = batch()
    clam = CLAM(5)
    trained = clam(logits, y)
    before = [count.clone() for count in clam.totals()]
    if how == "eval":
        evaluated = clam.eval()(logits, y)
    else:
        with torch.no_grad() if how == "no_grad" else torch.inference_mode():
            evaluated = clam(logits, y)
    torch.testing.assert_close(evaluated, trained)  # equal weights; the sum may be rounded otherwise
    assert all(torch.equal(now, then) for now, then in zip(clam.totals(), before, strict=True))
    clam.train()(logits, y)
    assert clam.seen.sum() == 2 * len(y)


def test_a_loop_of_ones_own_is_four_lines():
    torch.manual_seed(0)
    model, clam = torch.nn.Linear(4, 3), CLAM(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(90, 4), torch.arange(90) % 3
    for part in torch.arange(90).split(30):
        loss = clam(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy, _ = clam.counted()
    clam.step()
    expected = update.clam(np.full(3, 1 / 3), accuracy, LowerBounded(3, 1 / 6), 1.0, "euclidean")
    assert clam.weights.numpy() / 3 == pytest.approx(expected)


def test_loss_is_the_mean_of_weighted_losses_not_divided_by_weights():
    logits, y = batch()
    clam = CLAM(5)
    clam.step(accuracy=[0.1, 0.9, 0.5, 0.4, 0.8])
    expected = np.mean([clam.weights[k] * -torch.log_softmax(row, 0)[k] for row, k in zip(logits, y, strict=True)])
    assert clam.loss(logits, y).item() == pytest.approx(float(expected), rel=1e-5)
    divided = F.cross_entropy(logits, y, weight=clam.weights.float())
    assert abs(clam.loss(logits, y) - divided) > 1e-3


def test_observed_accuracy_is_the_metrics_accuracy():
    weighter = Uniform(5)
    labels, predictions, losses = [], [], []
    for seed in range(3):
        logits, y = batch(seed=seed)
        weighter.observe(logits, y)
        labels.append(y)
        predictions.append(logits.argmax(1))
        losses.append(F.cross_entropy(logits, y, reduction="none"))
    y = torch.cat(labels)
    accuracy, loss = weighter.counted()
    assert np.allclose(accuracy, class_accuracy(y, torch.cat(predictions), 5))
    assert np.allclose(loss, [torch.cat(losses)[y == k].mean() for k in range(5)], atol=1e-5)
    weighter.step()
    assert weighter.seen.sum() == 0


def test_forget_counts_anew_without_a_step():
    clam = CLAM(5)
    clam.observe(*batch())
    clam.forget()
    assert int(clam.epoch) == 0
    assert [int(count.sum()) for count in clam.totals()] == [0, 0, 0]


def test_labels_of_any_whole_number_type_count_alike():
    logits, y = batch()
    counts = []
    for dtype in (torch.uint8, torch.int32, torch.int64):
        weighter = Uniform(5)
        weighter.observe(logits, y.to(dtype))
        counts.append(weighter.totals())
    assert all(torch.equal(a, b) for other in counts[1:] for a, b in zip(counts[0], other, strict=True))


# as part of other people's programs


@pytest.mark.parametrize(
    ("weighter", "text"),
    [
        (CLAM(10), "CLAM(10, tau=1.0, projection='euclidean', u_min=0.05)"),
        (CLAM(4, tau=0.1, ratio=3.0), "CLAM(4, tau=0.1, projection='euclidean', ratio=3.0)"),
        (Uniform(3), "Uniform(3)"),
        (TCE(3, gamma=0.25), "TCE(3, gamma=0.25)"),
        (GGF(3, 0.9, 0.1), "GGF(3, alpha=0.9, w_min=0.1, frequency=1, rank_by='accuracy')"),
        (APStar(3, original=True), "APStar(3, alpha=0.5, original=True)"),
    ],
)
def test_repr_says_what_it_is(weighter, text):
    assert repr(weighter) == text
    assert repr(eval(text)) == text


def test_unseen_class_keeps_its_weight_with_one_warning():
    clam = CLAM(4, projection="kl")
    clam.step(accuracy=[0.2, 0.9, 0.9, 0.9])
    before = clam.weights.clone()
    logits, y = batch(4)
    clam.observe(logits[y != 3], y[y != 3])
    with pytest.warns(UserWarning, match="1 of 4 classes had no sample"):
        clam.step()
    assert clam.weights[3] == pytest.approx(before[3])
    assert clam.weights.sum().item() == pytest.approx(4)
    assert not torch.allclose(clam.weights[:3], before[:3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clam.observe(logits[y != 3], y[y != 3])
        clam.step()


def test_state_dict_round_trip_keeps_weights_and_half_counted_epochs():
    logits, y = batch()
    first, second = CLAM(5), CLAM(5)
    first.step(accuracy=[0.1, 0.9, 0.5, 0.4, 0.8])
    first.observe(logits, y)
    second.loss(logits, y)  # fills the device copy, which loading must refresh
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.loss(logits, y), second.loss(logits, y))
    first.step()
    second.step()
    assert torch.equal(first.weights, second.weights)


def test_casting_the_module_leaves_the_weights_alone():
    model = torch.nn.ModuleDict({"w": CLAM(5)}).half().to("cpu")
    assert model["w"].weights.dtype == torch.float64
    model["w"].observe(*batch())
    model["w"].step()


def test_autocast_loss_is_float32_and_close():
    logits, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = CLAM(5).loss(logits.bfloat16(), y)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-2)


def _rank(rank, port, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    clam = CLAM(5)
    logits, y = batch(seed=rank, size=20 + 30 * rank)  # unequal parts: accuracies must not be averaged
    clam.observe(logits, y)
    clam.step()
    results[rank] = clam.weights.tolist()
    dist.destroy_process_group()


@pytest.mark.slow
def test_counts_are_summed_over_ranks(two_ranks):
    weights = two_ranks(_rank)
    alone = CLAM(5)
    for rank in range(2):
        alone.observe(*batch(seed=rank, size=20 + 30 * rank))
    alone.step()
    assert weights[0] == weights[1] == alone.weights.tolist()


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.loss(torch.zeros(2, 5), torch.full((2, 5), 0.2)), "Soft labels"),
        (lambda w: w(torch.zeros(2, 5), torch.full((2, 5), 0.2)), "Soft labels"),
        (lambda w: w.observe(torch.zeros(2, 5), torch.zeros(2)), "not class numbers"),
        (lambda w: w.loss(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)), "4 logits.*5 classes"),
        (lambda w: w.loss(torch.zeros(3, 5), torch.zeros(2, dtype=torch.long)), "do not fit"),
        (lambda w: w.step(), "nothing to go by"),
        (lambda w: w.step(accuracy=[0.5] * 4), "each of 5 classes"),
        (lambda w: w.step(accuracy=[0.5, 0.5, 0.5, 0.5, 50]), "from 0 to 1"),
        (lambda w: w.step(accuracy=[0.5, 0.5, 0.5, 0.5, float("inf")]), "class 4 is inf"),
        (lambda w: w.step(accuracy=[0.5] * 5, loss=[-1.0] * 5), "class 0 is -1.0: it must be a finite number from 0"),
        (lambda w: w.step(accuracy=[0.5] * 5, loss=[float("inf")] * 5), "class 0 is inf: it must be a finite"),
    ],
)
def test_bad_calls(call, message):
    with pytest.raises(ClamkitError, match=message):
        call(CLAM(5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"u_min": 0.1}, r"u_min=0.1 leaves no room for 10 classes"),
        ({"u_min": -0.01}, "leaves no room"),
        ({"tau": -1}, "tau=-1"),
        ({"tau": float("nan")}, "tau=nan"),
        ({"projection": "l1"}, "unknown projection 'l1'"),
    ],
)
def test_bad_settings_of_clam(settings, message):
    with pytest.raises(ClamkitError, match=message):
        CLAM(10, **settings)
    with pytest.raises(ClamkitError, match=message):
        build_method("clam", None, 10, **settings)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GGF(5, alpha=1.5, w_min=0.1), "alpha=1.5 is not allowed"),
        (lambda: GGF(5, alpha=0.9, w_min=-0.1), "w_min=-0.1"),
        (lambda: GGF(5, 0.9, 0.1, frequency=0), "frequency=0"),
        (lambda: GGF(5, 0.9, 0.1, rank_by="name"), "unknown ranking"),
        (lambda: TCE(5, gamma=2), "gamma=2"),
        (lambda: APStar(5, alpha=-1), "alpha=-1"),
        (lambda: APStar(5, k_min=0), "k_min=0"),
        (lambda: CLAM(5, ratio=0.5), "ratio"),
        (lambda: CLAM(5, ratio=2, u_min=0.1), "without u_min"),
        (lambda: CLAM(5, ratio=2, projection="clip"), "goes with projection"),
        (lambda: CLAM(5, start_epoch=-1), "start_epoch=-1"),
        (lambda: CLAM(1), "at least two"),
    ],
)
def test_bad_settings(build, message):
    with pytest.raises(ClamkitError, match=message):
        build()


def test_a_weighter_without_a_rule_says_so():
    with pytest.raises(TypeError, match=r"Weighter does not define update\(\)"):
        Weighter(3).step(accuracy=[0.1, 0.2, 0.3])
