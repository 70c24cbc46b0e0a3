# SPDX-License-Identifier: Apache-2.0
"""Hashes of files: what `sha256sum` says, and read again only where a file may have changed."""

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from ensemble_configs.releases.file_hashes import HashMemory, hash_file, hash_files, hash_listing

LATER_NS = 10_000_000_000


def later() -> int:
    """Return a time that is well past the changes of this test, in nanoseconds."""
    return time.time_ns() + LATER_NS


def test_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    names = ["b", "a/x", "a b", "a-", "é"]
    (tmp_path / "a").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 100)
    hashes = dict(zip(names, hash_files([tmp_path / name for name in names]), strict=True))
    command = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum"
    printed = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert hash_listing(hashes) == hashlib.sha256(printed.encode()).hexdigest()


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    first = HashMemory(tmp_path / "memory", later)
    assert hash_files([file], memory=first) == [hash_file(file)]
    # A memory that says something else shows that the file was not read.
    lie = "0" * 64
    memory = tmp_path / "memory"
    memory.write_text(memory.read_text().replace(hash_file(file), lie))
    assert hash_files([file], memory=HashMemory(memory, later)) == [lie]


@pytest.mark.parametrize("is_time_put_back", [False, True])
def test_a_file_that_was_altered_is_read_again(tmp_path: Path, *, is_time_put_back: bool) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    before = file.stat()
    hash_files([file], memory=HashMemory(tmp_path / "memory", later))
    time.sleep(0.02)  # more than a tick of the file system's clock
    file.write_bytes(b"2")
    if is_time_put_back:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hash_files([file], memory=HashMemory(tmp_path / "memory", later)) == [hashlib.sha256(b"2").hexdigest()]


def test_a_file_that_changed_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    memory = HashMemory(tmp_path / "memory")
    hash_files([file], memory=memory)
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize("text", ["", "[]", "{broken", '{"x": 1}'])
def test_a_memory_that_cannot_be_read_is_an_empty_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    (tmp_path / "memory").write_text(text)
    assert hash_files([file], memory=HashMemory(tmp_path / "memory", later)) == [hash_file(file)]


def test_a_memory_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1")
    assert hash_files([file], memory=HashMemory(file / "below a file", later)) == [hash_file(file)]
