"""Real files, mutated: whatever reads them gives a result or a refusal in words, in bounded memory.

python -m tests.faults.fuzzing FOLDER INPUTS SEED   one process: prints its counts as JSON, or dies of what it found;
                                                    0 inputs: the small files that say they are large
"""

import io
import json
import logging
import random
import re
import resource
import struct
import subprocess
import sys
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet

from clamkit.apps import predictions
from clamkit.data.dataset import dataset_from_arrays
from clamkit.data.readers import NO_IMAGE, Files, read_idx, read_npz
from clamkit.engine.config import RunConfig
from clamkit.engine.store import COLUMNS, RunFolder
from clamkit.errors import ClamkitError
from clamkit.lab.grids import Grid
from tests.faults.load import peak_mb

ROOM = 1 << 30  # bytes of address space beyond what the process has when it begins
BATCH = 2_500  # inputs of one process
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
PICTURES = {"PNG": {}, "JPEG": {}, "WEBP": {}, "GIF": {}, "TIFF": {"compression": "tiff_lzw"}, "BMP": {}}
GRID = b"""notebook: 10_train_fashion_mnist
fixed: {dataset: fashion_mnist_mini, epochs: 3, tau: &t 0.3}
axes:
  method: [normal, clam, ggf]
  crop_lower_bound: [0.3, 0.65, 1.0]
  seed: [0, 1, 2]
grids:
  - {fixed: {augmentation: jitter}, axes: {jitter_strength: [0.1, *t]}}
"""


def packed(**arrays) -> bytes:
    np.savez_compressed(file := io.BytesIO(), **arrays)
    return file.getvalue()


def sources(folder: Path) -> dict[str, tuple[str, list[bytes]]]:
    """For each reader the name of its file, and sound ones to begin with."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (12, 6, 6, 3), dtype=np.uint8), np.arange(12) % 3
    names, logits = np.array(["cat", "dog", "owl"]), rng.normal(size=(12, 3))
    table = pd.DataFrame({"label": names[y], "prediction": names[logits.argmax(1)]})
    scores = pd.DataFrame(logits, columns=[f"logit_{name}" for name in names]).assign(label=names[y])
    RunFolder(folder).save_history({name: torch.rand(4, 3, dtype=torch.float64) for name in COLUMNS})
    RunFolder(folder).save_checkpoint({"model": {"w": torch.rand(8, 3)}, "history": [torch.rand(3)], "epoch": 1})
    images = []
    for kind, options in PICTURES.items():
        Image.fromarray(x[0]).resize((40, 40)).save(file := io.BytesIO(), kind, **options)
        images.append(file.getvalue())
    idx = bytes([0, 0, 8, 3]) + np.array([12, 6, 6], ">i4").tobytes() + x[..., 0].tobytes()
    return {
        "checkpoint": ("checkpoint.pt", [(folder / "checkpoint.pt").read_bytes()]),
        "history": ("history.parquet", [(folder / "history.parquet").read_bytes()]),
        "dataset": ("data.npz", [packed(x_train=x, y_train=y, x_test=x, y_test=y, class_names=names)]),
        "arrays": ("said.npz", [packed(labels=y, logits=logits, class_names=names), packed(labels=y, predictions=y)]),
        "table": ("said.parquet", [table.to_parquet(), scores.to_parquet(compression="gzip")]),
        "csv": ("said.csv", [table.to_csv(index=False).encode(), scores.to_csv(index=False).encode()]),
        "grid": ("grid.yaml", [GRID]),
        "image": ("image", images),
        "idx": ("images-idx3-ubyte", [idx]),
        "config": ("config.json", [json.dumps(RunConfig().model_dump()).encode()]),
    }


def read(kind: str, path: Path) -> object:
    """As the library does it."""
    run = RunFolder(path.parent)
    readers = {
        "checkpoint": run.load_checkpoint,
        "history": lambda: run.history,
        "dataset": lambda: dataset_from_arrays("fuzzed", **read_npz(path)),
        "grid": lambda: Grid.load(path).configs(),
        "image": lambda: Files([path], 32).read(0),
        "idx": lambda: read_idx(path),
        "config": lambda: run.config,
    }
    return readers.get(kind, lambda: predictions.read(path))()


def bytes_changed(rng: random.Random, raw: bytes) -> bytes:
    """Bytes changed, numbers made extreme, parts cut, doubled or added; one to four of these."""
    content = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        place, size = rng.randrange(len(content) + 1), rng.choice([1, 2, 4, 8])
        match rng.randrange(6):
            case 0:
                content[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                number = rng.choice(EXTREMES) % (1 << 8 * size)
                content[place : place + size] = number.to_bytes(size, rng.choice(["little", "big"]))
            case 2:
                del content[place : place + rng.randrange(1, 64)]
            case 3:
                other = rng.randrange(len(content) + 1)
                content[place:place] = content[other : other + rng.randrange(1, 64)]
            case 4:
                content[place:place] = rng.randbytes(size)
            case 5:
                place = rng.choice([i for i, byte in enumerate(content) if 48 <= byte <= 57] or [0])
                content[place:place] = b"9" * rng.choice([1, 3, 9, 18])
    return bytes(content)


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """Of an archive sometimes one member, packed again with a right checksum, so that it reaches what reads it."""
    if raw[:2] != b"PK" or rng.random() < 0.4:
        return bytes_changed(rng, raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    victim = rng.choice(list(members))
    members[victim] = bytes_changed(rng, members[victim][:256]) + members[victim][256:]  # where its header is
    with zipfile.ZipFile(file := io.BytesIO(), "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def bombs() -> dict[str, tuple[str, bytes, str]]:
    """Small files that say they are large: the reader, the file, and what it is refused with."""
    x, y = np.zeros((2, 4, 4), np.uint8), np.arange(2)

    def claiming(part: str, shape: tuple[int, ...], **arrays) -> bytes:
        """An .npz file one of whose arrays has another shape in its header."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        raw = io.BytesIO(packed(**arrays))
        with zipfile.ZipFile(raw, "a") as archive:
            archive.writestr(f"{part}.npy", header.getvalue())
        return raw.getvalue()

    def png(width: int, height: int) -> bytes:
        head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        parts = [head, b"IDAT" + zlib.compress(bytes(99)), b"IEND"]
        chunks = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    rows = pa.array(np.zeros(8_000_000, np.int8))
    parquet.write_table(pa.table({"label": rows, "prediction": rows}), many := io.BytesIO(), data_page_size=1 << 30)
    data = {"y_train": y, "x_test": x, "y_test": y}
    doubled = io.BytesIO(packed(x_train=x, **data))
    with zipfile.ZipFile(doubled, "a") as archive:
        archive.filelist += archive.filelist * 200  # what they point at is there once
        archive.comment = b"written anew"
    laughs = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    laughs += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    part = (
        "  - axes: {seed: ["
        + ", ".join(map(str, range(200)))
        + "], epochs: ["
        + ", ".join(map(str, range(1, 200)))
        + "]}\n"
    )
    axes = "".join(f"  {name}: [{', '.join(map(str, range(1, 11)))}]\n" for name in list(RunConfig.model_fields)[:12])
    return {
        "an array of 4 TB": ("dataset", claiming("x_train", (1 << 42,), **data), "too short for that"),
        "an array of 3 GB": ("dataset", claiming("x_train", (3 << 30,), **data), "too short for that"),
        "logits of 3 GB": ("arrays", claiming("logits", (2, 3 << 29), labels=y), "too short for that"),
        "200 arrays that are one": ("dataset", doubled.getvalue(), "overlap"),
        "16 million equal values": ("table", many.getvalue(), "more than so small a file"),
        "a billion laughs": ("grid", "\n".join([*laughs, "axes: {seed: *l11}"]).encode(), "more than 200,000 values"),
        "a list in itself": ("grid", b"axes: &a {seed: [1, *a]}", "more than 200,000 values"),
        "10^12 runs": ("grid", f"axes:\n{axes}".encode(), "1000000000000 runs"),
        "many parts of 39,800 runs": ("grid", f"grids:\n{part * 5}".encode(), "199000 runs"),
        "169 megapixels": ("image", png(13_000, 13_000), "in so small a file"),
        "4 gigapixels": ("image", png(65_000, 65_000), "exceeds limit|in so small a file"),
    }


def limit_memory(room: int = ROOM) -> None:
    """No more address space than this from here on."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + room, now + room))


def batch(folder: Path, inputs: int, seed: int) -> Counter:
    """Inputs of every kind in turn; what is neither read nor refused in words is a crash, and its file is kept."""
    rng, count, found = random.Random(seed), Counter(), sources(folder)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind, (file, sound) in found.items():  # all can be read, and nothing is left to import
        for raw in sound if kind != "config" else []:  # whose folder is named after another
            (folder / file).write_bytes(raw)
            assert read(kind, folder / file) is not None, kind
    limit_memory()
    for i in range(inputs):
        kind = list(found)[i % len(found)]
        path = folder / found[kind][0]
        path.write_bytes(mutated(rng, rng.choice(found[kind][1])))
        try:
            refused = read(kind, path) is None
        except Exception as error:
            refused = isinstance(error, NO_IMAGE if kind == "image" else ClamkitError)
            if not refused:
                count["crashes"] += 1
                print(f"{kind} {i}:", *traceback.format_exception(error)[-3:], file=sys.stderr)
                path.rename(folder / f"crash-{i}-{path.name}")
        count["refused in words" if refused else "read"] += 1
        for leftover in folder.glob("*.damaged-*"):
            leftover.unlink()
    count["inputs"] = inputs
    return count


def disarmed(folder: Path) -> Counter:
    """Each bomb refused for what it is, none of them with more than 100 MB of memory."""
    count, files, found = Counter({"crashes": 0}), sources(folder), bombs()
    for kind in ("dataset", "arrays", "table", "grid", "image"):
        (folder / files[kind][0]).write_bytes(files[kind][1][0])
        read(kind, folder / files[kind][0])
    limit_memory()
    before = peak_mb()
    for name, (kind, content, words) in found.items():
        path = folder / files[kind][0]
        path.write_bytes(content)
        try:
            read(kind, path)
            said = "nothing"
        except (ClamkitError, *NO_IMAGE) as error:
            said = str(error)
        taken = round(peak_mb() - before)
        if not re.search(words, said) or taken > 100 or len(content) > 60_000:
            print(f"{name}: {len(content)} bytes, {taken} MB taken, said {said[:200]}", file=sys.stderr)
            count["crashes"] += 1
        count["bombs"] += 1
    return count


def fuzzed(folder: Path, inputs: int, seed: int = 0) -> Counter:
    """In processes of their own, so that a death of one is seen too."""
    count = Counter({"crashes": 0})
    sizes = [0, *(min(BATCH, inputs - start) for start in range(0, inputs, BATCH))]
    for turn, size in enumerate(sizes):
        place = folder / f"batch{turn}"
        place.mkdir()
        numbers = map(str, (size, seed + turn))
        words = [sys.executable, "-m", "tests.faults.fuzzing", str(place), *numbers]
        result = subprocess.run(words, capture_output=True, text=True)
        found = json.loads(result.stdout.splitlines()[-1]) if not result.returncode else {"crashes": 1}
        if found.get("crashes"):  # else it is what the readers in C have to say of each file
            sys.stderr.write(result.stderr)
        count.update(found)
    return count


if __name__ == "__main__":
    place, inputs, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(batch(place, inputs, seed) if inputs else disarmed(place)))
