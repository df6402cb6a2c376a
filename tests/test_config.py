import pytest

from clamkit.config import RunConfig
from clamkit.errors import ClamkitError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metod": "clam"}, "unknown setting 'metod'. Did you mean 'method'"),
        ({"method": "clamm"}, "unknown method 'clamm'. Did you mean 'clam'"),
        ({"model": "resnet19"}, "unknown model 'resnet19'"),
        ({"tau": -0.1}, "tau=-0.1 is not allowed: it must be greater than or equal to 0"),
        ({"crop_lower_bound": 0}, "crop_lower_bound=0 is not allowed"),
        ({"crop_lower_bound": 1.2}, "crop_lower_bound=1.2 is not allowed: it must be less than or equal to 1"),
        ({"epochs": 0}, "epochs=0 is not allowed"),
        ({"epochs": "many"}, "epochs='many' is not allowed"),
        ({"schedule": "cosine"}, "schedule='cosine' is not allowed: it must be 'onecycle'"),
        ({"seed": 1.5}, "seed=1.5 is not allowed"),
    ],
)
def test_bad_fields(fields, message):
    with pytest.raises(ClamkitError, match=message):
        RunConfig(**fields)


def test_folder_and_identity():
    config = RunConfig(method="clam", crop_lower_bound=0.3, seed=4)
    assert str(config.folder()).startswith("fashion_mnist_mini/clam/crop-0.3/seed4-")
    assert RunConfig(seed=4).folder() == config.folder(), "a default given is a default"
    assert RunConfig(seed=4, data_dir="elsewhere").hash() == config.hash(), "where the data lies is not what the run is"
    assert RunConfig(seed=4, epochs=3).hash() != config.hash()
    assert RunConfig(seed=4, tau=0.5).hash() != config.hash()
    assert RunConfig(method="normal", tau=0.5).hash() == RunConfig(method="normal").hash(), "normal has no tau"
    assert RunConfig(dataset="some/where/mine.npz").folder().parts[0] == "mine"


def test_frozen():
    with pytest.raises(Exception, match="frozen"):
        RunConfig().seed = 3


def test_from_notebook_takes_fields_options_and_refuses_unknown_injected_names():
    parameters = 'method = "clam"\nseed = 0\nruns = None\noptions = {}'
    namespace = {"In": ["", parameters], "method": "normal", "seed": 2, "options": {"batch_size": 64}, "other": 1}
    assert RunConfig.from_notebook(namespace) == RunConfig(method="normal", seed=2, batch_size=64)
    namespace["In"] = ["", parameters, "# Parameters\nseed = 2\n"]
    assert RunConfig.from_notebook(namespace).seed == 2
    namespace["In"] = ["", parameters, '# Parameters\nsed = 2\nmethod = "normal"\n']
    with pytest.raises(ClamkitError, match="unknown notebook parameter 'sed'. Did you mean 'seed'"):
        RunConfig.from_notebook(namespace)
    namespace |= {"In": ["", parameters], "options": {"bach_size": 64}}
    with pytest.raises(ClamkitError, match="unknown setting 'bach_size'"):
        RunConfig.from_notebook(namespace)


def test_scale_of_a_notebook():
    namespace = {"method": "ggf", "epochs": 4, "dataset": "generated-10", "scale": "paper", "options": {"lr": 0.05}}
    config = RunConfig.from_notebook(namespace, paper_dataset="cifar10")
    assert (config.dataset, config.epochs, config.model, config.image_size) == ("cifar10", 100, "resnet50", 224)
    assert (config.method, config.lr) == ("ggf", 0.05)
    assert RunConfig.from_notebook(namespace | {"scale": "small"}, paper_dataset="cifar10").epochs == 4
    with pytest.raises(ClamkitError, match="unknown scale 'huge'"):
        RunConfig.from_notebook(namespace | {"scale": "huge"})
