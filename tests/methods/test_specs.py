"""The table of methods: its values against the paper's appendix, its names, and what drives training from it."""

import re
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from matplotlib.markers import MarkerStyle

from clamkit import METHODS, RunConfig
from clamkit.errors import ClamkitError
from clamkit.methods import losses, peers, weighters
from clamkit.methods.specs import PAPER_CLASSES, paper_dataset_like
from clamkit.methods.weighters import build_method

FIVE = ["cifar10", "cifar100", "fashion_mnist", "mini_imagenet", "imagenet"]


def hyperparameter_table(source: Path) -> list[list[str]]:
    """The cells of the appendix's table of hyperparameters, row by row."""
    text = source.read_text(encoding="utf-8")
    bodies = re.findall(r"(?s)\\begin\{tabular\}(.*?)\\end\{tabular\}", text)
    tabular = next(body for body in bodies if "Focal Loss" in body)
    tabular = re.sub(r"\\makecell\{([^{}]*)\}", lambda m: m[1].replace(r"\\", " "), tabular)
    tabular = re.sub(r"\\textbf\{([^{}]*)\}", r"\1", tabular)
    return [[cell.strip() for cell in row.split("&")] for row in tabular.split(r"\\")]


def test_values_are_those_of_the_appendix(source):
    names = {r"$\gamma$": "gamma", r"$\theta$": "theta", r"$\alpha$": "alpha", r"$w_{\min}$": "w_min"}
    names["$f$"] = "frequency"
    checked = 0
    for head, *row in hyperparameter_table(source):
        head = head.split("\n")[-1].strip()
        if head.endswith("Loss"):
            method = head.split()[0].lower()
        elif head in names:
            for dataset, value in zip(FIVE, row, strict=True):
                assert METHODS[method].values(dataset)[names[head]] == float(value), (method, dataset, head)
                checked += 1
    assert checked == 7 * 5


def test_values_of_clam():
    for method in ("clam", "clam_kl", "clam_clip"):
        assert METHODS[method].values("imagenet") == {"tau": 1.0, "start_epoch": 0}
    assert build_method("clam", "imagenet", 1000).u_min == 0.5 / 1000, "u_min is 1/(2n) where none is given"
    assert METHODS["normal"].values("cifar10") == {}


def test_released_code_has_other_values():
    def released(method, dataset):
        return METHODS[method].values(dataset, protocol="released")

    assert released("pw", "cifar10") == {"gamma": 2.0, "theta": 0.8}
    own = {"alpha": 0.95, "w_min": 0.1, "frequency": 1, "rank_by": "loss"}
    assert released("ggf", "fashion_mnist") == own
    assert released("ggf", "cifar10") == METHODS["ggf"].values("cifar10") | {"rank_by": "loss"}
    assert released("clam", "mini_imagenet")["start_epoch"] == 50
    assert released("clam_released", "imagenet")["start_epoch"] == 30
    assert released("clam", "cifar10") == {"tau": 1.0, "start_epoch": 0, "projection": "released"}
    assert "projection" not in released("clam_kl", "cifar10")


def test_values_are_copies():
    METHODS["ggf"].values("cifar10")["alpha"] = 0
    METHODS["clam"].values("cifar10")["tau"] = 0
    assert METHODS["ggf"].values("cifar10")["alpha"] == 0.9
    assert METHODS["clam_kl"].values("cifar10")["tau"] == 1


@pytest.mark.parametrize(
    ("dataset", "num_classes", "like"),
    [
        ("cifar100", 10, "cifar100"),
        ("fashion_mnist_mini", None, "fashion_mnist"),
        ("inaturalist2018", 8142, "imagenet"),
        ("imagenet_real", None, "imagenet"),
        ("my/photos", None, "cifar10"),
        (None, 31, "cifar10"),
        ("my/photos", 32, "cifar100"),
        ("my/photos", 316, "cifar100"),
        ("my/photos", 317, "imagenet"),
    ],
)
def test_other_data_take_the_settings_of_the_nearest(dataset, num_classes, like):
    assert paper_dataset_like(dataset, num_classes) == like
    assert METHODS["ggf"].values(dataset, num_classes) == METHODS["ggf"].values(like)


def test_built_methods_have_the_settings():
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


def test_settings_given_win_and_none_means_the_papers():
    assert build_method("tce", "cifar10", 10, gamma=0.2).gamma == 0.2
    assert build_method("tce", "cifar10", 10, gamma=None).gamma == 0.5
    assert build_method("clam", "imagenet", 1000, protocol="released", start_epoch=0).start_epoch == 0


def test_unknown_names_are_refused():
    with pytest.raises(ClamkitError, match=r"unknown method 'focla'. Did you mean 'focal'"):
        METHODS["focla"]
    with pytest.raises(ClamkitError, match=r"unknown method 'clamm'. Did you mean 'clam'"):
        build_method("clamm", None, 10)
    with pytest.raises(ClamkitError, match="unknown protocol 'release'"):
        METHODS["focal"].values("cifar10", protocol="release")
    with pytest.raises(ClamkitError, match="unknown setting of method 'normal' 'tau'"):
        build_method("normal", None, 10, tau=1.0)


# the table itself


def test_no_two_methods_look_alike():
    for field in ("label", "colour", "marker", "about"):
        values = [getattr(method, field) for method in METHODS.values()]
        assert len(set(values)) == len(values), field
    for method in METHODS.values():
        to_rgb(method.colour)
        assert MarkerStyle(method.marker).is_filled(), "seaborn mixes no others with them"
        assert method.about.endswith(".")


@pytest.mark.parametrize("name", METHODS)
def test_every_entry_is_whole(name):
    method = METHODS[name]
    assert set(method.settings) <= set(RunConfig.model_fields)
    assert not set(method.settings) & set(method.fixed)
    assert set(method.by_dataset) <= set(PAPER_CLASSES)
    assert set(method.released) <= {None, *PAPER_CLASSES}
    for values in (*method.by_dataset.values(), *method.released.values()):
        assert set(values) <= set(method.settings)
    home, _, attribute = method.weighter.rpartition(".")
    build = getattr(peers if home == "peers" else weighters, attribute)
    assert isinstance(build(3, **_needed(name)), weighters.Weighter)
    assert method.loss is None or callable(getattr(losses, method.loss))
    assert method.every in ("epoch", "batch", "never")
    assert method.acts_on in ("loss", "sampling", "logits", "nothing")


NEEDED = {"fixed": {"class_weights": (3.0, 2.0, 1.0)}}  # settings without which a method cannot be


def _needed(name: str) -> dict:
    method = METHODS[name]
    sizes = {"sizes": [60, 30, 10]} if method.needs_sizes else {}
    return {} if method.loss else method.values("cifar10") | method.fixed | sizes | NEEDED.get(name, {})


@pytest.mark.parametrize("name", METHODS)
def test_a_config_passes_every_setting_and_only_those(name):
    config = RunConfig(method=name, **NEEDED.get(name, {}))
    assert set(config.method_settings()) == set(METHODS[name].settings)
    build_method(name, config.dataset, 3, sizes=[60, 30, 10], **config.method_settings())
