"""The paper's numbers against its LaTeX tables."""

import re
from pathlib import Path

import numpy as np
import pytest

from clamkit.errors import ClamkitError
from clamkit.lab import paper

FIVE = ["cifar10", "cifar100", "fashion_mnist", "mini_imagenet", "imagenet"]
EQUITY = ["std", "cov", "range"]
METHODS = {"Normal": "normal", "Focal": "focal", "PW": "pw", "TCE": "tce", "GGF": "ggf", r"\methodname": "clam"}
TABLES = {  # label → our name, and what its columns are
    "fairness metrics": ("fairness_crop", FIVE, EQUITY),
    "acc range diff": ("range_difference", FIVE, ["range_difference"]),
    "worst class accs": ("worst_crop", FIVE, ["worst"]),
    "average accs": ("average_crop", FIVE, ["average"]),
    "fairness metrics tau": ("tau", ["cifar100", "fashion_mnist"], [*EQUITY, "average", "worst"]),
    "fairness metrics with color jitter": ("fairness_jitter", FIVE[:4], EQUITY),
    "fairness metrics iNaturalist2018": ("inaturalist", ["inaturalist2018"], [*EQUITY, "average", "worst", "best"]),
    "fairness metrics ReaL": ("real_labels", ["imagenet_real"], [*EQUITY, "worst"]),
}


def cells(tabular: str) -> list[list[str]]:
    """Rows of a LaTeX tabular as plain cells."""
    tabular = re.sub(r"\\makecell\{([^{}]*)\}", lambda m: m[1].replace(r"\\", " "), tabular)
    tabular = re.sub(r"\\textbf\{([^{}]*)\}", r"\1", tabular)
    return [[cell.strip() for cell in row.split("&")] for row in tabular.split(r"\\")]


def tabulars(source: Path) -> list[tuple[str, str]]:
    """(text since the tabular before, tabular) for every tabular of a LaTeX file."""
    return re.findall(r"(?s)(.*?)\\begin\{tabular\}(.*?)\\end\{tabular\}", source.read_text(encoding="utf-8"))


def parse(source: Path) -> dict[tuple[str, str, str, str], tuple[float, float]]:
    """(table, dataset, method, metric) → (value, spread) of every number in the tables."""
    found = {}
    for before, tabular in tabulars(source):
        label = re.findall(r"\\label\{tab:([^}]*)\}", before)
        if not label or label[-1] not in TABLES or "Loss" in tabular:
            continue
        table, datasets, names = TABLES[label[-1]]
        for head, *row in cells(tabular):
            numbers = [re.fullmatch(r"(-?[\d.]+)(?:\$\\pm\$([\d.]+))?", cell) for cell in row]
            if not row or not all(numbers):
                continue
            head = head.split("\n")[-1].strip()
            if table == "tau":
                method = "tau=" + head.split()[0]
            else:
                method = next(ours for theirs, ours in METHODS.items() if head.startswith(theirs))
            columns = [(dataset, metric) for dataset in datasets for metric in names]
            for (dataset, metric), number in zip(columns, numbers, strict=True):
                found[table, dataset, method, metric] = float(number[1]), float(number[2] or "nan")
    return found


def test_results_are_the_latex_tables(source):
    printed = parse(source)
    ours = paper.results()
    assert list(ours.columns) == ["table", "dataset", "method", "metric", "value", "spread"]
    keys = list(ours[["table", "dataset", "method", "metric"]].itertuples(index=False, name=None))
    assert len(keys) == len(set(keys)) == 5 * 6 * 3 + 3 * 5 * 6 + 2 * 6 * 5 + 4 * 4 * 3 + 4 * 6 + 2 * 4
    assert set(keys) == set(printed)
    np.testing.assert_array_equal(ours[["value", "spread"]], [printed[key] for key in keys])


def test_results_cannot_be_spoilt():
    mine = paper.results()
    mine["value"] = 0
    assert paper.results()["value"].max() > 90


def test_missing_numbers_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(paper.paths, "embedded", lambda: tmp_path)
    with pytest.raises(ClamkitError, match=r"paper_results\.csv"):
        paper.results()
