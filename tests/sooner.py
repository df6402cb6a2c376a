"""Loaded before the plugins of pytest: what would make every process of the tests begin later."""

import os
import sys

sys.modules["rfc3987_syntax"] = None  # nbval would have a grammar of links built, 2 s; jsonschema does without

# tests and package are compiled once, not again in each process; __pycache__ is ignored by git
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
