"""Kernels for nbval as forks of one process that has imported everything, as in a sweep; only on Linux.

`python -m tests.kernels` is that process: for each line of JSON on its stdin it forks a kernel and prints its number.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from clamkit.lab import forks


def serve() -> None:
    forks.load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    for line in sys.stdin:
        if not (pid := os.fork()):
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
                os.dup2(os.open(os.devnull, mode), number)
            forks.become_kernel(json.loads(line))
            sys.exit()
        print(pid, flush=True)


@cache
def origin() -> subprocess.Popen:
    """The process that is forked, one for each worker of the tests; it ends when its stdin does."""
    command, pipes = [sys.executable, "-m", "tests.kernels"], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL, text=True, **pipes)


class Fork:
    """As much of a Popen as jupyter_client asks for, of a process that is no child."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int):
        self.pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.02)
        return 0

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Forked(LocalProvisioner):
    async def launch_kernel(self, cmd, **options):
        if cmd[:3] == forks.LAUNCHER:
            self.cwd = options.get("cwd") or os.getcwd()
            env = options["env"] | {"JPY_PARENT_PID": str(origin().pid)}
            print(json.dumps({"argv": cmd[2:], "env": env, "cwd": str(self.cwd)}), file=origin().stdin, flush=True)
            if pid := int(origin().stdout.readline() or 0):
                self.process, self.pid, self.pgid = Fork(pid), pid, pid
                return self.connection_info
        return await super().launch_kernel(cmd, **options)


def fork() -> None:
    """From here on kernels that are started in this process are forks."""
    if sys.platform == "linux":
        KernelProvisionerFactory.instance().provisioners["local-provisioner"] = SimpleNamespace(load=lambda: Forked)


if __name__ == "__main__":
    serve()
