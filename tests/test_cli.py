"""The command line, used rightly and wrongly."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from clamkit import RunStore, __version__
from clamkit.apps import demo, status
from clamkit.cli import as_options, main


def clamkit(*words, code=0, **options):
    """What a command prints, in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-m", "clamkit", *map(str, words)], capture_output=True, text=True, check=False, **options
    )
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr or "--debug" in words
    return result.stdout + result.stderr


@pytest.fixture
def called(monkeypatch, capsys):
    """called(*words): what the same command prints in this process, where nothing has to be imported again."""

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["clamkit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        return said.out + said.err

    return call


@pytest.mark.slow
def test_train_and_status(small_npz, tmp_path, called):
    words = ("train", "--dataset", small_npz, "--epochs", 2, "--method", "clam", "--crop-lower-bound", 0.5, "--seed", 5)
    text = clamkit(*words, "--runs", tmp_path / "mine")
    assert "average" in text
    assert "seed5-" in text
    folder = text.strip().split("clamkit diagnose ")[1]
    assert "top" in called("diagnose", folder, "--html", tmp_path / "page.html"), "the next command, with class names"
    assert "no effect" not in text
    text = called(*words, "--runs", tmp_path / "mine", "--method", "normal", "--tau", 1, "--jitter-strength", 0.2)
    assert "--tau has no effect with --method normal --augmentation crop" in text, "also where it is the default"
    assert "--jitter-strength has no effect" in text
    assert f"clamkit diagnose {folder} --against " in called(*words, "--runs", tmp_path / "mine")
    text = clamkit("status", "--runs", tmp_path / "mine", env={"COLUMNS": "80", "PATH": ""})
    assert "done" in text
    assert "seed5-" in text
    assert "…" not in text, "nothing is cut off at 80 columns"
    assert max(map(len, text.splitlines())) <= 80
    assert "no runs" in called("status", "--runs", tmp_path / "none")
    assert "missing" in called("status", "--grid", "demo")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--method", "clamm"), "unknown method 'clamm'. Did you mean 'clam'"),
        (("train", "--tau", "-1"), "--tau -1.0 is not allowed"),
        (("train", "--crop-lower-bound", "1.5"), "--crop-lower-bound 1.5 is not allowed"),
        (("train", "--epoch", "2"), "No such option"),
        (("sweep", "dmeo"), "unknown grid 'dmeo'. Did you mean 'demo'"),
        (("sweep", "grid.csv"), "small_embedded, your own .yaml."),
        (("sweep", "none.yaml"), "there is no file none.yaml"),
        (("report", "--augmented", "a.csv"), "--augmented goes with --predictions"),
    ],
)
def test_wrong_use_gets_one_paragraph(words, message, called):
    assert message in " ".join(called(*words, code=2).split())


def test_results_of_nothing_are_no_results(called, tmp_path):
    """No file was written, so none is said to hold something."""
    grid = tmp_path / "never_run.yaml"
    grid.write_text("axes: {seed: [0]}\n", encoding="utf-8")
    text = called("results", grid, "--runs", tmp_path / "runs", code=2)
    assert "no run of never_run is finished in" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--dataset", "nowhere"), "unknown dataset 'nowhere'"),
        (("train", "--u-min", "0.1"), "--u-min 0.1 leaves no room for 10 classes"),
        (("train", "--device", "gpu"), "unknown device 'gpu'"),
        (("data", "show", "missing.npz"), "there is no dataset at 'missing.npz'"),
    ],
)
def test_wrong_use_of_what_needs_torch(words, message, called):
    assert message in " ".join(called(*words, code=2).split())


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("give one, for instance image_size=64.", "give one, for instance --image-size 64."),
        ("leave them out with skip_bad_images=True.", "leave them out with --skip-bad-images."),
        ("Give data_dir=, a folder", "Give --data-dir, a folder"),
        ("skip_bad_images works with one process", "--skip-bad-images works with one process"),
        ("dataset='fashion_mnist_mini'.", "--dataset 'fashion_mnist_mini'."),
        ("crop_bounds=(1.0, nan) is not allowed", "--crop-bounds (1.0, nan) is not allowed"),
        ("runs/x/seed0-ab/config.json is damaged", "runs/x/seed0-ab/config.json is damaged"),
        ("the model gives 3 logits", "the model gives 3 logits"),
    ],
)
def test_messages_name_options(python, words):
    assert as_options(python) == words


def test_a_sweep_says_where_the_runs_are_that_it_need_not_make(called, tmp_path):
    text = " ".join(called("sweep", "mini_tau_cifar10", "--runs", tmp_path / "none").split())
    assert "0 of 12 runs of mini_tau_cifar10 are done here; the others are committed (--rerun makes them)" in text


def test_debug_shows_the_traceback():
    assert "Traceback" in clamkit("train", "--tau", "-1", "--debug", code=1)


def test_version_and_help(called):
    assert clamkit("--version").strip() == f"clamkit {__version__}"
    text = called("--help")
    for command in ("demo", "data", "train", "sweep", "status", "results", "report", "doctor", "diagnose", "fix"):
        assert command in text


@pytest.mark.parametrize(
    "command",
    ["train", "sweep", "demo", "status", "results", "doctor", "diagnose", "fix", "data list", "data show"],
)
def test_every_help_shows_an_example(command, called):
    assert f"Example: clamkit {command}" in called(*command.split(), "--help")


def test_status_fits_80_columns_also_with_the_longest_names(tmp_path):
    for place in ("clam_released/jitter-0.35/seed10-0123456789", "equal_by_size/crop-0.3/seed0-0123456789"):
        folder = tmp_path / "fashion_mnist_mini" / place
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        (folder / "failed.txt").touch()
    shown = Console(width=80, file=io.StringIO())
    shown.print(*status.list_runs(RunStore(tmp_path).runs(finished=False), tmp_path), sep="\n")
    text = shown.file.getvalue()
    assert "…" not in text
    for words in ("clam_released jitter-0.35 seed10-0123", "equal_by_size crop-0.3", "failed", "seconds"):
        assert words in text


@pytest.mark.slow
def test_what_the_demo_presents(memory_run, tmp_path):
    accuracy = {"normal": [0.9, 0.5, 0.4], "clam": [0.8, 0.6, 0.55], "clam_kl": [0.82, 0.62, 0.5]}
    runs = [
        memory_run([values, values], method=method, crop_lower_bound=bound)
        for bound in (0.5, 1)
        for method, values in accuracy.items()
    ]
    assert [path.stem for path in demo.save_figures(runs)] == ["demo_classes", "demo_fairness", "demo_weights"]
    for path in (tmp_path / "figures").iterdir():
        assert path.stat().st_size > 1000
    table = demo.comparison_table(runs)
    assert [column.header for column in table.columns[:3]] == ["crop", "method", "average %"]
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["Normal", "CLAM", "CLAM, KL"] * 2
    assert cells[2][:2] == ["60.0 ", "[green]65.0*[/]"], "a star where it beats Normal"


@pytest.mark.slow
def test_doctor_and_data(called, monkeypatch):
    monkeypatch.setattr("clamkit.engine.device.bfloat16_speed", lambda: 1.5)  # measured in tests/engine/test_device.py
    text = called("doctor")
    for part in ("device", "torch 2", "fashion_mnist_mini", "runs", "cache"):
        assert part in text
    assert "fashion_mnist_mini" in called("data", "list")
    said = called("data", "show", "fashion_mnist_mini")
    assert "600 to 600" in said
    assert Path(said.split("picture of the classes: ")[1].strip()).read_bytes().startswith(b"\x89PNG")
    assert "cannot write figures" in called("data", "show", "fashion_mnist_mini", "--out", "/dev/null/here", code=2)
