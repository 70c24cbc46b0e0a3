# SPDX-License-Identifier: Apache-2.0
"""The results of a batch as their own journal: what a crash leaves behind, and what is not ours."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from clients.batch.line_error import LineError
from clients.batch.result_lines import answer_line, error_line
from clients.batch.results_file import ResultsFile
from trireme.base.errors import SpecError

HASH, OTHER_HASH = "ab" * 32, "cd" * 32


def results(path: Path, *, sha256: str = HASH, last_line: int = 9) -> ResultsFile:
    return ResultsFile(path, input_sha256=sha256, last_line=last_line)


def append(file: ResultsFile, *numbers: int) -> None:
    for number in numbers:
        file.append(number, answer_line(file.id_of(number), str(number), {"text": "ü" * 9}), is_failed=False)


def test_what_is_done_and_failed_is_known_when_it_is_opened_again(tmp_path: Path) -> None:
    with results(tmp_path / "out") as file:
        append(file, 2, 7)
        line = error_line(file.id_of(4), 4, None, LineError("no", code="c"))
        file.append(4, line, is_failed=True)
    with results(tmp_path / "out") as file:
        assert (file.num_done, file.num_failed, file.num_cut_bytes) == (3, 1, 0)
        assert [number for number in range(10) if file.has(number)] == [2, 4, 7]


def test_its_folders_are_made(tmp_path: Path) -> None:
    with results(tmp_path / "a" / "b" / "out") as file:
        append(file, 1)
    assert (tmp_path / "a" / "b" / "out").stat().st_size


def test_a_line_torn_at_any_byte_is_cut_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with results(path) as file:
        append(file, 1, 2)
        begin = path.stat().st_size
        append(file, 3)
    whole = path.read_bytes()
    for end in range(begin, len(whole)):
        path.write_bytes(whole[:end])
        with results(path) as file:
            assert (file.num_done, file.has(3), file.num_cut_bytes) == (2, False, end - begin)
            append(file, 3)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("my notes\n", id="something else"),
        pytest.param("my notes", id="something else without a newline"),
        pytest.param('{"id":"batch_req_1_3","response":null,"error":null}\n', id="another maker's results"),
        pytest.param("{}\n", id="JSON without an id"),
        pytest.param("\0" * 50 + "\n", id="a hole"),
    ],
)
def test_a_file_that_is_not_this_job_s_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(SpecError, match="line 1 is not a result of this input file"):
        results(path)
    assert path.read_text() == text


def test_the_results_of_another_input_are_refused(tmp_path: Path) -> None:
    with results(tmp_path / "out") as file:
        append(file, 1)
    with pytest.raises(SpecError, match="byte for byte"):
        results(tmp_path / "out", sha256=OTHER_HASH)
    whole = (tmp_path / "out").read_bytes()
    (tmp_path / "out").write_bytes(whole[:-20])  # torn as well
    with pytest.raises(SpecError, match="byte for byte"):
        results(tmp_path / "out", sha256=OTHER_HASH)


@pytest.mark.parametrize("number", ["10", "0", "-1", "x", ""])
def test_a_result_of_a_line_that_the_input_has_not_is_refused(tmp_path: Path, number: str) -> None:
    with results(tmp_path / "out") as file:
        prefix = file.id_of(1).removesuffix("1")
    (tmp_path / "out").write_text(json.dumps({"id": prefix + number, "response": None, "error": None}) + "\n")
    with pytest.raises(SpecError):
        results(tmp_path / "out")


def test_a_line_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with results(tmp_path / "out") as file:
        append(file, 1)
    path = tmp_path / "out"
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(SpecError, match=r"line 2 .* is there twice"):
        results(path)


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with results(tmp_path / "out"), pytest.raises(SpecError, match="another run writes to it"):
        results(tmp_path / "out")
    with results(tmp_path / "out") as file:
        assert file.num_done == 0


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null", "/dev/zero"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(SpecError, match=r"is a device or a pipe|cannot be written"):
        ResultsFile(Path(device), input_sha256="0" * 64, last_line=1)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        results(tmp_path)


def _write_for_ever(path: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with results(path, last_line=1_000_000) as file:
        for number in range(1, 1_000_001):
            if not file.has(number):
                append(file, number)
            if number == 50:
                ready.set()


def test_a_writer_killed_in_the_middle_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    path, context = tmp_path / "out", multiprocessing.get_context("spawn")
    for _ in range(3):
        ready = context.Event()
        writer = context.Process(target=_write_for_ever, args=(path, ready))
        writer.start()
        assert ready.wait(30)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    with results(path, last_line=1_000_000) as file:
        assert file.num_done >= 50
        assert all(file.has(number) for number in range(1, file.num_done + 1))
