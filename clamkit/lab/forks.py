"""`python -m clamkit.lab.forks`: a process that has imported everything and forks itself for each notebook (Linux).

Its stdin is a socket, over which a sweep hands it one end of a pair of sockets for each notebook. A fork says READY
there, reads the job (a line of JSON), executes it with papermill, writes its stderr and, if all went well, DONE. The
kernel is a fork too, made before papermill has threads. When the sweep lets go of the other end, by closing it or by
dying, papermill ends and its kernel with it. This process ends with the sweep; if it dies first, its forks go on.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

READY, DONE = b"\0ready\0", b"\0done\0"
LAUNCHER = [sys.executable, "-m", "ipykernel_launcher"]
EVERYTHING = """pandas papermill ipykernel.kernelapp matplotlib.pyplot torch._dynamo
    clamkit.data.datasets clamkit.engine.loop clamkit.lab.results clamkit.plots"""  # an optimizer imports _dynamo, 2 s


def load() -> None:
    """Import everything: no figure, no tensor, no GPU, and one thread."""
    atexit.register(os._exit, 0)  # the last thing that is done: taking all modules apart would take seconds
    sys.path.pop(0)  # of `python -m`: the folder of the first notebook
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # a grammar of links: 2 s to build, not needed
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as a kernel does
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # of pyarrow
    vars(builtins)["get_ipython"] = lambda: SimpleNamespace(kernel=None)  # pandas chooses its defaults by it
    for name in EVERYTHING.split():
        importlib.import_module(name)
    del vars(builtins)["get_ipython"]
    from jupyter_client.provisioning import KernelProvisionerFactory
    from torch.cuda import is_initialized

    KernelProvisionerFactory.instance()  # looks through all installed packages
    if not os.fork():  # OpenBLAS ends its threads before a fork, and starts them again when it needs them
        os._exit(0)
    if is_initialized() or len(os.listdir("/proc/self/task")) > 1:
        sys.exit("not safe to fork")
    gc.freeze()


def serve() -> socket.socket:
    """Fork for each socket that comes, and return it there; ends when no more can come."""
    control = socket.socket(fileno=0)
    heeded = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while received := socket.recv_fds(control, 1, 1)[1]:
        if not os.fork():
            signal.signal(signal.SIGINT, heeded)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.detach()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            return socket.socket(fileno=received[0])
        os.close(received[0])
    sys.exit()


def settle(place: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(place["env"])
    os.chdir(place["cwd"])


class WaitingKernel:
    """A fork that becomes a kernel when it is told its arguments; as much of a Popen as jupyter_client asks for."""

    stdin = stdout = stderr = returncode = None

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.writer)
            os.setsid()
            with open(reader) as pipe:
                told = pipe.read()
            if told:
                become_kernel(json.loads(told))
            sys.exit()
        os.close(reader)

    def tell(self, **words: Any) -> None:
        with open(self.writer, "w") as pipe:
            json.dump(words, pipe)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None and (status := os.waitpid(self.pid, options))[0]:
            self.returncode = os.waitstatus_to_exitcode(status[1])
        return self.returncode

    def wait(self) -> int | None:
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def become_kernel(told: dict[str, Any]) -> None:
    import numpy as np
    import torch
    from ipykernel.kernelapp import IPKernelApp

    settle(told)
    for name in ("tqdm.auto", "tqdm.autonotebook", "rfc3987_syntax"):  # what is otherwise in a kernel
        sys.modules.pop(name, None)
    np.random.seed()  # noqa: NPY002  other numbers in each fork, as in each process
    torch.default_generator.seed()
    sys.argv = told["argv"]
    kernel = IPKernelApp.instance(parent_handle=os.getppid())
    kernel.initialize(sys.argv[1:])
    Path(kernel.abs_connection_file).unlink(missing_ok=True)  # read by all who must; nobody may be left to remove it
    kernel.start()


def execute(connection: socket.socket) -> None:
    """One notebook, in a fork."""
    from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
    from papermill import execute_notebook

    connection.sendall(READY)
    with connection.makefile() as lines:
        job = json.loads(lines.readline())
    settle(job)
    os.set_inheritable(connection.fileno(), False)
    os.dup2(connection.fileno(), 2)
    waiting = WaitingKernel()

    class Forked(LocalProvisioner):
        async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
            if cmd[:3] != LAUNCHER:  # another Python, another language
                return await super().launch_kernel(cmd, **options)
            self.cwd = options.get("cwd") or os.getcwd()
            waiting.tell(argv=cmd[2:], env=options["env"] | {"JPY_PARENT_PID": str(os.getpid())}, cwd=str(self.cwd))
            self.process, self.pid, self.pgid = waiting, waiting.pid, waiting.pid
            return self.connection_info

    def watch() -> None:
        connection.recv(1)  # nothing comes but the end
        os.kill(os.getpid(), signal.SIGTERM)

    KernelProvisionerFactory.instance().provisioners["local-provisioner"] = SimpleNamespace(load=lambda: Forked)
    threading.Thread(target=watch, daemon=True).start()
    execute_notebook(**job["arguments"])
    connection.sendall(DONE)


if __name__ == "__main__":
    load()
    execute(serve())
