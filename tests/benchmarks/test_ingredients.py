"""Leaving one ingredient of the fast recipe out leaves the others in."""

import pytest
import torch

import ingredients
from clamkit.data.datasets import load_data
from clamkit.engine.loop import set_up
from clamkit.engine.models import build_model

WHOLE = {"lookahead": True, "bias rate": [1, 64.0], "first layer learns": False, "identity": True}


def test_one_ingredient_is_left_out_at_a_time(monkeypatch, tmp_path):
    data = load_data("fashion_mnist_mini", per_class=20)
    states = {}
    monkeypatch.setattr(
        ingredients, "train", lambda config, runs: states.update({runs.name: set_up(config, data, torch.device("cpu"))})
    )
    for what in ingredients.LEFT_OUT:
        ingredients.trained(what, "fashion_mnist", None, 0, tmp_path)
    found = {}
    for name, state in states.items():
        conv = state.model.groups[0].weight.detach()
        middle = torch.zeros(*conv.shape[1:])
        middle[0, 1, 1] = 1
        found[name] = {
            "lookahead": state.average is not None,
            "bias rate": [group.get("multiple", 1) for group in state.optimizer.param_groups],
            "first layer learns": state.model.patches.weight.requires_grad,
            "identity": torch.equal(conv[0], middle),
        }
    assert found == {
        "the_recipe": WHOLE,
        "no_lookahead": WHOLE | {"lookahead": False},
        "biases_learn_no_faster": WHOLE | {"bias rate": [1]},
        "a_first_layer_that_learns": WHOLE | {"first layer learns": True},
        "convolutions_begin_at_random": WHOLE | {"identity": False},
    }
    assert not build_model("fastnet_small", 10, 1, image_size=28).patches.weight.requires_grad, "put back"


@pytest.mark.slow
def test_held_out_accuracies_are_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ingredients, "LEFT_OUT", dict(list(ingredients.LEFT_OUT.items())[:2]))
    found = ingredients.main(["--dataset", "fashion_mnist_mini", "--epochs", "1", "--runs", str(tmp_path)])
    assert [len(values) for values in found] == [1, 1]
    assert all(10 <= value < 100 for values in found for value in values)
    assert capsys.readouterr().out.splitlines() == [f"{what}: {values[0]:.2f} %" for what, values in found.items()]
