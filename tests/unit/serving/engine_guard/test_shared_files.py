# SPDX-License-Identifier: Apache-2.0
"""The files of an engine's processes in shared memory: told from those of others, and removed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.engine_guard.shared_files import SharedFiles

# Maps a file under a name that it has no more, as a semaphore's, and one under its own.
_PROGRAM = """
import mmap, os, sys
kept = []
for name, last in (("ring", "ring"), ("temporary", "sem.mine")):
    with open(name, "w+b") as file:
        file.truncate(4096)
        kept.append(mmap.mmap(file.fileno(), 4096))
    os.rename(name, last)
open(f"note_{os.getpid()}", "w").close()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    (folder / "older").touch()
    return folder


@pytest.fixture
def engine(memory: Path) -> Iterator[tuple[SharedFiles, "subprocess.Popen[bytes]"]]:
    files = SharedFiles((f"{memory}/note_{{pid}}",), memory)
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], cwd=memory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield files, process
        process.kill()


def test_what_a_killed_process_maps_or_names_is_removed_and_nothing_else(
    memory: Path, engine: tuple[SharedFiles, "subprocess.Popen[bytes]"]
) -> None:
    files, process = engine
    (memory / "of_others").touch()
    (memory / f"note_{os.getpid()}").touch()
    found = files.look([process.pid])
    assert found == [f"note_{process.pid}", "ring", "sem.mine"]
    assert files.look([process.pid]) == [], "each is told once"
    process.kill()
    process.wait()
    files.remove()
    assert sorted(path.name for path in memory.iterdir()) == sorted(["of_others", "older", f"note_{os.getpid()}"])
    files.remove()  # of what is gone already nothing happens


def test_a_file_that_none_of_ours_has_in_two_looks_is_somebody_elses(
    engine: tuple[SharedFiles, "subprocess.Popen[bytes]"],
) -> None:
    files, process = engine
    assert files.look([]) == []
    assert files.look([]) == []
    assert files.look([process.pid]) == []


def test_a_machine_without_shared_memory_and_a_process_that_has_ended_have_no_files(tmp_path: Path) -> None:
    assert SharedFiles(folder=tmp_path / "nowhere").look([os.getpid()]) == []
    files = SharedFiles(folder=tmp_path)
    (tmp_path / "new").touch()
    assert files.look([2**22 + 1]) == []
