"""The gate: exit codes, reasons, intervals, and typos that are never a failure."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from clamkit.apps.diagnose import Diagnosis, diagnose
from clamkit.apps.gate import read_condition, reasons
from clamkit.cli import main
from clamkit.errors import ClamkitError

from .tables import table

OLD = table("cat→cat*40", "cat→dog*10", "dog→dog*45", "dog→cat*5")
NEW = table("cat→cat*20", "cat→dog*30", "dog→dog*48", "dog→cat*2")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """run(*words): (exit code, stdout, stderr) of `clamkit diagnose` where old.csv and new.csv are."""
    monkeypatch.chdir(tmp_path)
    OLD.to_csv("old.csv", index=False)
    NEW.to_csv("new.csv", index=False)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["clamkit", "diagnose", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return call


def test_a_model_that_fails_exits_1_with_one_line(run):
    code, _, error = run("new.csv", "--fail-if", "worst<0.60")
    assert code == 1
    assert error.strip().startswith("clamkit: new.csv: worst is 0.4 (95 % interval 0.")
    assert error.strip().endswith(": gate worst<0.60 fails.")
    assert len(error.strip().splitlines()) == 1
    assert run("new.csv", "--fail-if", "worst<0.40", "--fail-if", "std>90%")[0] == 0


def test_the_baseline_is_only_compared_with(run):
    """old.csv has a lowest class of 0.8, new.csv of 0.4 and a class that is hurt."""
    code, _, error = run("new.csv", "--baseline", "old.csv", "--fail-if", "hurt>0", "--json")
    assert (code, "new.csv: hurt is 1: gate hurt>0 fails." in error) == (1, True)
    assert run("old.csv", "--baseline", "new.csv", "--fail-if", "hurt>0", "--fail-if", "lowest<0.7", "--json")[0] == 0
    assert run("new.csv", "old.csv", "--fail-if", "lowest<0.7", "--json")[0] == 1, "both are looked at"


def test_a_metric_that_nothing_is_known_of_does_not_pass(run, tmp_path):
    """Nothing is right: std / average is 0 / 0, neither above the limit nor below it."""
    table("cat→dog*9", "dog→cat*9").to_csv(tmp_path / "wrong.csv", index=False)
    for gate in ("cov>0.5", "cov<0.5"):
        code, _, error = run("wrong.csv", "--fail-if", gate)
        assert (code, error.strip()) == (1, f"clamkit: wrong.csv: cov is nan: gate {gate} fails.")


def test_confident_needs_the_whole_interval(run):
    """20 of 50 right: Wilson's interval is 0.261 to 0.557 where both classes' are to hold (97.5 % each)."""
    for gate, failed in (("lowest<0.45", False), ("lowest<0.55", False), ("lowest<0.56", True)):
        assert run("new.csv", "--fail-if", gate, "--json")[0] == 1
        assert run("new.csv", "--fail-if", gate, "--confident", "--json")[0] == int(failed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("new.csv", "--fail-if", "wrost<0.6"), "unknown metric of a gate 'wrost'. Did you mean 'worst'"),
        (("new.csv", "--fail-if", "worst=0.6"), "the gate 'worst=0.6' cannot be read"),
        (("new.csv", "--fail-if", "worst<"), "cannot be read"),
        (("new.csv", "--fail-if", "worst<60"), "accuracies are fractions. Say 0.6 or 60%"),
        (("new.csv", "--fail-if", "hurt>5%"), "the gate 'hurt>5%' counts classes: give their number, without %"),
        (("new.csv", "--fail-if", "hurt>0"), "compares two models: give the other with --baseline"),
        (("new.csv", "--confident"), "--confident goes with --fail-if"),
        (("nowhere.csv", "--fail-if", "worst<0.6"), "there is no file nowhere.csv"),
        (("new.csv", "--baseline", "nowhere.csv"), "there is no file nowhere.csv"),
        ((".",), "is a folder, but not that of a run"),
        ((), "Missing argument"),
    ],
)
def test_a_mistake_exits_2_and_never_1(run, words, message):
    code, _, error = run(*words)
    assert (code, message in " ".join(error.split())) == (2, True), error


def test_json_is_all_that_is_printed(run):
    code, out, _ = run("old.csv", "new.csv", "--json")
    content = json.loads(out)
    assert (code, list(content["models"])) == (0, ["old.csv", "new.csv"])
    new = content["models"]["new.csv"]
    assert new["classes"]["cat"]["accuracy"] == 0.4
    assert new["classes"]["cat"]["verdict"] == "hurt"
    assert new["hurt"] == ["cat"]
    assert new["profile"]["0.5"] == 0.5
    assert new["fairness"]["worst"]["low"] < 0.4 < new["fairness"]["worst"]["high"]
    assert content["models"]["old.csv"]["hurt"] is None
    assert content["failed"] == []
    assert content["advice"]


def test_conditions():
    assert read_condition(" std > 12 % ")[:3] == ("std", False, 0.12)
    assert read_condition("hurt>3")[:3] == ("hurt", False, 3.0)
    result = diagnose(OLD, NEW, titles=["a", "b"])
    assert reasons([read_condition("lowest<0.5")], result) == [
        "b: lowest is 0.4 (95 % interval 0.261 to 0.557): gate lowest<0.5 fails."
    ]
    with pytest.raises(ClamkitError, match="compares two models"):
        reasons([read_condition("helped>0")], diagnose(OLD))


def test_a_confident_gate_on_the_lowest_class_knows_that_it_was_picked():
    """50 classes, each truly right in 70 of 100: the lowest of them is lucky to be found so low, not below the limit.

    A gate at 70 % may fail in 5 of 100 test sets; at 85 % it must.
    """
    rng, failed = np.random.default_rng(0), []
    for _ in range(200):
        right = rng.binomial(40, 0.7, size=50)
        classes = pd.DataFrame({"images": 40, "right": right, "accuracy": right / 40})
        result = Diagnosis("model", 2000, classes, pd.DataFrame(), pd.DataFrame())
        failed.append([bool(reasons([read_condition(f"lowest<{x}")], result, confident=True)) for x in (0.7, 0.85)])
    assert np.mean(failed, axis=0)[0] <= 0.05
    assert np.mean(failed, axis=0)[1] == 1
