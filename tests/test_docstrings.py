"""The examples in the docstrings of the core run and give what they show."""

import doctest
import importlib
import pkgutil
import re
import textwrap

import pytest
import torch

import clamkit

CORE = ("errors", "paths", "files", "checks", "metrics", "theory", "methods", "data", "engine")


def modules_with_examples() -> list[str]:
    found = []
    for info in pkgutil.walk_packages(clamkit.__path__, "clamkit."):
        if info.name.split(".")[1] in CORE:
            tests = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(info.name))
            if any(test.examples for test in tests):
                found.append(info.name)
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_show(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_examples_are_found():
    assert {"clamkit.methods.weighters", "clamkit.data.augment"} <= set(modules_with_examples())


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
