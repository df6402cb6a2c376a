"""Loaded before the plugins of pytest: one of them, nbval, would have a grammar of links built, 2 s in each process."""

import sys

sys.modules["rfc3987_syntax"] = None  # jsonschema does without
