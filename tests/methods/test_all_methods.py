"""Every method of the table: it builds, moves by its reference, trains, and goes on to the same bits."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from clamkit import METHODS, RunConfig, load_data, train
from clamkit.engine.loop import predict, set_up
from clamkit.methods.weighters import build_method
from tests.theory import references

QUICK = ("clam", "apstar_mmpf")  # these two also without the marker `slow`: one set of rules, one with a memory
WITH_WEIGHTS = [name for name, method in METHODS.items() if method.every == "epoch"]
NEEDED = {"fixed": {"class_weights": [3.0, 2.0, 1.0]}}  # settings without which a method cannot be


def built(name, dataset, n):
    settings = {"class_weights": np.linspace(2, 1, n).tolist()} if name == "fixed" else {}
    return build_method(name, dataset, n, sizes=np.full(n, 60), **settings)


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_trains_and_resumes_with_the_same_bits(method, small_npz, tmp_path):
    config = RunConfig(dataset=str(small_npz), method=method, epochs=3, batch_size=20, **NEEDED.get(method, {}))
    whole = train(config, runs=tmp_path / "whole")

    def stop(history, class_names):
        if len(history) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, runs=tmp_path / "broken", watch=stop)
    broken = train(config, runs=tmp_path / "broken")
    pd.testing.assert_frame_equal(whole.history, broken.history, check_exact=True)
    pd.testing.assert_frame_equal(whole.predictions, broken.predictions)
    assert whole.wide("weight").sum(axis=1).to_numpy() == pytest.approx(3)


@pytest.mark.parametrize("name", METHODS)
def test_builds_and_steps(name):
    weighter = built(name, "fashion_mnist_mini", 10)
    before = weighter.weights.clone()
    weighter.step(accuracy=np.linspace(0, 1, 10), loss=np.linspace(3, 0, 10))
    assert weighter.weights.sum().item() == pytest.approx(10)
    moved = not torch.allclose(weighter.weights, before, rtol=1e-12)
    assert moved == (name in WITH_WEIGHTS)
    assert weighter.weights[0] >= weighter.weights[-1], "the worst class has no less weight than the best"


# on CIFAR-10, where the paper has α = .9, w_min = .1, f = 1 for GGF; everything else is the same on all datasets


def apstar(w, v, losses, state):
    state["K"] = 1 if max(losses) < state.get("best", math.inf) else state["K"] + 1
    state["best"] = min(max(losses), state.get("best", math.inf))
    return references.star_adapted(w, losses, 0.5, state["K"])


def mmpf(w, v, losses, state):
    k = state.get("K", 1)
    if max(losses) < state.get("best", math.inf):
        state["best"] = max(losses)
        k = min(k, 20)
    state["K"] = k + 1
    return references.star_original(w, losses, 0.5, k, state["best"])


FLOOR = 0.5 / 10
REFERENCES = {
    "clam": lambda w, v, losses, state: references.clam(w, v, FLOOR),
    "clam_kl": lambda w, v, losses, state: references.clam(w, v, FLOOR, projection="kl"),
    "clam_clip": lambda w, v, losses, state: references.clam(w, v, FLOOR, projection="clip"),
    "clam_released": lambda w, v, losses, state: references.clam(w, v, FLOOR, projection="released"),
    "maxmin": lambda w, v, losses, state: references.hedge(w, v),
    "tce": lambda w, v, losses, state: references.tilted(w, losses, 0.5),
    "ggf": lambda w, v, losses, state: references.gini([-accuracy for accuracy in v], 0.9, 0.1),
    "apstar": apstar,
    "apstar_mmpf": mmpf,
    "tla": lambda w, v, losses, state: references.toward_worst(w, v, 0.01),
}


@pytest.mark.parametrize("method", REFERENCES)
def test_25_steps_against_the_reference(method):
    n, rng, state = 10, np.random.default_rng(0), {}
    weighter = built(method, "cifar10", n)
    w = [1 / n] * n
    for _ in range(25):
        v, losses = rng.random(n), 2 * rng.random(n)
        weighter.step(accuracy=v, loss=losses)
        w = REFERENCES[method](w, v, losses, state)
        assert weighter.weights.numpy() / n == pytest.approx(w, abs=1e-9)


def test_every_method_with_weights_has_a_reference():
    assert set(REFERENCES) | {"clam_ratio"} == set(WITH_WEIGHTS)  # clam_ratio: test_weighter_rules


def test_mmpf_returns_to_its_best_network(small_npz):
    config = RunConfig(
        dataset=str(small_npz), method="apstar_mmpf", epochs=8, batch_size=20, lr=0.3, schedule="constant"
    )
    run = train(config)
    worst = run.history.groupby("epoch")["train_loss"].max()
    saved = run.load_checkpoint()
    last_is_best = all(torch.equal(value, saved["best"][name]) for name, value in saved["model"].items())
    assert last_is_best == (worst.idxmin() == 8)
    state = set_up(config, load_data(small_npz), torch.device("cpu"))
    state.model.load_state_dict(saved["best"])
    assert (predict(state)[1] == run.predictions["prediction"]).all()
    assert run.test_accuracy.to_numpy() == pytest.approx(run.wide("test_accuracy").loc[worst.idxmin()].to_numpy())
