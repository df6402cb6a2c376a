"""Choosing a setting: by held-out images alone, worked by hand."""

import pytest
from typer.testing import CliRunner

from clamkit.cli import app
from clamkit.engine.loop import train
from clamkit.errors import ClamkitError
from clamkit.lab import results
from clamkit.lab.grids import Grid
from clamkit.lab.selection import held_out_score, select

EVEN, UNEVEN = [0.7, 0.7, 0.7], [1.0, 0.9, 0.5]  # average − std: 0.7 and 0.8 − 0.265


@pytest.fixture
def candidate(memory_run):
    """candidate(held_out, seed=0, **fields): a run of clam_kl whose test images must not be looked at."""

    def make(held_out, seed=0, **fields):
        run = memory_run([0.5] * 3, held_out=held_out, **{"method": "clam_kl", "holdout": 9, "seed": seed} | fields)

        def forbidden(self):
            raise AssertionError("looked at test images")

        hidden = dict.fromkeys(("test_accuracy", "predictions", "history", "summary"), property(forbidden))
        logits = run.logits._replace(test=None, test_labels=None)
        run.__class__ = type("Blind", (type(run),), hidden | {"logits": property(lambda self: logits)})
        return run

    return make


def chosen(selection):
    return selection.table.loc[selection.table["chosen"], "setting"].tolist()


def test_held_out_images_decide_and_not_test_images(memory_run):
    """On test images τ = 0.1 is the better one by far."""
    settings = {0.1: ([0.9, 0.9, 0.9], UNEVEN), 1.0: ([0.2, 0.4, 0.9], EVEN)}
    runs = [
        memory_run(test, held_out=held_out, method="clam_kl", holdout=9, tau=tau)
        for tau, (test, held_out) in settings.items()
    ]
    assert chosen(select(runs, ["tau"])) == ["tau=1.0"]


def test_test_images_are_never_read(candidate):
    runs = [candidate(UNEVEN, tau=0.1), candidate(EVEN, tau=1.0)]
    with pytest.raises(AssertionError, match="looked at test images"):
        _ = runs[0].test_accuracy
    assert chosen(select(runs)) == ["tau=1.0"]


def test_scores_by_hand(candidate):
    assert held_out_score(candidate(UNEVEN)) == pytest.approx(0.8 - (0.07) ** 0.5)  # variance (.04 + .01 + .09)/2
    assert held_out_score(candidate(UNEVEN), "average") == pytest.approx(0.8)
    assert held_out_score(candidate(UNEVEN), "worst-tail") == pytest.approx(0.5)
    runs = [candidate(UNEVEN, tau=0.1), candidate(EVEN, tau=1.0)]
    assert chosen(select(runs, by="average")) == ["tau=0.1"]
    assert chosen(select(runs, by="worst-tail")) == ["tau=1.0"]


def test_means_over_bounds_and_spread_over_seeds(candidate):
    """τ = 0.1: seed 0 has ½(0.6 + 0.8), seed 1 0.9; mean 0.8, std √0.02. τ = 1: 0.8 everywhere; the first of equals."""
    accuracies = {(0.1, 0, 0.3): 0.6, (0.1, 0, 1.0): 0.8, (0.1, 1, 0.3): 0.9, (0.1, 1, 1.0): 0.9}
    accuracies |= {(1.0, seed, bound): 0.8 for seed in (1, 0) for bound in (0.3, 1.0)}
    runs = [
        candidate([v] * 3, tau=tau, seed=seed, crop_lower_bound=bound) for (tau, seed, bound), v in accuracies.items()
    ]
    found = select(runs, ["tau"])
    assert found.table["score"].tolist() == pytest.approx([0.8, 0.8])
    assert found.table["std"].tolist() == pytest.approx([0.02**0.5, 0])
    assert chosen(found) == ["tau=0.1"]
    assert chosen(select(runs[::-1], ["tau"])) == ["tau=1.0"], "ties go to the earlier one"
    lines = str(found).splitlines()
    assert "80.00 ± 14.14 ← chosen" in lines[1]
    assert lines[2].rstrip().endswith("80.00 ± 0.00")
    assert "largest average-std" in lines[3]
    assert "over 2 seeds" in lines[3]
    assert "Test images were not looked at" in lines[3]


def test_each_method_has_its_own_choice(candidate):
    """τ means nothing to tce and to normal; there is nothing to choose for normal."""
    runs = [candidate(v, tau=tau) for tau, v in ((0.1, EVEN), (1.0, UNEVEN))]
    runs += [candidate(v, method="tce", gamma=gamma, tau=5.0) for gamma, v in ((0.2, UNEVEN), (0.8, EVEN))]
    runs += [candidate(EVEN, method="normal", tau=tau) for tau in (0.1, 1.0)]
    found = select(runs)
    assert found.table["method"].tolist() == ["clam_kl"] * 2 + ["tce"] * 2
    assert chosen(found) == ["tau=0.1", "gamma=0.8"]
    assert set(select(runs, ["tau"]).table["method"]) == {"clam_kl"}
    several = [candidate(EVEN, tau=tau, acts_on=acts) for tau in (0.1, 1.0) for acts in ("loss", "sampling")]
    assert select(several).table["setting"].tolist()[1] == "acts_on=sampling, tau=0.1"
    assert select(several, ["tau"]).table["setting"].tolist() == ["tau=0.1", "tau=1.0"], "the mean over the other"


def test_weights_that_moved_by_the_same_images_are_named(candidate):
    runs = [candidate(EVEN, tau=tau, accuracy_from="holdout") for tau in (0.1, 1.0)]
    assert select(runs).rule.endswith("moved their weights by the same held-out images.")


def test_what_is_refused(candidate, memory_run):
    runs = [candidate(EVEN, tau=tau, seed=seed) for tau in (0.1, 1.0) for seed in (0, 1)]
    with pytest.raises(ClamkitError, match="unknown objective 'std'.*average-std"):
        select(runs, by="std")
    for field in ("taw", "seed", "crop_lower_bound", "method"):
        with pytest.raises(ClamkitError, match=f"unknown field to choose '{field}'"):
            select(runs, [field])
    with pytest.raises(ClamkitError, match="u_min varies within no method of these runs: give it several values"):
        select(runs, ["tau", "u_min"])
    with pytest.raises(ClamkitError, match="nothing that can be chosen varies"):
        select(runs[:2])
    with pytest.raises(ClamkitError, match=r"clam_kl with tau=1.0 has no run with seed 1 .*same seeds and bounds"):
        select(runs[:3])
    with pytest.raises(ClamkitError, match=r"not finished: 1, the first is \S+/clam_kl/\S+/seed1-"):
        select(runs[:3], wanted=[run.config for run in runs])
    with pytest.raises(
        ClamkitError, match="normal/crop-0.3/seed0-.* has no held-out images, and settings are not chosen by"
    ):
        select([*runs, memory_run(EVEN, method="normal")])
    with pytest.raises(ClamkitError, match="committed results carry no logits: train"):
        select([memory_run(EVEN, method="clam_kl", holdout=9, tau=tau) for tau in (0.1, 1.0)])


def test_the_command_selects_after_the_sweep(small_npz, tmp_path, monkeypatch):
    grid = tmp_path / "taus.yaml"
    fixed = f"{{dataset: {small_npz}, holdout: 5, epochs: 1, method: clam_kl}}"
    grid.write_text(f"fixed: {fixed}\naxes: {{tau: [0.1, 1.0]}}\n", encoding="utf-8")
    runs = [train(config) for config in Grid.load(grid).configs()]
    for words in (["--select", "tau"], ["--select", "all", "--by", "average-std"]):
        result = CliRunner().invoke(app, ["sweep", str(grid), *words], catch_exceptions=False)
        assert result.output.splitlines()[0].startswith("2 of 2 runs of")
        assert str(select(runs)) in result.output
    with pytest.raises(ClamkitError, match="u_min varies within no method"):
        CliRunner().invoke(app, ["sweep", str(grid), "--select", "u-min"], catch_exceptions=False)

    monkeypatch.setattr(results, "folder", lambda: tmp_path / "results")
    results.save("taus", runs)
    command = ["sweep", str(grid), "--runs", str(tmp_path / "none"), "--select", "tau"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.output.splitlines()[0].startswith("0 of 2 runs of"), "committed ones are not trained again"
    assert str(select(runs)) in result.output, "and serve to choose by"


def test_what_cannot_be_chosen_is_refused_before_anything_is_trained(tmp_path):
    """The dataset does not exist: a sweep that began would say so."""
    grid = tmp_path / "taus.yaml"
    for holdout, words, message in (
        (5, ["--select", "taw"], "unknown field to choose 'taw'"),
        (5, ["--select", "tau", "--by", "std"], "unknown objective 'std'"),
        (5, ["--select", "u-min"], "u_min varies within no method"),
        (0, ["--select", "tau", "--dry-run"], "has no held-out images"),
    ):
        fixed = f"{{dataset: nowhere.npz, holdout: {holdout}, method: clam_kl}}"
        grid.write_text(f"fixed: {fixed}\naxes: {{tau: [0.1, 1.0]}}\n", encoding="utf-8")
        with pytest.raises(ClamkitError, match=message):
            CliRunner().invoke(app, ["sweep", str(grid), *words], catch_exceptions=False)
