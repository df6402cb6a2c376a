"""Class biases on finished runs: against logits worked by hand, and as one more method of tables and figures."""

import numpy as np
import pytest

from clamkit import plots
from clamkit.engine.config import RunConfig
from clamkit.engine.store import Logits, as_frame
from clamkit.errors import ClamkitError
from clamkit.lab import tables
from clamkit.lab.controls import with_biases
from clamkit.lab.selection import select
from clamkit.methods.posthoc import fit_biases
from clamkit.methods.specs import METHODS
from clamkit.metrics import compare_groups, fairness


@pytest.fixture
def held_down(memory_run):
    """held_down(seed, **fields): a run of two epochs whose network gives class 2 a logit that is 1.5 too small."""

    def make(seed=0, **fields):
        rng = np.random.default_rng(seed)
        label = np.repeat(np.arange(3), 400)
        test, held = (rng.normal(size=(1200, 3)) + 2 * np.eye(3)[label] - [0, 0, 1.5] for _ in range(2))
        accuracy = [(test.argmax(1) == label)[label == k].mean() for k in range(3)]
        config = {"method": "normal", "holdout": 400, "seed": seed} | fields
        run = memory_run([[0.4] * 3, accuracy], held_out=accuracy, **config)
        logits = Logits(test.astype(np.float16), label, held.astype(np.float16), label)
        run.__class__ = type("Noisy", (type(run),), {"logits": property(lambda self: logits)})
        return run

    return make


@pytest.mark.parametrize(("method", "objective"), [("normal", "worst-tail"), ("clam_kl", "average-std")])
def test_accuracies_are_those_of_test_logits_with_biases_of_held_out_ones(held_down, method, objective):
    run = held_down(method=method)
    biased = with_biases(run, objective)
    biases = fit_biases(run.logits.holdout, run.logits.holdout_labels, objective=objective)
    assert np.array_equal(biased.biases.values, biases.values)
    predicted = (run.logits.test.astype(np.float32) + biases.values.astype(np.float32)).argmax(1)
    right = [(predicted == run.logits.test_labels)[run.logits.test_labels == k].mean() for k in range(3)]
    assert biased.test_accuracy.to_numpy() == pytest.approx(right)
    assert biased.test_accuracy.min() > run.test_accuracy.min() + 0.15
    assert biased.summary["worst"] == fairness(right)["worst"]
    assert biased.summary["class_names"] == run.class_names
    assert biased.wide("test_accuracy").iloc[-1].to_numpy() == pytest.approx(right)
    assert biased.wide("test_accuracy").iloc[0].tolist() == [0.4] * 3, "earlier epochs are as they were"
    assert run.wide("test_accuracy").iloc[-1].tolist() == run.test_accuracy.tolist(), "and so is the run"


def test_it_is_one_more_method(held_down):
    runs = [held_down(seed) for seed in range(3)]
    runs += [with_biases(run) for run in runs]
    frame = as_frame(runs)
    assert frame["method"].tolist() == ["normal"] * 3 + ["normal+biases"] * 3
    assert len({run.name for run in runs}) == 6
    assert list(tables.spread_table(frame).index) == ["Normal", "Normal + biases"]
    assert tables.comparison(frame)["method"].tolist() == ["Normal", "Normal + biases"]
    assert len(tables.common_settings(runs)) == 6
    assert len(tables.final_classes(runs)) == 18
    compared = compare_groups(frame, "normal+biases", "normal", ["worst"])
    assert compared.loc["worst", "mean_difference"] > 0.15
    figure = plots.fairness_over_strength(frame)
    assert [text.get_text() for text in figure.legends[0].texts] == ["Normal", "Normal + biases"]


def test_its_look_is_found_where_every_look_is():
    normal, biased = METHODS["normal"], METHODS["normal+biases"]
    assert plots.label("clam_kl+biases") == "CLAM, KL + biases"
    assert (normal.colour, biased.colour) == ("#4d4d4d", "#a6a6a6"), "half of the way to white"
    own = {method.marker for method in METHODS.values()}
    assert not own & {biased.marker, METHODS["normal+tail_biases"].marker}
    assert biased.marker != METHODS["normal+tail_biases"].marker
    assert plots.label("normal+tail_biases") == "Normal + tail biases"
    assert "normal+biases" not in METHODS
    with pytest.raises(ClamkitError, match=r"unknown method 'normal\+biases'"):
        RunConfig(method="normal+biases")
    for name in ("nomal", "nomal+biases", "+biases", "normal+", "normal+bias", "normal+biases+biases"):
        with pytest.raises(ClamkitError, match="unknown method .*Allowed: .*clam"):
            METHODS[name]


def test_what_is_refused(held_down, memory_run):
    with pytest.raises(ClamkitError, match="unknown objective 'worst'. Did you mean 'worst-tail'"):
        with_biases(held_down(), "worst")
    with pytest.raises(ClamkitError, match="normal/crop-0.3/seed0-.* has no held-out images to fit biases on"):
        with_biases(memory_run([0.5, 0.6], method="normal"))
    with pytest.raises(ClamkitError, match="committed results carry no logits"):
        with_biases(memory_run([0.5, 0.6], method="normal", holdout=9))
    biased = [with_biases(held_down(method="clam_kl", tau=tau)) for tau in (0.1, 1.0)]
    with pytest.raises(ClamkitError, match="fitted on its held-out images: what it says of these is no measure of it"):
        select(biased)
