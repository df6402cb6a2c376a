"""`python -m clamkit.lab.child PARENT JOB`: execute a notebook, and end when the process PARENT is gone.

However that process ended, its children do not train on. JOB is JSON: the arguments of papermill's execute_notebook.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)  # the notebook's kernel looks for its parent in the same way


if __name__ == "__main__":
    threading.Thread(target=_watch, args=(int(sys.argv[1]),), daemon=True).start()
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # a grammar of links: 2 s to build, not needed
    from papermill import execute_notebook

    execute_notebook(**json.loads(sys.argv[2]))
