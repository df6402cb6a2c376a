"""`make faults`: hurt trainings and sweeps in every way we know, and print what it did to them.

python -m tests.faults.report [--short] [--only ROW …] [--json FILE]
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from tests.faults import checkout, clusters, damage, fuzzing, kills, load, machine, powerloss, sweeps, trainings

FATAL = (
    "crashes",
    "failed tests",
    "too few",
    "too slow",
    "lost epochs",
    "lost runs",
    "doubled runs",
    "claims to be done",
    "torn files",
    "wrong results",
    "left behind",
    "leftovers",
)


def tested(folder: Path, *words: str) -> Counter:
    """Tests that judge for themselves; what cannot be done on this machine is counted by its reason."""
    count, listed = Counter({"failed tests": 0}), folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-m", "", f"--junitxml={listed}", *words]
    result = subprocess.run(command, cwd=checkout.ROOT, capture_output=True, text=True)
    for case in ElementTree.parse(listed).iter("testcase") if listed.is_file() else ():
        if (skipped := case.find("skipped")) is not None:
            count[f"not done here: {skipped.get('message')}"] += 1
        else:
            count["failed tests" if len(case.findall("failure") + case.findall("error")) else "tests passed"] += 1
    if result.returncode:
        print(result.stdout, result.stderr, file=sys.stderr)
        count["failed tests"] = max(count["failed tests"], 1)  # or none was found
    return count


ROWS = {
    "training killed with -9": lambda folder, data, short: kills.killed(folder, data, 14 if short else 60),
    "file cut or bit flipped": lambda folder, data, short: damage.damaged(folder, data, 1 if short else 12),
    "full disk": lambda folder, data, short: damage.full_disk(folder, data, 2 if short else 10),
    "read-only folder": lambda folder, data, short: damage.no_rights(folder, data),
    "clock jumps": lambda folder, data, short: damage.wrong_clock(folder, data),
    "sweep killed with -9": lambda folder, data, short: sweeps.killed(folder, *((1, 1) if short else (20, 16))),
    "SIGTERM, then two sweeps": lambda folder, data, short: sweeps.stopped(folder, 1 if short else 4),
    "power cut": lambda folder, data, short: powerloss.cut(folder, 1 if short else 32, recoveries=40 if short else 20),
}
LONG = {  # what other tests do in short, one by one
    "any order of all these": lambda folder, data, short: machine.walk(folder, 2 if short else 150, random=not short),
    "network cut and healed": lambda folder, data, short: clusters.cut_and_healed(folder, 2 if short else 6),
    "two schedulers": lambda folder, data, short: clusters.two_schedulers(folder, 2 if short else 6),
    "dead workers, locks, TLS": lambda folder, data, short: tested(folder, *CLUSTERS),
    "mutated files": lambda folder, data, short: fuzzing.fuzzed(folder, 500 if short else 20_000),
    "pages as served": lambda folder, data, short: tested(folder, *PAGES),
    "what is installed": lambda folder, data, short: tested(folder, *PINS),
    "100,000 runs": lambda folder, data, short: load.curve(folder, [40, 400] if short else COUNTS),
}
CLUSTERS = (
    "tests/faults/test_cluster.py",
    "tests/faults/test_networks.py",
    "--deselect=tests/faults/test_networks.py::test_trainings_in_mid_run_outlast_it",  # rows of their own
)
PAGES = ("tests/browser/test_served.py", "tests/browser/test_explorers.py", "-k", "served or diagnosis or token")
PINS = ("tests/test_project.py", "-k", "packages or pinned")
COUNTS = [1_000, 3_000, 10_000, 30_000, 100_000]
LEAST = {  # without which a row says little; not of --short
    "training killed with -9": {"kills": 60, "resumes": 50},
    "file cut or bit flipped": {"damaged files": 100},
    "full disk": {"refused": 5},
    "read-only folder": {"refused": 1},
    "sweep killed with -9": {"kills": 16},
    "SIGTERM, then two sweeps": {"stopped": 1},
    "power cut": {"different disks": 1_000, "recovered": 50},
    "any order of all these": {"steps": 5_000, "kills": 300, "damaged": 150, "resumed": 150},
    "network cut and healed": {"network cut": 1, "network held": 1, "sweep cut off": 1},
    "two schedulers": {"workers paused": 1, "late workers sent away": 1},
    "mutated files": {"inputs": 20_000, "bombs": 11},
    "100,000 runs": {"runs": 100_000},
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="a few of each, for the tests")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument("--only", nargs="+", choices=[*ROWS, *LONG], help="some rows")
    given = parser.parse_args()
    rows = {name: (ROWS | LONG)[name] for name in given.only or ROWS | ({} if given.short else LONG)}
    trainings.warm()
    logging.getLogger("clamkit").setLevel(logging.ERROR)  # each damaged file is a warning
    found = {}
    with tempfile.TemporaryDirectory() as place:
        data = checkout.dataset(Path(place) / "stripes.npz")
        for number, (name, work) in enumerate(rows.items()):
            folder = Path(place) / str(number)
            folder.mkdir()
            started = time.monotonic()
            try:
                found[name] = work(folder, data, given.short)
            except Exception:
                traceback.print_exc()
                found[name] = Counter(crashes=1)
            least = {} if given.short else LEAST.get(name, {})
            found[name]["too few"] = sum(found[name][key] < number for key, number in least.items())
            shown = ", ".join(f"{value} {key}" for key, value in found[name].items() if value or key not in FATAL)
            print(f"{name:<26} {shown} ({time.monotonic() - started:.0f} s)", flush=True)
    totals = {key: sum(counts.get(key, 0) for counts in found.values()) for key in ("kills", "resumes", *FATAL)}
    print("\nin all" + "".join(f"\n  {key:<14} {value}" for key, value in totals.items()))
    if given.json:
        given.json.write_text(json.dumps(found))
    return int(any(totals[key] for key in FATAL))


if __name__ == "__main__":
    sys.exit(main())
