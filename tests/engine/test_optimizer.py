"""How the max player learns: groups of parameters, rates, averaged weights, each against a plain reference."""

import pytest
import torch
from torch import nn

from clamkit.engine.config import RunConfig
from clamkit.engine.models import build_model
from clamkit.engine.optimizer import Lookahead, build_optimizer, learning_rate, set_rate


def test_learning_rate_is_torchs_one_cycle():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, total_steps=50, cycle_momentum=False, final_div_factor=1e5
    )
    for step in range(50):
        assert learning_rate("onecycle", step, 50) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        schedule.step() if step < 49 else None
    assert learning_rate("constant", 35, 50) == 1.0


def test_the_triangle_rises_and_falls_in_straight_lines():
    rates = [learning_rate("triangle", step, 100) for step in range(101)]
    assert (rates[0], rates[23], rates[100]) == pytest.approx((0.2, 1.0, 0.0))
    assert max(rates) == rates[23]
    assert torch.tensor(rates[:24]).diff().diff().abs().max() < 1e-6
    assert torch.tensor(rates[23:]).diff().diff().abs().max() < 1e-6


def test_what_does_not_learn_is_left_out():
    model = build_model("fastnet_small", 10, 1, image_size=28)
    (group,) = build_optimizer(model, RunConfig()).param_groups
    assert not any(p is model.patches.weight for p in group["params"])
    assert sum(p.numel() for p in group["params"]) < sum(p.numel() for p in model.parameters())


def test_biases_learn_at_a_rate_of_their_own_and_decay_alike():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = build_optimizer(model, RunConfig(lr=0.5, bias_lr=64, weight_decay=1e-3))
    set_rate(optimizer, 0.25)
    matrices, vectors = optimizer.param_groups
    assert [p.ndim for p in matrices["params"]] == [2]
    assert [p.ndim for p in vectors["params"]] == [1, 1, 1]
    assert (matrices["lr"], vectors["lr"]) == (0.25, 16)
    assert matrices["lr"] * matrices["weight_decay"] == pytest.approx(vectors["lr"] * vectors["weight_decay"])


def test_one_rate_is_one_group():
    """As ever: checkpoints from before biases had a rate can be resumed."""
    model = nn.Linear(3, 2)
    (group,) = build_optimizer(model, RunConfig()).param_groups
    assert len(group["params"]) == 2
    assert "multiple" not in group


def test_lookahead_by_hand():
    """A weight that is set to its step's number: the mean of steps 5, 10, … with the shares kept that the docs give."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Lookahead(model, decay=0.9, steps=20)
    slow = 0.0
    for step in range(1, 21):
        model.weight.data.fill_(float(step))
        average.step()
        if step % 5 == 0:
            kept = 0.9**5 * (step / 20) ** 3
            slow = kept * slow + (1 - kept) * step
            assert model.weight.item() == pytest.approx(slow, rel=1e-6)
        else:
            assert model.weight.item() == step


def test_lookahead_goes_on_where_it_was():
    whole, first, second = (nn.Linear(4, 3) for _ in range(3))
    for model in (first, second):
        model.load_state_dict(whole.state_dict())
    averages = [Lookahead(model, 0.95, 12) for model in (whole, first, second)]
    moves = torch.randn(12, 3, 4, generator=torch.Generator().manual_seed(0))

    def play(model, average, part):
        for move in part:
            model.weight.data += move
            average.step()

    play(whole, averages[0], moves)
    play(first, averages[1], moves[:7])
    second.load_state_dict(first.state_dict())
    averages[2].load_state_dict(averages[1].state_dict())
    play(second, averages[2], moves[7:])
    assert torch.equal(whole.weight, second.weight)
