"""Every method of the table: one epoch, a resume, and its update against a reference written here."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from clamkit import data, losses
from clamkit.config import RunConfig
from clamkit.errors import ClamkitError
from clamkit.methods import METHODS, build_method
from clamkit.metrics import class_accuracy
from clamkit.runs import Run, RunStore
from clamkit.simplex import RatioBounded
from clamkit.train import _set_up, predict, train
from clamkit.weighters import CLAM, GGF, TCE, APStar, MaxMin

STATEFUL = [name for name in METHODS if name not in ("normal", "focal", "pw")]


@pytest.mark.parametrize("method", METHODS)
def test_trains_and_resumes_with_the_same_bits(method, small_npz, tmp_path, monkeypatch):
    config = RunConfig(dataset=str(small_npz), method=method, epochs=3, batch_size=20)
    whole = train(config, runs=tmp_path / "whole")
    original = Run.save_history

    def stop(self, columns):
        original(self, columns)
        if len(columns["weight"]) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_history", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config, runs=tmp_path / "broken")
    broken = train(config, runs=tmp_path / "broken")
    pd.testing.assert_frame_equal(whole.history, broken.history, check_exact=True)
    pd.testing.assert_frame_equal(whole.predictions, broken.predictions)
    assert whole.wide("weight").sum(axis=1).to_numpy() == pytest.approx(3)


# ----------------------------------------------------------------------------- references: plain loops over the classes


def clam_reference(w, v, loss, state, floor):
    x = [wi * math.exp(-vi) for wi, vi in zip(w, v, strict=True)]
    x = [xi / sum(x) for xi in x]
    low, high = -10.0, 10.0  # bisection for the shift θ with Σ max(x − θ, floor) = 1
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if sum(max(xi - theta, floor) for xi in x) > 1 else (low, theta)
    return [max(xi - theta, floor) for xi in x]


def kl_reference(w, v, loss, state, floor):
    x = [wi * math.exp(-vi) for wi, vi in zip(w, v, strict=True)]
    low, high = 0.0, 1e6  # bisection for the scale c with Σ max(c·x, floor) = 1
    for _ in range(300):
        c = (low + high) / 2
        low, high = (c, high) if sum(max(c * xi, floor) for xi in x) < 1 else (low, c)
    return [max(c * xi, floor) for xi in x]


def maxmin_reference(w, v, loss, state, floor):
    x = [wi * math.exp(-vi) for wi, vi in zip(w, v, strict=True)]
    return [xi / sum(x) for xi in x]


def clip_reference(w, v, loss, state, floor):
    x = [max(xi, floor) for xi in maxmin_reference(w, v, loss, state, floor)]
    return [xi / sum(x) for xi in x]


def released_reference(w, v, loss, state, floor):
    n = len(w)
    d = [math.exp(-vi) for vi in v]
    x = [n * wi * di for wi, di in zip(w, d, strict=True)]
    x = [xi * n / sum(x) for xi in x]
    x = [min(max(xi, 0.5), 2.0) for xi in x]
    return [xi / sum(x) for xi in x]


def tce_reference(w, v, loss, state, floor):
    total = sum(math.exp(li) for li in loss)
    return [0.5 * wi + 0.5 * math.exp(li) / total for wi, li in zip(w, loss, strict=True)]


def ggf_reference(w, v, loss, state, floor):
    """CIFAR-10's α = .9, w_min = .1, f = 1; rank 1 is the lowest accuracy."""
    raw = [max(0.9 ** sum(other < vi for other in v), 0.1) for vi in v]
    return [r / sum(raw) for r in raw]


def apstar_reference(w, v, loss, state, floor):
    n = len(w)
    k = max(1, round(0.1 * n))
    worst = max(loss)
    state["K"] = 1 if worst < state.get("best", math.inf) else state["K"] + 1
    state["best"] = min(worst, state.get("best", math.inf))
    threshold = sorted(loss, reverse=True)[k - 1]
    x = [n * wi * 0.5 + (n / k / state["K"] * 0.5 if li >= threshold else 0) for wi, li in zip(w, loss, strict=True)]
    x = [min(max(xi, 0.5), 2.0) for xi in x]
    return [xi / sum(x) for xi in x]


def mmpf_reference(w, v, loss, state, floor):
    """μ ← (αμ + (1 − α)/(K·|mask|)·mask)·K/((K − 1)α + 1), Martinez et al., with α = ½ and K_min = 20."""
    k = state.get("K", 1)
    if max(loss) < state.get("best", math.inf):
        state["best"] = max(loss)
        k = min(k, 20)
    mask = [li >= state["best"] for li in loss]
    x = [0.5 * wi + 0.5 / (k * sum(mask)) * m for wi, m in zip(w, mask, strict=True)]
    state["K"] = k + 1
    return [xi * k / ((k - 1) * 0.5 + 1) for xi in x]


REFERENCES = {
    "clam": clam_reference,
    "clam_kl": kl_reference,
    "clam_clip": clip_reference,
    "clam_released": released_reference,
    "maxmin": maxmin_reference,
    "tce": tce_reference,
    "ggf": ggf_reference,
    "apstar": apstar_reference,
    "apstar_mmpf": mmpf_reference,
}


@pytest.mark.parametrize("method", REFERENCES)
def test_update_against_the_reference(method):
    n, rng, state = 10, np.random.default_rng(0), {}
    weighter = build_method(method, "cifar10", n)
    w = [1 / n] * n
    for _ in range(25):
        v, loss = rng.random(n), 2 * rng.random(n)
        weighter.step(accuracy=v, loss=loss)
        w = REFERENCES[method](w, v, loss, state, 0.5 / n)
        assert weighter.weights.numpy() / n == pytest.approx(w, abs=1e-9)


def test_every_method_with_weights_has_a_reference():
    assert set(REFERENCES) | {"clam_ratio"} == set(STATEFUL)


@pytest.mark.parametrize("projection", ["euclidean", "kl"])
def test_ratio_keeps_its_bound_and_is_the_projection(projection):
    weighter = build_method("clam_ratio", None, 6, ratio=3.0, projection=projection)
    rng, w = np.random.default_rng(0), np.full(6, 1 / 6)
    for _ in range(10):
        v = rng.random(6)
        weighter.step(accuracy=v)
        x = w * np.exp(-v)
        w = RatioBounded(6, 3.0).project(x / x.sum(), projection)  # checked against SLSQP in test_simplex
        assert weighter.weights.numpy() / 6 == pytest.approx(w)
        assert weighter.weights.max() / weighter.weights.min() <= 3 + 1e-9


# ------------------------------------------------------------------------------------------------ losses and settings


@pytest.mark.parametrize(("gamma", "theta"), [(2.0, 0.0), (2.5, 0.8), (0.5, 0.0)])
def test_focal_and_pw_are_their_formulas(gamma, theta):
    logits = torch.randn(64, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    y = torch.arange(64) % 7
    p = logits.softmax(1)[torch.arange(64), y]
    expected = -p.log() * ((1 - p) ** gamma + theta)
    assert torch.allclose(
        losses.performance_weighted(logits, y, gamma=gamma, theta=theta).double(), expected, atol=1e-5
    )
    if theta == 0:
        assert torch.allclose(losses.focal(logits, y, gamma=gamma).double(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["normal", "focal", "pw"])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_losses_are_finite_with_finite_gradients_at_any_confidence(method, scale):
    for dtype in (torch.float32, torch.bfloat16):
        logits = (scale * torch.eye(5, dtype=dtype)).requires_grad_()
        for y in (torch.arange(5), (torch.arange(5) + 1) % 5):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != torch.float32):
                loss = build_method(method, None, 5).loss(logits, y)
            (gradient,) = torch.autograd.grad(loss, logits)
            assert torch.isfinite(loss)
            assert torch.isfinite(gradient).all()


def test_label_smoothing_is_torchs():
    logits, y = torch.randn(8, 5), torch.arange(8) % 5
    weighter = build_method("normal", None, 5, label_smoothing=0.1)
    assert weighter.loss(logits, y).item() == pytest.approx(F.cross_entropy(logits, y, label_smoothing=0.1).item())


def test_paper_and_released_settings():
    assert build_method("ggf", "fashion_mnist", 10).alpha == 0.98
    assert build_method("ggf", "fashion_mnist", 10).frequency == 2
    released = build_method("ggf", "fashion_mnist", 10, protocol="released")
    assert (released.alpha, released.frequency, released.rank_by) == (0.95, 1, "loss")
    assert build_method("ggf", "fashion_mnist_mini", 10).alpha == 0.98, "the embedded part takes its parent's"
    assert build_method("clam", "mini_imagenet", 100).start_epoch == 0
    assert build_method("clam", "mini_imagenet", 100, protocol="released").start_epoch == 50
    assert build_method("clam", "cifar10", 10, protocol="released").projection == "released"
    assert build_method("clam", "cifar10", 10).u_min == pytest.approx(1 / 20)
    assert build_method("pw", "cifar10", 10).per_sample_loss.keywords == {"gamma": 2.5, "theta": 0.8}
    assert build_method("focal", "cifar10", 10, gamma=3.0).per_sample_loss.keywords == {"gamma": 3.0}


def test_ggf_plays_every_fth_epoch_and_ranks_by_loss_where_asked():
    ggf = GGF(4, alpha=0.5, w_min=0.2, frequency=2, rank_by="loss")
    loss = [0.1, 3.0, 0.5, 2.0]
    seen = []
    for _ in range(4):
        ggf.step(accuracy=[0.5] * 4, loss=loss)
        seen.append(ggf.weights.tolist())
    raw = np.array([0.2, 1, 0.25, 0.5])
    assert seen[0] == seen[2] == pytest.approx((4 * raw / raw.sum()).tolist())
    assert seen[1] == seen[3] == [1.0] * 4


def test_start_epoch_delays_the_first_move():
    clam = CLAM(3, start_epoch=2)
    for epoch in range(4):
        clam.step(accuracy=[0.1, 0.5, 0.9])
        assert bool((clam.weights == 1).all()) == (epoch < 2)


def test_maxmin_may_leave_a_class_alone_but_stays_finite():
    weighter = MaxMin(3, tau=50.0)
    for _ in range(100):
        weighter.step(accuracy=[0.1, 0.9, 1.0])
    assert weighter.weights.tolist() == pytest.approx([3, 0, 0], abs=1e-9)


def test_mmpf_returns_to_its_best_network(small_npz):
    config = RunConfig(
        dataset=str(small_npz), method="apstar_mmpf", epochs=8, batch_size=20, lr=0.3, schedule="constant"
    )
    run = train(config)
    worst = run.history.groupby("epoch")["train_loss"].max()
    state = run.load_checkpoint()
    last_is_best = all(torch.equal(value, state["best"][name]) for name, value in state["model"].items())
    assert last_is_best == (worst.idxmin() == 8)
    game = _set_up(config, data.load(small_npz), torch.device("cpu"))
    game.model.load_state_dict(state["best"])
    assert (predict(game)[1] == run.predictions["prediction"]).all()
    assert run.test_accuracy.to_numpy() == pytest.approx(run.wide("test_accuracy").loc[worst.idxmin()].to_numpy())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GGF(5, alpha=1.5, w_min=0.1), "alpha=1.5 is not allowed"),
        (lambda: GGF(5, alpha=0.9, w_min=-0.1), "w_min=-0.1"),
        (lambda: GGF(5, 0.9, 0.1, frequency=0), "frequency=0"),
        (lambda: GGF(5, 0.9, 0.1, rank_by="name"), "unknown ranking"),
        (lambda: TCE(5, gamma=2), "gamma=2"),
        (lambda: APStar(5, alpha=-1), "alpha=-1"),
        (lambda: CLAM(5, ratio=0.5), "ratio"),
        (lambda: CLAM(5, ratio=2, u_min=0.1), "without u_min"),
        (lambda: CLAM(5, ratio=2, projection="clip"), "goes with projection"),
        (lambda: CLAM(5, start_epoch=-1), "start_epoch=-1"),
    ],
)
def test_bad_settings(build, message):
    with pytest.raises(ClamkitError, match=message):
        build()


# ------------------------------------------------------------------------------------------ protocols and accuracies


@pytest.mark.parametrize("accuracy_from", ["epoch", "pass", "clean"])
def test_what_the_min_player_looks_at(accuracy_from, small_npz):
    config = RunConfig(dataset=str(small_npz), epochs=8, batch_size=20, accuracy_from=accuracy_from)
    run = train(config)
    seen = run.wide("train_accuracy")
    assert seen.notna().all().all()
    w = np.full(3, 1 / 3)
    for epoch in range(1, 8):
        assert run.wide("weight").loc[epoch].to_numpy() / 3 == pytest.approx(w, abs=1e-9)
        w = np.array(clam_reference(w, seen.loc[epoch], None, None, 1 / 6))


def test_clean_accuracy_is_that_of_the_network_on_the_training_images(small_npz):
    config = RunConfig(dataset=str(small_npz), epochs=2, batch_size=20, accuracy_from="clean")
    run = train(config)
    dataset = data.load(small_npz)
    swapped = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    game = _set_up(config, swapped, torch.device("cpu"))
    game.model.load_state_dict(run.load_checkpoint()["model"])
    expected = class_accuracy(*predict(game), 3)
    assert run.wide("train_accuracy").iloc[-1].to_numpy() == pytest.approx(expected)


def test_released_protocol(small_npz):
    config = RunConfig(dataset=str(small_npz), protocol="released", epochs=2, batch_size=20)
    assert config.chosen("accuracy_from") == "pass"
    assert config.chosen("schedule") == "constant"
    assert RunConfig(protocol="released", accuracy_from="clean").chosen("accuracy_from") == "clean"
    run = train(config)
    x = np.exp(-run.wide("train_accuracy").iloc[0].to_numpy())
    assert run.wide("weight").iloc[1].to_numpy() / 3 == pytest.approx(
        released_reference([1 / 3] * 3, -np.log(x), None, None, 0)
    )
    assert run.folder != RunStore().run(config.model_copy(update={"protocol": "paper"})).folder


def test_released_protocol_repeats_grey_images_to_three_channels():
    config = RunConfig(protocol="released", epochs=1, batch_size=600)
    run = train(config)
    assert run.load_checkpoint()["model"]["0.weight"].shape[1] == 3


def test_jitter_and_vit_train(small_npz):
    run = train(
        RunConfig(dataset=str(small_npz), augmentation="jitter", jitter_strength=0.4, epochs=1, model="tiny_vit")
    )
    assert run.done
    assert run.folder.parent.name == "jitter-0.4"


def test_mixed_precision_trains_close_to_single(small_npz):
    fields = {"dataset": str(small_npz), "epochs": 3, "batch_size": 20, "method": "clam_kl"}
    single, mixed = train(RunConfig(**fields)), train(RunConfig(**fields, amp=True))
    assert mixed.folder != single.folder
    assert mixed.load_checkpoint()["model"]["0.weight"].dtype == torch.float32
    gap = mixed.wide("train_loss").iloc[0] - single.wide("train_loss").iloc[0]
    assert 0 < gap.abs().max() < 0.05, "bfloat16 was used, and changes little in the first epoch"
