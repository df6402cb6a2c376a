"""Every public name has an example in its docstring; these and the others of the core give what they show."""

import doctest
import importlib
import pkgutil
import re
import textwrap
from typing import Any

import numpy as np
import pytest
import torch

import clamkit

CORE = ("errors", "paths", "files", "checks", "metrics", "theory", "methods", "data", "engine")


CONSTANTS = ("METHODS", "__version__")  # cannot carry a docstring: docs/api_pages.py has their examples
QUICK = [name for name in clamkit.__all__ if name not in (*CONSTANTS, "train", "Run")]
TRAINING = [pytest.param(name, marks=pytest.mark.slow) for name in ("train", "Run")]


@pytest.fixture
def namespace(tmp_path, monkeypatch) -> dict[str, Any]:
    """What a reader has who imported all public names, numpy and torch; what is written goes nowhere."""
    monkeypatch.chdir(tmp_path)
    return {name: getattr(clamkit, name) for name in clamkit.__all__} | {"np": np, "torch": torch}


@pytest.mark.parametrize("name", [*QUICK, *TRAINING])
def test_each_public_name_has_an_example_that_runs(name, namespace):
    text = vars(namespace[name])["__doc__"] if isinstance(namespace[name], type) else namespace[name].__doc__
    example = doctest.DocTestParser().get_doctest(text, namespace, name, None, 0)
    assert re.search(rf"\b{name}\b", text.partition(">>>")[2]), "the example does not show it"
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert result.attempted > 0
    assert result.failed == 0, "".join(printed)


def other_examples() -> dict[str, doctest.DocTest]:
    """Those of the core's other docstrings, which run among the names of their module."""
    public = {
        f"{thing.__module__}.{name}"
        for name in clamkit.__all__
        if hasattr(thing := getattr(clamkit, name), "__module__")
    }
    found = {}
    for info in pkgutil.walk_packages(clamkit.__path__, "clamkit."):
        if info.name.split(".")[1] in CORE:
            tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(info.name))
            found |= {test.name: test for test in tests if test.examples and test.name not in public}
    return found


@pytest.mark.parametrize("name", sorted(other_examples()))
def test_other_examples_give_what_they_show(name):
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(other_examples()[name])
    assert result.attempted > 0
    assert result.failed == 0


def test_other_examples_are_found():
    assert {"clamkit.methods.weighters.build_method", "clamkit.data.augment.RandomResizedCrop"} <= set(other_examples())


def test_the_example_of_the_package_runs():
    block = re.search(r"(?m)(^    .*\n|^\n)+", clamkit.__doc__.partition("\n")[2])
    code = textwrap.dedent(block[0])
    assert code.count("weighter") >= 3
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    names = {
        "num_classes": 3,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": [(x, y), (x, y)],
        "labels": y.numpy(),
        "predictions": model(x).argmax(1).numpy(),
    }
    before = model.weight.detach().clone()
    exec(code, names)
    assert int(names["weighter"].epoch) == 1
    assert not torch.equal(model.weight, before)
