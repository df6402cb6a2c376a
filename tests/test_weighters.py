"""The min player against references written here, and its manners inside other people's loops."""

import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from clamkit.errors import ClamkitError
from clamkit.methods import METHODS, build_method
from clamkit.metrics import class_accuracy
from clamkit.weighters import CLAM, PROJECTIONS, Uniform


def batch(n=5, size=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, n, generator=generator), torch.randint(0, n, (size,), generator=generator)


def reference_step(w, v, tau, u_min, projection):
    """The update of the paper written out: hedge, then the projection by a general solver."""
    x = w * np.exp(-tau * v)
    x = x / x.sum()
    if projection == "clip":
        x = np.maximum(x, u_min)
        return x / x.sum()
    if projection == "released":
        n = len(w)
        d = np.exp(-v)
        clipped = np.clip(n * w * d / d.mean() / (w * d / d.mean()).sum() / n * 1.0, 0.5 / n, 2 / n)
        return clipped / clipped.sum()
    objective = {
        "euclidean": lambda y: ((y - x) ** 2).sum(),
        "kl": lambda y: (y * np.log(np.maximum(y, 1e-300) / x)).sum(),
    }[projection]
    bounds = [(u_min, 1)] * len(w)
    constraint = {"type": "eq", "fun": lambda y: y.sum() - 1}
    start = np.full(len(w), 1 / len(w))
    options = {"ftol": 1e-15, "maxiter": 1000}
    return minimize(objective, start, bounds=bounds, constraints=constraint, method="SLSQP", options=options).x


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.sampled_from(PROJECTIONS), st.integers(2, 6), st.floats(0, 2), st.integers(0, 1000), st.floats(0.1, 0.9))
def test_clam_steps_match_the_reference(projection, n, tau, seed, floor):
    rng = np.random.default_rng(seed)
    if projection == "released":
        tau, floor = 1.0, 0.5
    clam = CLAM(n, tau=tau, u_min=floor / n, projection=projection)
    w = np.full(n, 1 / n)
    for _ in range(3):
        v = rng.random(n)
        clam.step(accuracy=v)
        w = reference_step(w, v, tau, floor / n, projection)
        assert np.allclose(clam.weights.numpy() / n, w, atol=2e-5)
        w = clam.weights.numpy() / n


def test_released_clip_reproduces_its_known_numbers():
    clam = CLAM(10, projection="released")
    clam.step(accuracy=np.r_[0.0, np.ones(9)])
    assert clam.weights[:2].numpy() == pytest.approx([2.066, 0.8816], abs=1e-3)
    clam = CLAM(10, projection="released")
    clam.step(accuracy=np.r_[1.0, np.zeros(9)])
    assert clam.weights[:2].numpy() == pytest.approx([0.4947, 1.056], abs=1e-3)


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


def test_weights_sum_to_n_and_normal_stays_at_one():
    clam, normal = CLAM(4), Uniform(4)
    for seed in range(20):
        v = np.random.default_rng(seed).random(4)
        clam.step(accuracy=v)
        normal.step(accuracy=v)
    assert clam.weights.sum().item() == pytest.approx(4)
    assert clam.weights.dtype == torch.float64
    assert clam.weights.min() >= 0.5 - 1e-12
    assert torch.equal(normal.weights, torch.ones(4, dtype=torch.float64))


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


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_builds_and_steps(name):
    weighter = build_method(name, "fashion_mnist_mini", 10)
    weighter.step(accuracy=np.linspace(0, 1, 10), loss=np.linspace(3, 0, 10))
    assert weighter.weights.sum().item() == pytest.approx(10)


def _rank(rank, port, results):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    clam = CLAM(5)
    logits, y = batch(seed=rank, size=20 + 30 * rank)  # unequal parts: accuracies must not be averaged
    clam.observe(logits, y)
    clam.step()
    results[rank] = clam.weights.tolist()
    dist.destroy_process_group()


def test_counts_are_summed_over_ranks():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, args=(port, results), nprocs=2)
        weights = dict(results)
    alone = CLAM(5)
    for rank in range(2):
        alone.observe(*batch(seed=rank, size=20 + 30 * rank))
    alone.step()
    assert weights[0] == weights[1] == alone.weights.tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.loss(torch.zeros(2, 5), torch.full((2, 5), 0.2)), "Soft labels"),
        (lambda w: w.observe(torch.zeros(2, 5), torch.zeros(2)), "not class numbers"),
        (lambda w: w.loss(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)), "4 logits.*5 classes"),
        (lambda w: w.loss(torch.zeros(3, 5), torch.zeros(2, dtype=torch.long)), "do not fit"),
        (lambda w: w.step(), "nothing to go by"),
        (lambda w: w.step(accuracy=[0.5] * 4), "each of 5 classes"),
        (lambda w: w.step(accuracy=[0.5, 0.5, 0.5, 0.5, 50]), "fractions from 0 to 1"),
        (lambda w: w.step(accuracy=[0.5, 0.5, 0.5, 0.5, float("nan")]), "class 4 is nan"),
        (lambda w: w.step(accuracy=[0.5] * 5, loss=[-1.0] * 5), "numbers ≥ 0"),
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
def test_bad_settings(settings, message):
    with pytest.raises(ClamkitError, match=message):
        CLAM(10, **settings)
    if "projection" not in settings:
        with pytest.raises(ClamkitError, match=message):
            build_method("clam", None, 10, **settings)


def test_unknown_methods_and_settings():
    with pytest.raises(ClamkitError, match=r"unknown method 'clamm'. Did you mean 'clam'"):
        build_method("clamm", None, 10)
    with pytest.raises(ClamkitError, match="unknown setting of method 'normal' 'tau'"):
        build_method("normal", None, 10, tau=1.0)
    with pytest.raises(ClamkitError, match="at least two"):
        CLAM(1)
