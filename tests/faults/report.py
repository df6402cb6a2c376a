"""`make faults`: hurt trainings and sweeps in every way we know, and print what it did to them.

python -m tests.faults.report [--short] [--only ROW] [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.faults import checkout, clusters, damage, fuzzing, kills, machine, powerloss, sweeps, trainings

FATAL = (
    "crashes",
    "lost epochs",
    "lost runs",
    "doubled runs",
    "claims to be done",
    "torn files",
    "wrong results",
    "left behind",
    "leftovers",
)

ROWS = {
    "training killed with -9": lambda folder, data, short: kills.killed(folder, data, 14 if short else 60),
    "file cut or bit flipped": lambda folder, data, short: damage.damaged(folder, data, 1 if short else 12),
    "full disk": lambda folder, data, short: damage.full_disk(folder, data, 2 if short else 10),
    "read-only folder": lambda folder, data, short: damage.no_rights(folder, data),
    "clock jumps": lambda folder, data, short: damage.wrong_clock(folder, data),
    "sweep killed with -9": lambda folder, data, short: sweeps.killed(folder, *((1, 1) if short else (8, 16))),
    "SIGTERM, then two sweeps": lambda folder, data, short: sweeps.stopped(folder, 1 if short else 4),
    "power cut": lambda folder, data, short: powerloss.cut(folder, 1 if short else 32, recoveries=40 if short else 20),
}
LONG = {  # what other tests do in short, one by one
    "any order of all these": lambda folder, data, short: machine.walk(folder, 2 if short else 150, random=not short),
    "network cut and healed": lambda folder, data, short: clusters.cut_and_healed(folder, 2 if short else 6),
    "two schedulers": lambda folder, data, short: clusters.two_schedulers(folder, 2 if short else 6),
    "mutated files": lambda folder, data, short: fuzzing.fuzzed(folder, 500 if short else 20_000),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="a few of each, for the tests")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument("--only", choices=[*ROWS, *LONG], help="one row")
    given = parser.parse_args()
    rows = {given.only: (ROWS | LONG)[given.only]} if given.only else ROWS if given.short else ROWS | LONG
    trainings.warm()
    found = {}
    with tempfile.TemporaryDirectory() as place:
        data = checkout.dataset(Path(place) / "stripes.npz")
        for number, (name, work) in enumerate(rows.items()):
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
