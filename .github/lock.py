"""`make lock`: the pins of requirements*.txt with the SHA-256 of every file they may be installed from.

requirements.lock, -extras.lock, -docs.lock   the registry's files, for every Python and system
requirements-cuda.lock   torch as the registry has it (on Linux: with CUDA), and the CUDA packages that it needs
requirements-cpu.lock    torch's CPU wheel, which is not on the registry, as pip finds it here (--find-links or
                         --extra-index-url in pip's settings), for the Python and system that `make lock` ran on

Torch stands apart because the two wheels have one version, other hashes and other dependencies. --upgrade first moves
every pin to the newest version that pyproject.toml allows; torch and torchvision, which belong together, and the
site's packages by hand only.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELD = ("torch", "torchvision")
BASE = ("lab", "test")  # extras of pyproject.toml that requirements.txt holds
BUILD = ("hatchling", "editables")  # what installs the project in place
PINNED = ("requirements.txt", "requirements-extras.txt", "requirements-docs.txt")
COMMENT = "# By `make lock`, from {}: not to be edited.\n"


def compiled(requirements: list[str], *options: str) -> str:
    """Pins, with the hashes of their files where asked for."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "requirements.in")
        source.write_text("\n".join(requirements))
        quiet = ("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")
        command = [sys.executable, "-m", "uv", "pip", "compile", str(source), *quiet, *options]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder).stdout


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def upgrade() -> None:
    """Newest versions into requirements*.txt and environment.yml; what is new stands at the end of its file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    old = pins((ROOT / "requirements.txt").read_text())
    base = [*project["dependencies"], *BUILD, *(item for name in BASE for item in extras[name])]
    base += [f"{name}=={old[name]}" for name in HELD]
    more = [item for name, items in extras.items() if name not in BASE for item in items]
    found = pins(compiled(base))
    without_cuda = {
        name: version for name, version in found.items() if not name.startswith(("nvidia-", "cuda-", "triton"))
    }
    everything = pins(compiled([*base, *more, *(f"{name}=={version}" for name, version in found.items())]))
    added = {name: version for name, version in everything.items() if name not in found}
    for file, newest in (("requirements.txt", without_cuda), ("requirements-extras.txt", added)):
        path, kept = ROOT / file, []
        left = {normal(name): version for name, version in newest.items()}
        for line in path.read_text().splitlines():
            name, pinned, _ = line.partition("==")
            if not pinned:
                kept.append(line)
            elif normal(name) in left:
                kept.append(f"{name}=={left.pop(normal(name))}")
        path.write_text("\n".join([*kept, *(f"{name}=={version}" for name, version in left.items())]) + "\n")
    new = {normal(name): version for name, version in pins((ROOT / "requirements.txt").read_text()).items()}
    conda = ROOT / "environment.yml"
    conda.write_text(re.sub(r"- ([\w-]+)==\S+", lambda m: f"- {m[1]}=={new[normal(m[1])]}", conda.read_text()))


def lock() -> None:
    listed = {file: pins((ROOT / file).read_text()) for file in PINNED}
    torch = listed["requirements.txt"].pop("torch")
    for file, found in listed.items():
        text = compiled([f"{name}=={version}" for name, version in found.items()], "--no-deps", "--generate-hashes")
        (ROOT / file).with_suffix(".lock").write_text(COMMENT.format(file) + text)
    shared = [f"{name}=={version}" for name, version in listed["requirements.txt"].items()]
    text = compiled([f"torch=={torch}"], "--universal", "--generate-hashes")
    blocks = re.split(r"\n(?=\S)", text)
    own = [block for block in blocks if not any(block.startswith(f"{pin.split('==')[0]}==") for pin in shared)]
    (ROOT / "requirements-cuda.lock").write_text(COMMENT.format(f"torch=={torch}") + "\n".join(own).strip() + "\n")
    lock_cpu(f"torch=={torch}+cpu")


def lock_cpu(pin: str) -> None:
    """The hash of the CPU wheel that pip finds here, beside those known for other Pythons and systems."""
    path = ROOT / "requirements-cpu.lock"
    known = path.read_text() if path.is_file() else ""
    hashes = set(re.findall(r"sha256:\w+", known)) if f"{pin} " in known else set()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, pin]
        if subprocess.run(command, check=False).returncode:
            print(f"{pin} is not to be had here: {path.name} stays as it is")
            return
        for wheel in Path(folder).iterdir():
            hashes.add(f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    lines = " \\\n".join([pin, *(f"    --hash={value}" for value in sorted(hashes))])
    path.write_text(COMMENT.format(pin) + lines + "\n")


if __name__ == "__main__":
    if "--upgrade" in sys.argv:
        upgrade()
    lock()
