"""The reproduction around the core: grids of runs, committed results, tables, the paper's numbers.

Where it is imported `helpers`, which lies beside the notebooks, is found from any working folder.
"""

import sys
from contextlib import suppress

from clamkit import paths
from clamkit.errors import ClamkitError

with suppress(ClamkitError):  # said where notebooks are needed
    sys.path.append(str(paths.notebooks()))
