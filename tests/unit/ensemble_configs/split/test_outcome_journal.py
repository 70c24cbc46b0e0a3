# SPDX-License-Identifier: Apache-2.0
"""Each line of a journal is read once, whoever was killed when: the writer, or the reader before it kept its cursor."""

import multiprocessing
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from ensemble_configs.split import outcome_journal
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.outcome_journal import Cursor, JournalReader, JournalWriter
from trireme.base.errors import RequestError


def write(writer: JournalWriter, number: int) -> None:
    writer.write(rollout=3, step=1, release=2, outcome=Outcome(arm="candidate", num_tokens=number))


def read_all(reader: JournalReader, cursor: Cursor) -> tuple[list[int], Cursor]:
    found: list[int] = []
    while (part := reader.read(cursor)).lines:
        found += [line.outcome.num_tokens for line in part.lines]
        cursor = part.cursor
    return found, part.cursor


def test_lines_come_once_in_the_order_of_each_writer(tmp_path: Path) -> None:
    writers = [JournalWriter(tmp_path / "new", name) for name in ("ensemble-1", "bls-1")]
    for number in range(20):
        write(writers[number % 2], number)
    found, cursor = read_all(JournalReader(tmp_path / "new"), {})
    assert sorted(found) == list(range(20))
    write(writers[0], 20)
    assert read_all(JournalReader(tmp_path / "new"), cursor)[0] == [20]


def test_a_journal_without_a_folder_is_empty(tmp_path: Path) -> None:
    assert JournalReader(tmp_path / "none").read({}).lines == []


def test_a_reader_that_dies_before_it_keeps_its_cursor_reads_the_lines_again(tmp_path: Path) -> None:
    writer, reader = JournalWriter(tmp_path, "a"), JournalReader(tmp_path)
    write(writer, 1)
    writer.close()
    assert [line.outcome.num_tokens for line in reader.read({}).lines] == [1]
    assert [line.outcome.num_tokens for line in reader.read({}).lines] == [1]


def test_a_file_that_is_shorter_than_the_cursor_says_is_left_as_it_is(tmp_path: Path) -> None:
    writer, reader = JournalWriter(tmp_path, "a"), JournalReader(tmp_path)
    write(writer, 1)
    writer.close()
    [path] = tmp_path.iterdir()
    beyond = {path.name: path.stat().st_size + 100}
    assert reader.read(beyond) == ([], beyond)
    assert reader.read({path.name: 0}).lines, "nothing was removed"


def test_a_cursor_within_a_line_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    writer, reader = JournalWriter(tmp_path, "a"), JournalReader(tmp_path)
    write(writer, 1)
    writer.close()
    [path] = tmp_path.iterdir()
    for begin in (1, path.stat().st_size - 1):
        with pytest.raises(RequestError, match="in the middle of a line"):
            reader.read({path.name: begin})
    assert reader.read({}).lines


def test_a_part_is_as_short_as_it_is_asked_for_and_holds_whole_lines(tmp_path: Path) -> None:
    writer, reader = JournalWriter(tmp_path, "a"), JournalReader(tmp_path)
    for number in range(10):
        write(writer, number)
    found: list[int] = []
    cursor: Cursor = {}
    while (part := reader.read(cursor, max_bytes=10)).lines:
        found += [line.outcome.num_tokens for line in part.lines]
        cursor = part.cursor
        assert len(part.lines) == 1
    assert found == list(range(10))


def test_a_file_goes_when_it_is_read_and_its_writer_has_gone(tmp_path: Path) -> None:
    writer, reader = JournalWriter(tmp_path, "a"), JournalReader(tmp_path)
    write(writer, 1)
    _, cursor = read_all(reader, {})
    assert reader.read(cursor).cursor, "its writer may write more"
    writer.close()
    assert reader.read(cursor).cursor == {}
    assert list(tmp_path.iterdir()) == []


def write_and_die(folder: Path) -> None:
    writer = JournalWriter(folder, "killed")
    for number in range(100):
        write(writer, number)
    [path] = folder.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"rollout": 3, "st')
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_writer_that_is_killed_loses_no_line_and_its_torn_line_is_left_out(tmp_path: Path) -> None:
    victim = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(tmp_path,))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    reader = JournalReader(tmp_path)
    found, cursor = read_all(reader, {})
    assert found == list(range(100))
    assert (cursor, list(tmp_path.iterdir())) == ({}, [])


@pytest.mark.parametrize("seed", range(5))
def test_many_writers_and_a_reader_that_dies_count_each_line_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_journal, "_MAX_FILE_BYTES", 2_000)
    monkeypatch.setattr(outcome_journal, "_MAX_READ_BYTES", 1_500)
    rng = random.Random(seed)

    def work(first: int) -> None:
        writer = JournalWriter(tmp_path, f"writer-{first}")
        for number in range(first, first + 200):
            write(writer, number)
        writer.close()

    threads = [threading.Thread(target=work, args=(1000 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    counted: list[int] = []
    cursor: Cursor = {}
    while len(counted) < 800 or JournalReader(tmp_path).read(cursor).lines:
        part = JournalReader(tmp_path).read(cursor)
        if rng.random() < 0.3:
            continue  # it died before its transaction
        counted += [line.outcome.num_tokens for line in part.lines]
        cursor = part.cursor
    for thread in threads:
        thread.join()
    assert sorted(counted) == sorted(number for first in range(0, 4000, 1000) for number in range(first, first + 200))
