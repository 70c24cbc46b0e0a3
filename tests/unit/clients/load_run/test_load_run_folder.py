# SPDX-License-Identifier: Apache-2.0
"""A run's folder: what of it is used when it is not whole, and which one is not written over."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from load_records import MS, record, steady

from clients.load_run.load_record import LoadRecord, check_record
from clients.load_run.run_folder import RunFiles, RunInfo, read_run, refuse_used, write_run
from clients.load_run.server_samples import ServerSample
from trireme.base.errors import ServingError, SpecError

INFO = RunInfo(tool="by hand", commands=[], url="here:1", model="ensemble", is_open=True)
SAMPLES = [ServerSample(at * 10**8, {"trireme_requests_running{}": 1.0}) for at in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run of 20 requests."""
    write_run(tmp_path / "run", INFO, steady(20), SAMPLES)
    return tmp_path / "run"


def test_what_is_written_is_read_in_the_order_in_which_it_was_due(tmp_path: Path) -> None:
    write_run(tmp_path / "run", INFO, [*reversed(steady(20))], SAMPLES)
    run = read_run(tmp_path / "run")
    assert run.records == steady(20)
    assert run.samples == SAMPLES
    assert run.info == INFO


def test_a_run_that_is_not_over_can_be_read_and_is_marked(tmp_path: Path) -> None:
    with RunFiles(tmp_path / "run", INFO) as files:
        files.add(steady(3), [])
        run = read_run(tmp_path / "run")
    assert run.records == steady(3)
    assert run.info.was_interrupted


@pytest.mark.parametrize("name", ["requests.jsonl", "server.jsonl"])
def test_a_cut_last_line_is_left_out_and_the_report_says_so(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-10])
    run = read_run(folder)
    assert (len(run.records), len(run.samples)) == ((19, 4) if name == "requests.jsonl" else (20, 3))
    assert (
        run.info.note
        == f"The last line of {name} is cut; the {19 if name == 'requests.jsonl' else 3} in front of it are used."
    )


@pytest.mark.parametrize("name", ["requests.jsonl", "server.jsonl"])
def test_a_damaged_line_is_told_with_its_number(folder: Path, name: str) -> None:
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:-10] + b"\n"
    (folder / name).write_bytes(b"".join(lines))
    with pytest.raises(SpecError, match=f"{folder / name}, line 3: "):
        read_run(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": [1]}, "`tokens` has 1 numbers and `times_ns` 2"),
        ({"tokens": [1, -1]}, "`tokens` has a number below 0: -1"),
        ({"input_tokens": -3}, "`input_tokens` is below 0: -3"),
        ({"times_ns": [9 * MS, 8 * MS]}, "`times_ns` has a chunk that came before"),
        ({"due_ns": 9 * MS}, "`times_ns` begins at 8000000, before `due_ns`"),
        ({"end_ns": 7 * MS}, r"`end_ns` \(7000000\) is before the last chunk \(9000000\)"),
        ({"times_ns": [], "tokens": [], "end_ns": 4 * MS}, r"`end_ns` \(4000000\) is before the start \(5000000\)"),
        ({"tokens": ["1", 1]}, r"Expected `int`, got `str` - at `\$\.tokens"),
    ],
)
def test_a_record_that_cannot_be_is_told_with_file_line_and_field(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    good = record(5, [(8, 1), (9, 1)])
    check_record(good)
    path = folder / "requests.jsonl"
    wrong = msgspec.json.encode(msgspec.to_builtins(good) | changes)
    path.write_bytes(path.read_bytes() + wrong + b"\n")
    with pytest.raises(SpecError, match=rf"requests\.jsonl, line 21: {message}"):
        read_run(folder)


@pytest.mark.parametrize("name", ["run.json", "requests.jsonl", "server.jsonl"])
def test_a_folder_with_any_file_of_a_run_is_used(tmp_path: Path, name: str) -> None:
    refuse_used(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(SpecError, match=rf"holds a run already \({name}\)"):
        refuse_used(tmp_path)


def test_a_folder_that_cannot_be_made_is_told_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServingError, match=r"/file/run/run\.json cannot be written: Not a directory; .*--out"):
        write_run(tmp_path / "file" / "run", INFO, list[LoadRecord](), [])
