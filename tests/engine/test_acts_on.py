"""What the weights act on: the loss of a class, or how often it is drawn."""

import numpy as np
import pytest
import torch
from PIL import Image

from clamkit.engine.config import RunConfig
from clamkit.engine.loop import load_config_data, set_up, train, train_epoch
from clamkit.errors import ClamkitError
from clamkit.methods.specs import METHODS, Method
from clamkit.methods.weighters import Uniform


@pytest.mark.parametrize("accuracy_from", ["epoch", "pass"])
@pytest.mark.parametrize("fields", [{"method": "normal"}, {"method": "clam", "tau": 0.0}, {"method": "focal"}])
def test_equal_weights_give_the_bits_of_a_plain_run(config, fields, accuracy_from, same_bits):
    config = config.model_copy(update=fields | {"accuracy_from": accuracy_from, "epochs": 2})
    sampled = train(config.model_copy(update={"acts_on": "sampling"}))
    plain = train(config)
    assert sampled.folder != plain.folder
    same_bits(sampled, plain)


def test_a_stopped_run_goes_on_with_the_same_bits(config, interrupted, tmp_path, same_bits):
    config = config.model_copy(update={"acts_on": "sampling", "tau": 3.0, "lr": 0.01})
    interrupted(config, 2)
    whole = train(config, runs=tmp_path / "whole")
    assert np.ptp(whole.wide("weight").loc[3]) > 0.1, "the weights moved before it stopped"
    same_bits(train(config), whole)
    assert not whole.history.equals(train(config.model_copy(update={"acts_on": "loss"})).history)


@pytest.mark.slow
def test_image_files_resume_with_the_same_bits(small_npz, interrupted, tmp_path, same_bits):
    with np.load(small_npz) as content:
        for part in ("train", "test"):
            for i, (image, label) in enumerate(zip(content[f"x_{part}"], content[f"y_{part}"], strict=True)):
                path = tmp_path / "files" / part / str(label) / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(path)
    fields = {
        "dataset": "imagenet",
        "data_dir": str(tmp_path / "files"),
        "image_size": 12,
        "batch_size": 20,
        "lr": 0.01,
    }
    config = RunConfig(**fields, epochs=4, tau=4.0, acts_on="sampling")
    interrupted(config, 2)
    whole = train(config, runs=tmp_path / "whole")
    assert np.ptp(whole.wide("weight").loc[3]) > 0.1
    same_bits(train(config), whole)


class Tilted(Uniform):
    """Weights 2, ½, ½ from the second epoch on; keeps what was seen in each epoch."""

    seen_before: list  # of the class, so that the test finds it

    def update(self, w, v, losses, share):
        self.seen_before.append(self.totals()[1].tolist())
        return np.array([4, 1, 1]) / 6


@pytest.mark.parametrize(
    ("fields", "seen"),
    [({}, [40, 10, 10]), ({"accuracy_from": "pass"}, [20] * 3), ({"accuracy_from": "clean"}, [20] * 3)],
)
def test_what_is_seen_in_an_epoch(config, monkeypatch, fields, seen):
    monkeypatch.setitem(METHODS, "tilted", Method("Tilted", "#000000", "o", "For this test.", weighter=Tilted))
    monkeypatch.setattr(Tilted, "seen_before", [], raising=False)
    run = train(config.model_copy(update={"method": "tilted", "acts_on": "sampling", "epochs": 3} | fields))
    assert run.wide("weight").loc[2].to_numpy() == pytest.approx([2, 0.5, 0.5])
    assert Tilted.seen_before == [[20, 20, 20], seen, seen]


def test_the_loss_is_plain(config):
    state = set_up(config.model_copy(update={"acts_on": "sampling"}), load_config_data(config), torch.device("cpu"))
    state.weighter.weights.copy_(torch.tensor([2.0, 0.5, 0.5]))
    x, y = state.dataset.x_train, state.dataset.y_train
    batches = list(state.batches.training(x, y, 16, torch.Generator().manual_seed(0), state.weighter.weights))
    losses = train_epoch(state, batches, [0.0] * 4)
    state.model.train()
    for loss, (images, labels) in zip(losses, batches, strict=True):
        assert loss.item() == pytest.approx(
            torch.nn.functional.cross_entropy(state.model(images), labels).item(), rel=1e-5
        )


def test_what_it_may_be():
    with pytest.raises(ClamkitError, match="acts_on='crops' is not allowed: it must be 'loss' or 'sampling'"):
        RunConfig(acts_on="crops")
    assert RunConfig(acts_on="loss").hash() == RunConfig().hash()
