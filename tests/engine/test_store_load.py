"""Many runs and many classes. `python tests/engine/test_store_load.py 10000` prints the times for that many runs."""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from clamkit import metrics
from clamkit.cli import status_command
from clamkit.engine.config import RunConfig
from clamkit.engine.store import COLUMNS, RESULTS, RunFolder, RunStore
from clamkit.errors import ClamkitError
from clamkit.files import sha256
from clamkit.methods import criterion
from clamkit.methods.specs import METHODS
from clamkit.methods.weighters import build_method
from clamkit.theory.sets import LowerBounded

SUMMARY = {"average": 0.8, "std": 0.1, "cov": 0.125, "range": 0.3, "decile_range": 0.3, "worst": 0.6, "best": 0.9}


def make_runs(root: Path, count: int) -> None:
    """Finished runs as a sweep leaves them, with nothing in the files that the table does not read."""
    for i in range(count):
        methods = list(METHODS)
        config = RunConfig(method=methods[i % 5], crop_lower_bound=0.3 + 0.1 * (i // 5 % 8), seed=i)
        folder = root / config.folder()
        folder.mkdir(parents=True)
        summary = SUMMARY | {"seconds": 60.0, "class_names": [f"class {k}" for k in range(10)], "average": i / count}
        files = dict.fromkeys(RESULTS, b"x") | {
            "config.json": json.dumps(config.model_dump()).encode(),
            "summary.json": json.dumps(summary).encode(),
        }
        files["DONE"] = json.dumps({name: sha256(raw) for name, raw in files.items()}).encode()
        for name, raw in files.items():
            (folder / name).write_bytes(raw)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    make_runs(root, 1000)
    return RunStore(root)


@pytest.mark.slow
def test_a_thousand_runs_are_read_and_kept(store, capsys):
    frame = store.frame()
    assert len(frame) == 1000
    assert frame.sort_values("seed")["average"].to_list() == pytest.approx([i / 1000 for i in range(1000)])
    pd.testing.assert_frame_equal(store.frame(), frame)
    status_command(store.root)
    said = capsys.readouterr().out
    assert said.count("25/25") == 40, "5 methods × 8 strengths"
    assert "1000 done" in said


@pytest.mark.slow
def test_the_index_spares_reading_the_runs_again(store, monkeypatch):
    frame = store.frame()
    monkeypatch.setattr(RunFolder, "summary", property(lambda run: pytest.fail(f"{run} was read again")))
    pd.testing.assert_frame_equal(store.frame(), frame)


@pytest.mark.slow
def test_the_index_is_never_trusted_over_the_runs(store):
    frame = store.frame()
    index = store.root / ".index.json"
    raw = index.read_bytes()
    hurt = raw.replace(b'"average": 0.5,', b'"average": 0.9,')
    assert hurt != raw
    for content in (hurt, raw[:-100], b"", b"\xff" * 50):
        index.write_bytes(content)
        pd.testing.assert_frame_equal(store.frame(), frame)
        assert index.read_bytes() == raw, "written anew"

    run = next(run for run in store.runs() if run.config.seed == 7)
    summary = (run.folder / "summary.json").read_bytes()
    (run.folder / "summary.json").write_bytes(summary.replace(b"60.0", b"61.0"))
    with pytest.raises(ClamkitError, match=r"summary\.json is damaged"):
        store.frame()
    done = json.loads((run.folder / "DONE").read_text())
    done["summary.json"] = sha256((run.folder / "summary.json").read_bytes())
    (run.folder / "DONE").write_text(json.dumps(done))  # as a run made anew
    assert store.frame().set_index("seed").loc[7, "seconds"] == 61
    aside = store.root.parent / "aside"
    shutil.move(run.folder, aside)
    assert len(store.frame()) == 999
    shutil.move(aside, run.folder)
    assert len(store.frame()) == 1000


def test_a_few_runs_and_their_index(tmp_path):
    """As above with 20 runs, for the quick set."""
    make_runs(tmp_path, 20)
    store = RunStore(tmp_path)
    frame = store.frame()
    assert frame.sort_values("seed")["average"].to_list() == pytest.approx([i / 20 for i in range(20)])
    index = tmp_path / ".index.json"
    raw = index.read_bytes()
    hurt = raw.replace(b'"average": 0.5,', b'"average": 0.9,')
    assert hurt != raw
    for content in (raw, hurt, raw[:-100], b""):
        index.write_bytes(content)
        pd.testing.assert_frame_equal(store.frame(), frame)
        assert index.read_bytes() == raw
    shutil.rmtree(store.runs()[0].folder)
    assert len(store.frame()) == 19


def test_histories_of_a_thousand_classes(tmp_path):
    rng = np.random.default_rng(0)
    columns = {name: torch.from_numpy(rng.random((60, 1000))) for name in COLUMNS}
    run = RunFolder(tmp_path)
    run.save_history(columns)
    history = run.history
    assert np.array_equal(history["weight"].to_numpy().reshape(60, 1000), columns["weight"])
    fair = metrics.fairness_over_epochs(history)
    assert fair["worst"].iloc[-1] == pytest.approx(np.sort(columns["test_accuracy"][-1])[:100].mean())


def inaturalist_sizes(root: Path) -> np.ndarray:
    """Training images of each class of iNaturalist 2018, where the list is at hand; else as long a tail."""
    file = root.parent / "shared" / "data" / "inat18" / "img_num_per_cls.txt"
    if file.is_file():
        return np.loadtxt(file, dtype=np.int64)
    sizes = np.geomspace(263, 2, 8142).round().astype(np.int64)
    sizes[: 437_513 - sizes.sum()] += 1
    return sizes


@pytest.mark.slow
def test_labels_of_inaturalist_through_counts_weights_and_metrics(root, monkeypatch):
    sizes = inaturalist_sizes(root)
    n, total = 8142, 437_513
    assert (len(sizes), sizes.sum()) == (n, total)
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(n), sizes))
    right = rng.random(total) < 0.6
    predicted = np.where(right, y, (y + 1) % n)
    weighter = build_method("clam_kl", "inaturalist2018", n)
    monkeypatch.setattr(criterion, "cross_entropy", lambda logits, y: torch.ones(len(y)))  # 3.5 billion exponentials
    logits = torch.zeros(1024, n, dtype=torch.uint8)  # one buffer for all batches: what is 1 is the prediction
    for start in range(0, total, 1024):
        part = torch.from_numpy(predicted[start : start + 1024])
        rows = torch.arange(len(part))
        logits[rows, part] = 1
        weighter.observe(logits[: len(part)], torch.from_numpy(y[start : start + 1024]))
        logits[rows, part] = 0
    accuracy, losses = weighter.counted()
    assert (losses == 1).all()
    assert weighter.seen.tolist() == sizes.tolist()
    expected = np.zeros(n)
    np.add.at(expected, y, right)
    assert np.allclose(accuracy, expected / sizes)
    assert np.array_equal(metrics.class_accuracy(y, predicted, n), accuracy)
    weighter.step()
    weights = weighter.weights.numpy() / n
    assert LowerBounded(n, 0.5 / n).contains(weights)
    free = weights > 0.5 / n * (1 + 1e-9)
    ratio = weights[free] / np.exp(-accuracy[free])  # the KL step moves the free ones by one common factor
    assert np.allclose(ratio, ratio[0])
    fair = metrics.fairness(accuracy)
    assert fair["worst"] == pytest.approx(np.sort(accuracy)[:814].mean())
    assert fair["average"] == pytest.approx(accuracy.mean())


if __name__ == "__main__":
    number = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder), number)
        for what, work in (
            ("frame, cold", lambda: RunStore(folder).frame()),
            ("frame, warm", lambda: RunStore(folder).frame()),
            ("status", lambda: status_command(Path(folder))),
        ):
            clock, cpu = time.monotonic(), time.process_time()
            work()
            seconds = time.process_time() - cpu
            print(f"{number} runs: {what} {seconds:.2f} s of work, {time.monotonic() - clock:.2f} s on the clock")
