"""`python -m clamkit.child PARENT MODULE ARGUMENTS…`: run a module, and end when the process PARENT is gone.

However that process ended, its children do not train on. Imports nothing heavy: it stands between sweep and papermill.
"""

from __future__ import annotations

import os
import runpy
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
    sys.argv = sys.argv[2:]
    sys.modules["rfc3987_syntax"] = None  # jsonschema does without: a grammar of links, two seconds to build
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
