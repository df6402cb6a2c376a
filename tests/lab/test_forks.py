"""Notebooks in forks of one process: outputs and bits as in processes of their own, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest

from clamkit import RunConfig, RunStore
from clamkit.lab.execution import Processes, execute_notebook, last_line, run_outcome
from tests.faults.trainings import differ

psutil = pytest.importorskip("psutil", reason="looks at the processes that are left")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux only")]

WAITS = """
import os, pathlib, time
pathlib.Path(f"here-{name}").write_text(str(os.getpid()))
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""
SHOWS = (
    "import os, random, sys\nimport matplotlib.pyplot as plt\nimport numpy as np\nimport pandas as pd\nimport torch",
    "import clamkit.lab",
    "from tqdm.auto import tqdm",
    "tqdm, plt.get_backend(), __name__, torch.get_num_threads()",
    "sorted(os.environ), os.environ['OF_THE_TEST'], os.getcwd(), sys.path, sys.argv[3:]",
    "print('to stderr', file=sys.stderr)\nos.system('echo from a process')",
    "plt.plot([1, 3, 2])\nplt.title('a figure')\nplt.show()",
    "pd.DataFrame([[f'a long entry {i}' for i in range(18)]])",
    "import locale, logging, signal\nplt.rcParams, locale.getlocale(), sys.flags",
    "[line for line in pd.describe_option(_print_desc=False).splitlines() if 'utf-8' not in line.lower()]",
    "logging.getLogger().handlers, [(number, signal.getsignal(number)) for number in (2, 15, 17)]",
    "np.geterr(), np.get_printoptions(), torch.__config__.parallel_info()",
    "open('drawn', 'a').write(f'{torch.rand(1).item()} {np.random.rand()} {random.random()} ');",
    "input()",
)
TRAINS = (
    "from clamkit import train\nfrom clamkit.lab.notebooks import notebook_config",
    "run = train(notebook_config({'options': options}))",
)


def write(folder, name, *sources):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    made.cells = [
        nbformat.v4.new_code_cell(source, id=f"cell-{i}")
        for i, source in enumerate(("name = 0\noptions = {}", *sources))
    ]
    made.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(made, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def appears(path, seconds=120):
    """The number in a file, once it is there."""
    deadline = time.monotonic() + seconds
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, f"{path.name} does not come"
        time.sleep(0.05)
    return int(path.read_text())


def gone(processes, seconds=30):
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def without_times(path):
    notebook = nbformat.read(path, 4)
    for part in (notebook, *notebook.cells):
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
        if not part.get("id", "cell-").startswith("cell-"):  # of papermill's own
            del part["id"]
    return json.dumps(notebook)


@pytest.fixture(scope="module")
def forks():
    """One process for what may share it, with the number of threads of the first: 2."""
    with Processes(forks=True) as found:
        yield found


def test_outputs_are_the_same_to_the_byte(tmp_path, forks):
    notebook, found = write(tmp_path, "shows", *SHOWS), {}
    environment = {"OF_THE_TEST": "yes", "OMP_NUM_THREADS": "2"}
    for way, processes in {"plain": Processes(), "first": forks, "second": forks}.items():
        options = {"environment": environment, "processes": processes, "parameters": {"name": 1}}
        error = execute_notebook(notebook, tmp_path / f"{way}.ipynb", **options)
        found[way] = without_times(tmp_path / f"{way}.ipynb"), last_line(error)
    assert forks.forks
    assert "image/png" in found["plain"][0]
    assert "StdinNotImplementedError" in found["plain"][1]
    assert found["first"] == found["plain"]
    assert found["second"] == found["plain"]
    drawn = (tmp_path / "drawn").read_text().split()
    assert len(set(drawn)) == len(drawn) == 9, "forks do not share their random numbers"


def test_a_training_has_the_same_bits(tmp_path, small_npz, forks):
    notebook, threads = write(tmp_path, "trains", *TRAINS), 2
    config = RunConfig(method="clam", seed=3, epochs=3, dataset=str(small_npz))
    for way, processes in {"plain": Processes(), "forked": forks}.items():
        assert run_outcome(config, notebook, tmp_path / way, threads, processes, 10)[1] is None
    assert forks.forks
    assert not differ(*(RunStore(tmp_path / way).run(config) for way in ("forked", "plain")))


def test_whatever_is_killed_the_others_go_on(tmp_path, monkeypatch):
    """In turn: a kernel, a papermill, the process that is forked."""
    (tmp_path / "temporary").mkdir()  # jupyter_client writes its sockets there
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    notebook, others = write(tmp_path, "waits", WAITS), psutil.Process().children(recursive=True)
    with Processes(forks=True) as forks, ThreadPoolExecutor(4) as pool:

        def start(name):
            options = {"parameters": {"name": name}, "processes": forks}
            return pool.submit(execute_notebook, notebook, tmp_path / f"out-{name}.ipynb", **options)

        spared, first, second = (start(name) for name in "abc")
        kernels = {name: psutil.Process(appears(tmp_path / f"here-{name}")) for name in "abc"}
        origin = kernels["a"].parent().parent()
        assert origin.parent().pid == os.getpid()
        kernels["b"].kill()
        assert "Kernel died" in first.result(60)
        assert kernels["c"].parent().parent() == origin
        kernels["c"].parent().kill()
        assert second.result(60) == "papermill ended without a word"
        assert gone([kernels["c"]])
        origin.kill()
        plain = start("d")
        last = psutil.Process(appears(tmp_path / "here-d"))
        assert not forks.forks
        assert last.parent().parent().pid == os.getpid()
        (tmp_path / "go").touch()
        assert (spared.result(60), plain.result(60)) == ("", "")
    assert gone([*kernels.values(), last, origin])
    assert not set(psutil.Process().children(recursive=True)) - set(others)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_killed_sweep(tmp_path, number):
    notebook = write(tmp_path, "waits", WAITS)
    code = f"""
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from clamkit.lab.execution import Processes, execute_notebook
signal.signal(signal.SIGINT, signal.default_int_handler)
with Processes(forks=True) as forks, ThreadPoolExecutor(2) as pool:
    def one(name):
        path = Path({str(notebook)!r})
        execute_notebook(path, path.with_name(name), parameters={{"name": name}}, processes=forks)
    futures = [pool.submit(one, name) for name in "ab"]
    try:
        futures[0].result()
    except KeyboardInterrupt:
        forks.stop()
"""
    (tmp_path / "temporary").mkdir()
    sweep = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path / "temporary")})
    for name in "ab":
        appears(tmp_path / f"here-{name}")
    everyone = psutil.Process(sweep.pid).children(recursive=True)
    assert len(everyone) == 5  # what is forked, and two of papermill and kernel
    sweep.send_signal(number)
    sweep.wait(60)
    assert gone(everyone)
    assert not list((tmp_path / "temporary").iterdir())
