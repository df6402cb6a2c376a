"""Runs on disk: nothing lost or read wrong when a file is damaged, locked, another's or not there."""

import errno
import json
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock

from clamkit.data.augment import normalise
from clamkit.data.datasets import load_data
from clamkit.engine.config import RunConfig
from clamkit.engine.loop import predict, set_up, train
from clamkit.engine.models import build_model
from clamkit.engine.store import COLUMNS, LOGITS, RESULTS, Run, RunFolder, RunStore, as_frame, read_history
from clamkit.errors import ClamkitError
from clamkit.files import sha256, write_json
from clamkit.metrics import METRICS


def flips(raw: bytes, step: int = 1):
    for place in range(0, 8 * len(raw), step):
        hurt = bytearray(raw)
        hurt[place // 8] ^= 1 << place % 8
        yield bytes(hurt)


def flip_middle(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# ------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.slow), 29])
def test_bits_of_an_unfinished_config(tmp_path, step):
    """Its folder is named after it: another value of anything that has an effect is seen."""
    config = RunConfig(dataset="mine.npz", method="clam_ratio", ratio=3.0, lr=0.05, epochs=7, seed=3)
    run = RunStore(tmp_path).run(config)
    run.folder.mkdir(parents=True)
    path = run.folder / "config.json"
    write_json(path, config.model_dump())
    other = 0  # flips after which it still reads as a config, but as another one
    for hurt in flips(path.read_bytes(), step):
        path.write_bytes(hurt)
        with suppress(ValueError, TypeError):
            other += RunConfig(**json.loads(hurt)).identity() != config.identity()
        try:
            assert RunFolder(run.folder).config.identity() == config.identity()
        except ClamkitError as error:
            assert "damaged" in str(error)  # noqa: PT017 — either is right, the wrong config is not
    assert other > 30 / step, "or there was nothing to see"


@pytest.mark.parametrize("step", [pytest.param(61, marks=pytest.mark.slow), 607])
def test_bits_of_an_unfinished_history(tmp_path, step):
    rng = np.random.default_rng(0)
    run = RunFolder(tmp_path)
    run.save_history({name: torch.from_numpy(rng.random((4, 3))) for name in COLUMNS})
    path, right = tmp_path / "history.parquet", run.history
    refused = 0
    for hurt in flips(path.read_bytes(), step):  # 61: every byte now and then, each bit of it in turn
        path.write_bytes(hurt)
        try:
            assert RunFolder(tmp_path).history.equals(right)
        except ClamkitError:
            refused += 1
    assert refused > 6100 / step


@pytest.mark.parametrize("name", ["checkpoint.pt", "history.parquet", "config.json"])
def test_truncated_files_are_set_aside_and_the_run_goes_on(config, interrupted, caplog, name, same_bits, whole):
    run = interrupted(config, 2)
    path = run.folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = train(config)
    assert "set aside" in caplog.text
    assert (run.folder / f"{name}.damaged-1").is_file()
    same_bits(done, whole(config))


def test_flipped_byte_in_a_checkpoint_is_seen(config, interrupted, caplog, same_bits, whole):
    run = interrupted(config, 3)
    flip_middle(run.folder / "checkpoint.pt")
    done = train(config)
    assert "checkpoint.pt is damaged" in caplog.text
    same_bits(done, whole(config))


@pytest.mark.parametrize("name", [*RESULTS[1:], LOGITS, "DONE"])
def test_damage_to_a_finished_run_is_repaired(config, name, same_bits, whole):
    run = train(config)
    assert run.damaged() == []
    flip_middle(run.folder / name)
    if name == "DONE":
        assert run.damaged(), "itself, or the file whose sum it no longer has"
    else:
        assert run.damaged() == [name]
        assert run.damaged(checkpoint=False) == [name] * (name != "checkpoint.pt")
    again = train(config)
    assert again.damaged() == []
    same_bits(again, whole(config))


def test_damaged_or_missing_results_read_as_a_sentence(config, interrupted):
    run = interrupted(config, 1)
    with pytest.raises(ClamkitError, match="not finished"):
        _ = run.summary
    (run.folder / "history.parquet").write_bytes(b"PAR1")
    with pytest.raises(ClamkitError, match="damaged"):
        _ = RunFolder(run.folder).history


def test_results_without_done_are_not_read(config):
    """Cut off between the last result and DONE: nothing vouches for what is there."""
    run = train(config)
    (run.folder / "DONE").unlink()
    for name in ("summary", "predictions", "logits"):
        with pytest.raises(ClamkitError, match="not finished"):
            getattr(RunFolder(run.folder), name)
    assert RunFolder(run.folder).config == config


def test_a_history_with_other_columns_is_no_history(tmp_path):
    pd.DataFrame({"epoch": [1], "loss": [0.5]}).to_parquet(tmp_path / "history.parquet")
    with pytest.raises(ValueError, match="its columns are epoch, loss"):
        read_history((tmp_path / "history.parquet").read_bytes())


# ------------------------------------------------------------------------------------------ whose folder, which state


def test_a_finished_run_is_only_read(config):
    run = train(config)
    before = (run.folder / "checkpoint.pt").stat().st_mtime_ns
    train(config)
    assert (run.folder / "checkpoint.pt").stat().st_mtime_ns == before


def test_folder_of_another_config_is_refused(config):
    run = RunStore().run(config)
    run.folder.mkdir(parents=True)
    other = config.model_copy(update={"lr": 0.5})
    (run.folder / "config.json").write_text(json.dumps(other.model_dump()))
    with pytest.raises(ClamkitError, match=r"another config \(different: lr\)"):
        train(config)
    assert json.loads((run.folder / "config.json").read_text())["lr"] == 0.5, "nothing was overwritten"


def test_two_processes_never_train_the_same_run(config, monkeypatch):
    monkeypatch.setattr("clamkit.engine.store.LOCK_TIMEOUT_S", 0.05)
    run = RunStore().run(config)
    run.folder.mkdir(parents=True)
    with FileLock(run.folder / ".lock"):
        assert run.state == "running"
        with pytest.raises(ClamkitError, match="locked by another process"):
            train(config)
    assert train(config).state == "done"


def test_read_only_runs_folder(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClamkitError, match="cannot write to"):
        train(config, runs=tmp_path / "file" / "runs")


def test_an_error_of_what_is_trained_on_is_not_one_of_the_runs_folder(config, tmp_path):
    run = RunStore().run(config)
    with pytest.raises(FileNotFoundError, match="elsewhere"), run.locked():
        (tmp_path / "elsewhere" / "17.jpg").read_bytes()
    with pytest.raises(ClamkitError, match="cannot write to"), run.locked():
        (run.folder / "no" / "history.parquet").write_bytes(b"")
    with pytest.raises(ClamkitError, match="cannot write to.*No space"), run.locked():
        raise OSError(errno.ENOSPC, "No space left on device")


def test_states_of_a_run(tmp_path):
    config = RunConfig()
    run = RunStore(tmp_path).run(config)
    assert run.state == "missing"
    run.folder.mkdir(parents=True)
    assert run.state == "missing", "an empty folder is no run"
    with run.locked():
        run.claim(config)
        assert run.state == "running"
    assert run.state == "stopped"
    assert "not finished" in repr(run)
    assert RunStore(tmp_path).runs() == []
    assert RunStore(tmp_path).runs(finished=False)[0].config == config
    (run.folder / "failed.txt").write_text("why")
    assert run.state == "failed"
    write_json(run.folder / "DONE", {})
    assert run.state == "done"
    assert len(RunStore(tmp_path).runs()) == 1


def test_leftovers_of_a_killed_process_are_taken_away(tmp_path):
    config = RunConfig()
    run = RunStore(tmp_path).run(config)
    run.folder.mkdir(parents=True)
    (run.folder / ".checkpoint.pt.abcd.tmp").write_bytes(b"half")
    with run.locked():
        run.claim(config)
    assert not list(run.folder.glob("*.tmp"))


def test_the_checkpoint_before_stays_until_the_run_is_done(tmp_path):
    run = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        run.save_checkpoint({"epoch": epoch})
    assert run.load_checkpoint() == {"epoch": 3}
    assert RunFolder.read_checkpoint(tmp_path / "checkpoint.previous.pt") == {"epoch": 2}
    flip_middle(tmp_path / "checkpoint.pt")
    assert run.load_checkpoint() == {"epoch": 2}
    assert not (tmp_path / "checkpoint.pt").exists()


def test_done_vouches_for_every_result(config):
    run = train(config)
    sums = json.loads((run.folder / "DONE").read_text())
    assert sums == {name: sha256((run.folder / name).read_bytes()) for name in (*RESULTS, LOGITS)}


# ------------------------------------------------------------------------------------------------------- logits


def test_logits_are_those_of_the_final_network(config):
    """The network of the checkpoint, asked again image by image."""
    run = train(config.model_copy(update={"holdout": 5}))
    dataset = load_data(config.dataset, holdout=5)
    model = build_model("tiny_resnet", 3, 3)
    model.load_state_dict(run.load_checkpoint()["model"])
    for part in ("test", "holdout"):
        x, y = getattr(dataset, f"x_{part}"), getattr(dataset, f"y_{part}")
        with torch.no_grad():
            expected = torch.cat([model.eval()(normalise(image[None], dataset.mean, dataset.std)) for image in x])
        logits = getattr(run.logits, part)
        assert logits.dtype == np.float16
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)  # float16 has 11 bits
        assert getattr(run.logits, f"{part}_labels").tolist() == y.tolist()
        if part == "test":
            assert run.predictions["prediction"].to_list() == expected.argmax(1).tolist()
    assert run.predictions["label"].to_list() == run.logits.test_labels.tolist()
    plain = train(config).logits
    assert (plain.holdout.shape, plain.holdout_labels.shape) == ((0, 3), (0,)), "nothing held out"


def test_logits_beyond_float16_stay_finite(config):
    state = set_up(config, load_data(config.dataset), torch.device("cpu"))
    with torch.no_grad():
        list(state.model.children())[-1].bias.copy_(torch.tensor([1e6, -1e6, 0]))
    _, predicted, logits = predict(state, logits=True)
    assert (predicted == 0).all()
    assert logits[0, :2].tolist() == [65504, -65504]


def test_a_run_without_logits_is_sound_and_says_how_to_get_them(config, tmp_path, same_bits):
    without = config.model_copy(update={"keep_logits": False})
    assert without.folder() == config.folder()
    run = train(without)
    assert run.done
    assert run.damaged() == []
    assert not (run.folder / LOGITS).exists()
    with pytest.raises(ClamkitError, match="has no logits: .*keep_logits=False.* Delete its DONE"):
        _ = run.logits
    assert train(config).damaged() == [], "a finished run is left as it is"
    time = (run.folder / "checkpoint.pt").stat().st_mtime_ns
    (run.folder / "DONE").unlink()  # as the sentence says
    again, whole = train(config), train(config, runs=tmp_path / "whole")
    assert (run.folder / "checkpoint.pt").stat().st_mtime_ns == time, "nothing was trained"
    same_bits(again, whole)
    assert all(map(np.array_equal, again.logits, whole.logits))
    (run.folder / "DONE").unlink()
    train(without)
    assert not (run.folder / LOGITS).exists(), "what DONE does not vouch for is not left lying there"


def test_runs_that_are_not_in_a_folder_have_no_logits(memory_run):
    with pytest.raises(ClamkitError, match="carry no logits: train fashion_mnist_mini/clam/"):
        _ = memory_run([0.5, 0.7]).logits


# ----------------------------------------------------------------------------------------------- runs as such, tables


def test_any_run_has_a_name_and_wide_columns(memory_run):
    run = memory_run([[0.5, 0.7, 0.9], [0.6, 0.8, 1.0]], weight=[[1, 1, 1], [1.5, 1.0, 0.5]], method="tce", seed=4)
    assert isinstance(run, Run)
    assert run.name == run.config.folder().as_posix()
    assert run.name.startswith("fashion_mnist_mini/tce/crop-0.3/seed4-")
    wide = run.wide("weight")
    assert wide.columns.to_list() == run.class_names == ["class 0", "class 1", "class 2"]
    assert wide.index.to_list() == [1, 2]
    assert wide.loc[2].to_list() == [1.5, 1.0, 0.5]


def test_a_table_of_runs(memory_run):
    runs = [memory_run([0.5, 0.7, 0.9], seed=1), memory_run([0.6, 0.6, 0.6], seed=2, augmentation="jitter")]
    frame = as_frame(runs)
    assert frame["seed"].to_list() == [1, 2]
    assert frame["average"].to_list() == pytest.approx([0.7, 0.6])
    assert frame["std"].to_list() == pytest.approx([0.2, 0.0])
    assert frame["range"].to_list() == pytest.approx([0.4, 0.0])
    assert frame["strength"].to_list() == [0.3, 0.3]
    assert "class_names" not in frame
    empty = as_frame([])
    assert len(empty) == 0
    assert {*METRICS, "method", "seed", "strength"} <= set(empty.columns)
    assert set(empty[list(METRICS)].dtypes) == {np.dtype(float)}


def test_the_stores_table_is_the_one_of_its_runs(config):
    runs = [train(config.model_copy(update={"epochs": 1, "seed": seed})) for seed in (1, 2)]
    frame = RunStore().frame()
    pd.testing.assert_frame_equal(frame.drop(columns="folder"), as_frame(RunStore().runs()), check_like=True)
    assert set(frame["folder"]) == {str(run.folder) for run in runs}


def test_a_store_without_runs(tmp_path):
    store = RunStore(tmp_path / "nothing")
    assert store.runs() == []
    assert store.frame().empty
    assert not (tmp_path / "nothing").exists(), "looking makes no folder"
