"""What a run is: bad fields raise with a sentence; names and hashes of older runs stay what they were."""

import json

import pytest

from clamkit.engine.config import RunConfig
from clamkit.engine.store import RunFolder
from clamkit.errors import ClamkitError
from clamkit.methods.specs import METHODS

# config.json as the first edition wrote it, in the folder fashion_mnist_mini/clam/crop-0.3/seed0-a57ab39fae
FIRST_EDITION = """{
  "dataset": "fashion_mnist_mini",
  "data_dir": null,
  "skip_bad_images": false,
  "per_class": null,
  "method": "clam",
  "protocol": "paper",
  "accuracy_from": null,
  "tau": 1.0,
  "u_min": null,
  "ratio": null,
  "projection": null,
  "start_epoch": null,
  "gamma": null,
  "theta": null,
  "alpha": null,
  "w_min": null,
  "frequency": null,
  "rank_by": null,
  "augmentation": "crop",
  "crop_lower_bound": 0.3,
  "jitter_strength": 0.3,
  "flip": true,
  "model": "tiny_resnet",
  "stem": "small",
  "image_size": null,
  "epochs": 12,
  "batch_size": 128,
  "lr": 0.1,
  "momentum": 0.9,
  "weight_decay": 0.0005,
  "schedule": null,
  "label_smoothing": 0.0,
  "amp": false,
  "compile": false,
  "seed": 0
}
"""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metod": "clam"}, "unknown setting 'metod'. Did you mean 'method'"),
        ({"method": "clamm"}, "unknown method 'clamm'. Did you mean 'clam'"),
        ({"model": "resnet19"}, "unknown model 'resnet19'"),
        ({"tau": -0.1}, "tau=-0.1 is not allowed: it must be greater than or equal to 0"),
        ({"crop_lower_bound": 0}, "crop_lower_bound=0 is not allowed"),
        ({"mirror_test": True, "flip": False}, "mirror_test=True goes with flip=True"),
        ({"crop_lower_bound": 1.2}, "crop_lower_bound=1.2 is not allowed: it must be less than or equal to 1"),
        ({"epochs": 0}, "epochs=0 is not allowed"),
        ({"epochs": "many"}, "epochs='many' is not allowed: it must be a valid integer.$"),
        ({"lr": float("inf")}, "lr=inf is not allowed: it must be a finite number"),
        ({"amp": "maybe"}, "^amp='maybe' is not allowed: it must be a valid boolean or 'auto'.$"),
        ({"schedule": "cosine"}, "schedule='cosine' is not allowed: it must be 'onecycle'"),
        ({"seed": 1.5}, "seed=1.5 is not allowed"),
        ({"holdout": -1}, "holdout=-1 is not allowed: it must be greater than or equal to 0"),
        ({"accuracy_from": "holdout"}, "accuracy_from='holdout' needs held-out images: give holdout="),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(ClamkitError, match=message):
        RunConfig(**fields)


def test_all_bad_fields_are_named_at_once():
    with pytest.raises(ClamkitError) as caught:
        RunConfig(seed=-1, lr=0)
    assert "seed=-1" in str(caught.value)
    assert "lr=0" in str(caught.value)


def test_folder_and_identity():
    config = RunConfig(method="clam", crop_lower_bound=0.3, seed=4)
    assert str(config.folder()).startswith("fashion_mnist_mini/clam/crop-0.3/seed4-")
    assert RunConfig(seed=4).folder() == config.folder(), "a default given is a default"
    assert RunConfig(seed=4, data_dir="elsewhere").hash() == config.hash(), "where the data lies is not what the run is"
    assert RunConfig(seed=4, holdout=0).hash() == config.hash()
    assert RunConfig(seed=4, holdout=9).hash() != config.hash()
    assert RunConfig(seed=4, epochs=3).hash() != config.hash()
    assert RunConfig(seed=4, tau=0.5).hash() != config.hash()
    assert RunConfig(method="normal", tau=0.5).hash() == RunConfig(method="normal").hash(), "normal has no tau"
    assert RunConfig(dataset="some/where/mine.npz").folder().parts[0] == "mine"
    jitter = RunConfig(augmentation="jitter", jitter_strength=0.2, crop_lower_bound=0.5)
    assert jitter.folder().parts[2] == "jitter-0.2"
    assert jitter.hash() == RunConfig(augmentation="jitter", jitter_strength=0.2).hash(), "nothing is cropped"


def test_frozen():
    with pytest.raises(Exception, match="frozen"):
        RunConfig().seed = 3


def test_a_config_of_the_first_edition_reads_and_keeps_its_name(tmp_path):
    config = RunConfig(**json.loads(FIRST_EDITION))
    assert config == RunConfig(epochs=12)
    assert config.folder().as_posix() == "fashion_mnist_mini/clam/crop-0.3/seed0-a57ab39fae"
    folder = tmp_path / config.folder()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(FIRST_EDITION)
    run = RunFolder(folder)
    assert run.config == config
    assert run.state == "stopped"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"method": "clam", "crop_lower_bound": 0.6}, "clam/crop-0.6/seed0-b046feeef7"),
        ({"method": "clam", "crop_lower_bound": 1.0}, "clam/crop-1/seed0-1998123ce9"),
        ({"method": "clam_kl", "crop_lower_bound": 0.3}, "clam_kl/crop-0.3/seed0-c3d86da5d1"),
        ({"method": "normal", "crop_lower_bound": 0.3}, "normal/crop-0.3/seed0-3529201da7"),
        ({"method": "normal", "crop_lower_bound": 1}, "normal/crop-1/seed0-3c343e7259"),
    ],
)
def test_names_of_the_first_editions_runs(fields, name):
    """Folders on people's disks: another hash would train all of them again."""
    assert RunConfig(epochs=12, **fields).folder().as_posix() == f"fashion_mnist_mini/{name}"


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_of_a_method_is_a_field(method):
    assert set(RunConfig(method=method).method_settings()) == set(METHODS[method].settings)


def test_protocols_fill_what_was_not_given():
    paper, released = RunConfig(), RunConfig(protocol="released")
    assert (paper.chosen("accuracy_from"), paper.chosen("schedule")) == ("epoch", "onecycle")
    assert (released.chosen("accuracy_from"), released.chosen("schedule")) == ("pass", "constant")
    assert RunConfig(protocol="released", schedule="onecycle").chosen("schedule") == "onecycle"
