"""`make faults`: hurt trainings and sweeps in every way we know, and print what it did to them.

python -m tests.faults.report [--short] [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import checkout, damage, kills, sweeps, trainings

FATAL = ("lost epochs", "lost runs", "doubled runs", "torn files", "wrong results", "left behind", "leftovers")
ROWS = {
    "training killed with -9": lambda folder, data, short: kills.killed(folder, data, 14 if short else 60),
    "file cut or bit flipped": lambda folder, data, short: damage.damaged(folder, data, 1 if short else 12),
    "full disk": lambda folder, data, short: damage.full_disk(folder, data, 2 if short else 10),
    "read-only folder": lambda folder, data, short: damage.no_rights(folder, data),
    "clock jumps": lambda folder, data, short: damage.wrong_clock(folder, data),
    "sweep killed with -9": lambda folder, data, short: sweeps.killed(folder, *((1, 1) if short else (8, 16))),
    "SIGTERM, then two sweeps": lambda folder, data, short: sweeps.stopped(folder, 1 if short else 4),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="a few of each, for the tests")
    parser.add_argument("--json", type=Path, help="write the counts here")
    given = parser.parse_args()
    trainings.warm()
    found = {}
    with tempfile.TemporaryDirectory() as place:
        data = checkout.dataset(Path(place) / "stripes.npz")
        for number, (name, work) in enumerate(ROWS.items()):
            folder = Path(place) / str(number)
            folder.mkdir()
            started = time.monotonic()
            found[name] = dict(work(folder, data, given.short))
            shown = ", ".join(f"{value} {key}" for key, value in found[name].items() if value or key not in FATAL)
            print(f"{name:<26} {shown} ({time.monotonic() - started:.0f} s)", flush=True)
    totals = {key: sum(counts.get(key, 0) for counts in found.values()) for key in ("kills", "resumes", *FATAL)}
    print("\nin all" + "".join(f"\n  {key:<14} {value}" for key, value in totals.items()))
    if given.json:
        given.json.write_text(json.dumps(found))
    return int(any(totals[key] for key in FATAL))


if __name__ == "__main__":
    sys.exit(main())
