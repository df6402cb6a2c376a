"""Files are whole or not there, whatever happens while they are written."""

import errno
import hashlib
import json
import os

import numpy as np
import pytest

from clamkit.errors import ClamkitError
from clamkit.files import atomic, flush, read_arrays, sha256, write_json


def test_a_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "file"
    with atomic(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent == tmp_path, "the same disk, or it could not be renamed"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def write():
        with atomic(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("flushed") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("renamed") or replace(*paths))
    write_json(tmp_path / "file.json", {})
    assert done == ["flushed", "renamed"]


def test_a_folder_that_cannot_be_flushed_is_passed_over_and_a_disk_that_fails_is_not(tmp_path, monkeypatch):
    def failing(number):
        def fsync(_):
            raise OSError(number, os.strerror(number))

        return fsync

    flush(tmp_path / "not there")
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    flush(tmp_path)
    for number in (errno.EIO, errno.ENOSPC):
        monkeypatch.setattr(os, "fsync", failing(number))
        with pytest.raises(OSError, match=os.strerror(number)):
            flush(tmp_path)


def test_two_writers_do_not_meet(tmp_path):
    path = tmp_path / "file"
    with atomic(path) as one, atomic(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one", "the last to end"


def test_json_reads_back(tmp_path):
    content = {"ä": [1, 2.5, None, True], "b": {"c": "×"}}
    write_json(tmp_path / "file.json", content)
    raw = (tmp_path / "file.json").read_bytes()
    assert json.loads(raw) == content
    assert raw.endswith(b"\n")
    with pytest.raises(TypeError):
        write_json(tmp_path / "file.json", {"not": object()})
    assert (tmp_path / "file.json").read_bytes() == raw


def test_sha256_is_hashlibs():
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(bytes(1000)) == hashlib.sha256(bytes(1000)).hexdigest()


def test_arrays_and_what_is_none(tmp_path):
    np.savez(tmp_path / "good.npz", a=[1, 2])
    assert read_arrays(tmp_path / "good.npz")["a"].tolist() == [1, 2]
    (tmp_path / "text.npz").write_text("label,prediction\n")
    np.savez(tmp_path / "objects.npz", a=np.array([None]))
    (tmp_path / "half.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:-30])
    for name, words in (
        ("text", "is no .npz file"),
        ("half", "is no .npz file"),
        ("objects", "plain arrays: save texts with"),
    ):
        with pytest.raises(ClamkitError, match=words) as raised:
            read_arrays(tmp_path / f"{name}.npz")
        assert "unsafely" not in str(raised.value) or name == "objects"
