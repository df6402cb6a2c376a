"""Sweeps: what is planned, made, skipped, stopped, and how failures are kept apart."""

import os
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import numpy as np
import pytest
from filelock import FileLock

from clamkit import RunConfig, RunStore, paths, train
from clamkit.cli import main
from clamkit.engine.loop import load_config_data
from clamkit.lab import runner
from clamkit.lab.execution import LOCKED, execute_notebook, workers
from clamkit.lab.grids import Grid
from clamkit.lab.runner import plan, sweep

NOTEBOOK = "10_train_fashion_mnist"


def papermill(*words, cwd):
    notebook = str(paths.notebooks() / f"{NOTEBOOK}.ipynb")
    command = [sys.executable, "-m", "papermill", notebook, "out.ipynb", "--no-progress-bar", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def interrupted(number: signal.Signals, *words, runs) -> RunStore:
    """A clamkit command that gets a signal after its second epoch, and how it leaves the runs folder.

    As from a terminal: also where these tests run in the background, with signals ignored.
    """

    def heed() -> None:
        signal.signal(number, signal.SIG_DFL)

    command = [sys.executable, "-m", "clamkit", *map(str, words), "--runs", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed)
    store = RunStore(runs)
    while not list(store.root.glob("*/*/*/*/checkpoint.previous.pt")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    assert "The same command resumes" in process.communicate()[0]
    return store


def test_plan_knows_what_is_done_and_guesses_the_rest(small_npz):
    fixed = {"dataset": str(small_npz), "epochs": 2}
    grid = Grid("small", NOTEBOOK, {"seed": [0, 1]}, fixed)
    assert plan(grid)["seconds"].isna().all()
    run = train(grid.configs()[0])
    frame = plan(grid)
    assert frame["state"].tolist() == ["done", "missing"]
    assert frame["seconds"].tolist() == pytest.approx([run.summary["seconds"], run.summary["seconds"] + 8])


def test_times_of_runs_with_other_images_or_precision_are_not_mixed(small_npz, monkeypatch):
    """Three costs: few images, many images, many in mixed precision; a fourth that nothing is known of."""
    axes = {"per_class": [2, 4], "amp": [False, "auto"], "seed": [0, 1]}
    grid = Grid("small", NOTEBOOK, axes, {"dataset": str(small_npz), "epochs": 2})
    taken = {(2, False): 10.0, (4, False): 40.0, (4, "auto"): 100.0}
    known = {c: taken.get((c.per_class, c.amp)) for c in grid.configs() if c.seed == 0}
    known = {config.folder().as_posix(): seconds for config, seconds in known.items() if seconds}
    monkeypatch.setattr("clamkit.lab.results.committed_seconds", lambda: known)
    frame = plan(grid).query("seed == 1").set_index(["per_class", "amp"])["seconds"]
    assert frame.dropna().to_dict() == {key: seconds + 8 for key, seconds in taken.items()}
    assert np.isnan(frame[2, "auto"])


@pytest.mark.parametrize("other", [{"stem": "imagenet"}, {"accuracy_from": "pass"}, {"protocol": "released"}])
def test_times_of_other_stems_and_passes_are_no_guess(small_npz, monkeypatch, other):
    config = RunConfig(dataset=str(small_npz), epochs=2, model="resnet18")
    monkeypatch.setattr("clamkit.lab.results.committed_seconds", lambda: {config.folder().as_posix(): 10.0})
    fixed = {"dataset": str(small_npz), "epochs": 2, "model": "resnet18"}
    parts = tuple(Grid("part", NOTEBOOK, {"seed": [0]}, fixed | fields) for fields in ({}, other))
    assert plan(Grid("two", NOTEBOOK, {}, parts=parts))["seconds"].isna().tolist() == [False, True]


def test_processes_share_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert workers(None, 1) == workers(1, 10) == (1, cores)
    assert workers(None, 100) == (cores, 1)


def test_cores_of_others_are_left_alone():
    given = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(given)})  # as Slurm and cpusets do
    try:
        assert workers(None, 100) == (1, 1)
    finally:
        os.sched_setaffinity(0, given)


@pytest.mark.slow
def test_two_sweeps_never_make_the_same_run(small_npz, monkeypatch):
    monkeypatch.setattr(runner, "ORPHAN_TIMEOUT_S", 0.5)
    grid = Grid("small", NOTEBOOK, {"seed": [0]}, {"dataset": str(small_npz), "epochs": 1})
    folder = RunStore().run(grid.configs()[0]).folder
    folder.mkdir(parents=True)
    with FileLock(folder / ".sweep.lock"):
        _, failed = sweep(grid, progress=False)
    assert "locked by another process; skipped" in next(iter(failed.values()))


def test_a_runs_folder_that_cannot_be_written(small_npz, tmp_path):
    (tmp_path / "file").write_text("")
    grid = Grid("small", NOTEBOOK, {"seed": [0]}, {"dataset": str(small_npz), "epochs": 1})
    _, failed = sweep(grid, runs=tmp_path / "file", progress=False)
    assert "cannot write to" in next(iter(failed.values()))


@pytest.mark.slow
def test_ctrl_c_leaves_everything_resumable(small_npz, tmp_path):
    (tmp_path / "grid.yaml").write_text(f"fixed: {{dataset: {small_npz}, epochs: 3000}}\naxes: {{seed: [0, 1]}}\n")
    words = ("sweep", tmp_path / "grid.yaml", "--jobs", 1)
    store = interrupted(signal.SIGINT, *words, runs=tmp_path / "mine")
    (run,) = store.runs(finished=False)
    for _ in range(100):  # its kernel ends a moment later
        if run.state == "stopped":
            break
        time.sleep(0.2)
    assert run.state == "stopped"
    assert run.load_checkpoint()["history"]


@pytest.mark.slow
def test_sweep_runs_what_is_missing_keeps_failures_apart(small_npz, tmp_path, capsys):
    fixed, folder = {"dataset": small_npz.name, "epochs": 1, "batch_size": 20}, small_npz.parent
    grid = Grid("small", NOTEBOOK, {"crop_lower_bound": [1.0, 0.3, 0.6, 0.9]}, fixed | {"method": "normal"})
    train(grid.configs()[0].model_copy(update={"data_dir": str(folder)}))  # one is there already
    finished, failed = sweep(grid, jobs=2, progress=False, data_dir=folder)
    assert not failed
    assert [run.folder for run in finished] == [RunStore().run(config).folder for config in grid.configs()]
    assert [run.config.strength for run in finished] == [1.0, 0.3, 0.6, 0.9]
    losses = {run.history["train_loss"].sum() for run in finished}
    assert len(losses) == 4, "the crop reached the training"
    for run in finished[1:]:
        code = [cell for cell in nbformat.read(run.folder / "notebook.ipynb", 4).cells if cell.cell_type == "code"]
        assert any(f"crop_lower_bound = {run.config.strength}\n" in cell.source for cell in code)
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert finished[1].config.batch_size == 20, "fields the notebook has no parameter for travel in `options`"
    assert not (finished[0].folder / "notebook.ipynb").exists()

    bad = Grid("bad", NOTEBOOK, {"method": ["clam"], "u_min": [0.4], "seed": [0]}, fixed)
    finished, failed = sweep(bad, progress=False, data_dir=folder)
    assert not finished
    (why,) = failed.values()
    assert "leaves no room for 3 classes" in why
    assert RunStore().run(bad.configs()[0]).state == "failed"
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.slow
def test_notebook_runs_by_plain_papermill_from_any_folder(tmp_path):
    fields = {"crop_lower_bound": 0.3, "seed": 1, "epochs": 1}
    words = [word for key, value in (fields | {"method": "clam"}).items() for word in ("-p", key, value)]
    result = papermill(*words, "-y", "options: {per_class: 50}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    made = [run.config for run in RunStore().runs()]
    assert made == [RunConfig(method=method, per_class=50, **fields) for method in ("clam", "normal")]


@pytest.mark.slow
def test_unknown_notebook_parameter_stops_plain_papermill(tmp_path):
    result = papermill("-p", "metod", "clam", cwd=tmp_path)
    assert result.returncode != 0
    assert "unknown notebook parameter 'metod'. Did you mean 'method'" in result.stderr
    assert not RunStore().runs(finished=False)


def test_notebook_without_parameters_cell_is_refused(small_npz):
    grid = Grid("none", "00_start_here", {"seed": [0]}, {"dataset": str(small_npz)})
    _, failed = sweep(grid, progress=False)
    assert "no cell tagged `parameters`" in next(iter(failed.values()))


@pytest.mark.slow
def test_a_hangup_ends_a_training_like_ctrl_c(small_npz, tmp_path):
    words = ("train", "--dataset", small_npz, "--epochs", 3000)
    store = interrupted(signal.SIGHUP, *words, runs=tmp_path / "mine")
    assert store.runs(finished=False)[0].state == "stopped"


def test_a_damaged_run_is_missing(small_npz):
    grid = Grid("small", NOTEBOOK, {"seed": [0]}, {"dataset": str(small_npz), "epochs": 1})
    run = train(grid.configs()[0])
    content = (run.folder / "predictions.parquet").read_bytes()
    (run.folder / "predictions.parquet").write_bytes(content[:-1])
    assert plan(grid)["state"].tolist() == ["damaged"]
    train(grid.configs()[0])
    assert plan(grid)["state"].tolist() == ["done"]


@pytest.mark.slow
def test_the_one_executor(tmp_path):
    """Parameters, environment, figure formats, and what comes back of a cell that fails."""
    made = nbformat.v4.new_notebook()
    made.cells = [
        nbformat.v4.new_code_cell("a = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("import os\nprint(a, os.environ['OF_THE_TEST'], os.path.basename(os.getcwd()))"),
        nbformat.v4.new_code_cell("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"),
        nbformat.v4.new_code_cell("1 / 0"),
    ]
    (tmp_path / "here").mkdir()
    nbformat.write(made, tmp_path / "here" / "made.ipynb")
    output = tmp_path / "out.ipynb"
    error = execute_notebook(
        tmp_path / "here" / "made.ipynb",
        output,
        parameters={"a": 2},
        environment={"OF_THE_TEST": "yes"},
        figure_formats=("png", "pdf"),
    )
    assert error.strip().splitlines()[-1] == "ZeroDivisionError: division by zero"
    outputs = [out for cell in nbformat.read(output, 4).cells for out in cell.get("outputs", [])]
    assert outputs[0]["text"] == "2 yes here\n"
    assert {"image/png", "application/pdf"} <= set(outputs[1]["data"])


def test_a_dry_run_says_what_is_left(small_npz, tmp_path, monkeypatch, capsys):
    (tmp_path / "grid.yaml").write_text(f"fixed: {{dataset: {small_npz}, epochs: 1}}\naxes: {{seed: [0, 1]}}\n")
    words = ["clamkit", "sweep", str(tmp_path / "grid.yaml"), "--dry-run", "--jobs", "1"]

    def said() -> str:
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert said().count("missing  time unknown") == 2
    train(RunConfig(dataset=str(small_npz), epochs=1))
    second = said()
    assert second.count("missing  about") == 1
    assert "2 runs, 1 done, 1 to do with 1 side by side: about" in second


def test_files_are_looked_for_where_the_sweep_was_started(tmp_path, monkeypatch, small_npz):
    """A notebook runs in its own folder, where `mine.npz` and `data_dir: images` mean something else."""
    shutil.copy(small_npz, tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path)
    made = []
    monkeypatch.setattr(runner, "_local_outcomes", lambda work, *_: made.extend(work) or (_ for _ in ()))
    relative, whole = {"dataset": "mine.npz"}, {"dataset": str(small_npz)}
    for fixed, given in (
        (relative, None),
        (relative | {"data_dir": "images"}, None),
        (relative, "others"),
        ({"per_class": 3}, None),
    ):
        sweep(Grid("own", NOTEBOOK, {"seed": [0]}, fixed), progress=False, data_dir=given)
    assert [run.data_dir for run in made] == [str(tmp_path / part) for part in ("", "images", "others")] + [None]
    assert [run.folder() for run in made[:3]] == [RunConfig(dataset="mine.npz").folder()] * 3, "the run stays the same"
    monkeypatch.chdir("/")
    sweep(Grid("own", NOTEBOOK, {"seed": [0]}, whole), progress=False)
    assert load_config_data(made[-1]).num_classes == load_config_data(RunConfig(**whole)).num_classes


def test_a_run_that_another_sweep_made_in_the_meantime_has_not_failed(small_npz, monkeypatch):
    """Of two runs that were locked one was finished by who held it: one failed, one is done, and not two and one."""

    def outcomes(work, *_):
        for config in work:
            if not config.seed:
                train(config)
            yield config, LOCKED, 1.0

    monkeypatch.setattr(runner, "_local_outcomes", outcomes)
    grid = Grid("small", NOTEBOOK, {"seed": [0, 1]}, {"dataset": str(small_npz), "epochs": 1})
    finished, failed = sweep(grid, progress=False)
    assert [run.config.seed for run in finished] == [0]
    assert failed == {str(grid.configs()[1].folder()): LOCKED}


def test_lines_tell_the_runs_of_a_grid_apart():
    """By hand: what all share (epochs) and what a method does not listen to (tau of Normal) is left out."""
    configs = [
        RunConfig(method=method, tau=tau, epochs=2) for method, tau in (("normal", 1), ("clam", 0.1), ("clam", 1))
    ]
    start = "fashion_mnist_mini {} crop 0.3  seed 0".format
    lines = [start("normal        "), start("clam          ") + ", tau 0.1", start("clam          ") + ", tau 1.0"]
    assert runner.lines_of(configs) == dict(zip([config.folder().as_posix() for config in configs], lines, strict=True))


@pytest.mark.parametrize(("given", "expected"), [("3,5", {"3", "5"}), (None, {"0", "1"})])
def test_runs_take_the_gpus_that_are_theirs(tmp_path, monkeypatch, given, expected):
    """CUDA_VISIBLE_DEVICES=3,5 leaves the others of the machine to others."""
    used = set()

    def outcome(config, *_, CUDA_VISIBLE_DEVICES):
        used.add(CUDA_VISIBLE_DEVICES)
        time.sleep(0.2)
        return config, None, 0.0

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(runner, "run_outcome", outcome)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    work = {RunConfig(seed=seed): tmp_path for seed in range(4)}
    assert len(list(runner._local_outcomes(work, tmp_path, None))) == 4
    assert used == expected
