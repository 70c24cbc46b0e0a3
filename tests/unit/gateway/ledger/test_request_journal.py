# SPDX-License-Identifier: Apache-2.0
"""The journal of requests: each is loaded once, whoever is killed, and a full disk costs a line and not a file."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gateway.ledger import request_journal
from gateway.ledger.journal_loader import JournalLoader
from gateway.ledger.journal_place import JournalPlace
from gateway.ledger.ledger_row import UNSETTLED, LedgerRow
from gateway.ledger.request_journal import RequestJournal


def begun(name: str) -> LedgerRow:
    return LedgerRow(id=name, begun_at_s=5.0, key_id="k", tenant="t", endpoint="/v1/completions", model="demo")


def ended(name: str) -> LedgerRow:
    return msgspec.structs.replace(begun(name), prompt_tokens=3, completion_tokens=4, duration_s=0.5, finish="stop")


class Kept:
    """The rows that a loader has brought."""

    def __init__(self) -> None:
        self.rows: list[LedgerRow] = []
        self.places: dict[str, JournalPlace] = {}
        self.is_away = False

    def add(self, rows: Sequence[LedgerRow], place: JournalPlace | None = None) -> None:
        if self.is_away:
            raise ConnectionError
        self.rows += rows
        if place is not None:
            self.places[place.file] = place

    def journal_place(self, file: str) -> JournalPlace:
        return self.places.get(file, JournalPlace(file))

    def forget_journal(self, file: str) -> None:
        self.places.pop(file, None)

    @property
    def ends(self) -> list[tuple[str, str]]:
        return [(row.id, row.finish) for row in self.rows]


def test_a_request_is_loaded_once_it_has_ended(tmp_path: Path) -> None:
    journal, kept = RequestJournal(tmp_path), Kept()
    loader = JournalLoader(tmp_path, kept)
    a, b = journal.begin(begun("a")), journal.begin(begun("b"))
    a.end(ended("a"))
    loader.load()
    assert kept.rows == [ended("a")]
    b.end(ended("b"))
    loader.load()
    loader.load()
    assert kept.ends == [("a", "stop"), ("b", "stop")]
    journal.close()
    loader.load()
    assert list(tmp_path.glob("*.jsonl")) == []
    assert loader.num_waiting_bytes() == 0
    assert len(kept.rows) == 2


def test_a_request_that_runs_when_the_journal_closes_is_loaded_with_its_end(tmp_path: Path) -> None:
    journal, kept = RequestJournal(tmp_path), Kept()
    loader = JournalLoader(tmp_path, kept)
    a = journal.begin(begun("a"))
    journal.close()
    loader.load()
    assert kept.rows == []
    a.end(ended("a"))
    loader.load()
    assert kept.ends == [("a", "stop")]
    assert list(tmp_path.glob("*.jsonl")) == []


def test_both_lines_of_a_request_are_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_journal, "_MAX_FILE_BYTES", 1)
    journal, kept = RequestJournal(tmp_path), Kept()
    running = {name: journal.begin(begun(name)) for name in "abc"}
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    loader = JournalLoader(tmp_path, kept)
    for name in "cab":
        running[name].end(ended(name))
        loader.load()
    assert [name for name, _ in kept.ends] == ["c", "a", "b"]
    assert len(list(tmp_path.glob("*.jsonl"))) == 1  # the last one takes requests


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_request_journal import RequestJournal, begun, ended
journal = RequestJournal(Path(sys.argv[1]))
done, running = journal.begin(begun("done")), journal.begin(begun("running"))
done.end(ended("done"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_a_killed_process_what_ended_counts_and_what_ran_is_unsettled(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *paths], check=False)
    assert killed.returncode == -signal.SIGKILL
    kept = Kept()
    JournalLoader(tmp_path, kept).load()
    assert kept.rows[0] == ended("done")
    assert kept.ends == [("done", "stop"), ("running", UNSETTLED)]
    assert list(tmp_path.glob("*.jsonl")) == []


def test_what_was_not_taken_is_loaded_the_next_time(tmp_path: Path) -> None:
    journal, kept = RequestJournal(tmp_path), Kept()
    loader = JournalLoader(tmp_path, kept)
    journal.begin(begun("a")).end(ended("a"))
    journal.close()
    kept.is_away = True
    with pytest.raises(ConnectionError):
        loader.load()
    assert loader.num_waiting_bytes() > 0
    kept.is_away = False
    loader.load()
    assert kept.ends == [("a", "stop")]


def test_of_two_loaders_one_loads_until_it_ends(tmp_path: Path) -> None:
    journal, first, second = RequestJournal(tmp_path), Kept(), Kept()
    loaders = [JournalLoader(tmp_path, kept) for kept in (first, second)]
    journal.begin(begun("a")).end(ended("a"))
    for loader in loaders:
        loader.load()
    assert (len(first.rows), len(second.rows)) == (1, 0)
    loaders[0].close()
    journal.begin(begun("b")).end(ended("b"))
    loaders[1].load()
    assert second.ends == [("a", "stop"), ("b", "stop")]  # for this store was told of no place


def test_a_line_that_a_full_disk_cut_off_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, kept = RequestJournal(tmp_path), Kept()
    a, b, c = (journal.begin(begun(name)) for name in "abc")
    a.end(ended("a"))
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
        with pytest.raises(OSError, match="only a part"):
            b.end(ended("b"))
    c.end(ended("c"))
    journal.close()
    JournalLoader(tmp_path, kept).load()
    assert kept.ends == [("a", "stop"), ("c", "stop"), ("b", UNSETTLED)]


def test_a_loader_that_lost_its_place_loads_what_is_behind_that_of_the_ledger(tmp_path: Path) -> None:
    journal, kept = RequestJournal(tmp_path), Kept()
    running = {name: journal.begin(begun(name)) for name in "abc"}
    running["a"].end(ended("a"))
    first = JournalLoader(tmp_path, kept)
    first.load()
    first.close()
    running["b"].end(ended("b"))
    journal.begin(begun("d"))
    second = JournalLoader(tmp_path, kept)
    second.load()
    assert kept.ends == [("a", "stop"), ("b", "stop")]
    second.close()
    del journal, running["b"]
    os.close(running["c"]._file._fd)  # the process dies
    JournalLoader(tmp_path, kept).load()
    assert kept.ends == [("a", "stop"), ("b", "stop"), ("c", UNSETTLED), ("d", UNSETTLED)]
    assert kept.places == {}


def test_a_file_that_a_killed_loader_could_not_remove_is_not_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, kept = RequestJournal(tmp_path), Kept()
    journal.begin(begun("a")).end(ended("a"))
    journal.begin(begun("b"))
    os.close(journal._file._fd)  # type: ignore[union-attr]
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_args, **_options: sys.exit("killed"))
        first = JournalLoader(tmp_path, kept)
        with pytest.raises(SystemExit):
            first.load()
    first.close()
    assert kept.ends == [("a", "stop"), ("b", UNSETTLED)]
    JournalLoader(tmp_path, kept).load()
    assert kept.ends == [("a", "stop"), ("b", UNSETTLED)]
    assert list(tmp_path.glob("*.jsonl")) == []
    assert kept.places == {}


KILLED_BEFORE_ITS_NAME = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_request_journal import RequestJournal, begun
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
RequestJournal(Path(sys.argv[1])).begin(begun("a"))
"""


def test_a_draft_that_a_killed_process_left_is_removed_and_one_of_this_moment_is_not(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    killed = subprocess.run([sys.executable, "-c", KILLED_BEFORE_ITS_NAME, str(tmp_path), *paths], check=False)
    assert killed.returncode == -signal.SIGKILL
    [draft] = tmp_path.iterdir()
    assert draft.suffix == ".draft"
    kept = Kept()
    loader = JournalLoader(tmp_path, kept)
    loader.load()
    assert draft.exists()  # it may be that of a process that is about to name it
    os.utime(draft, (draft.stat().st_atime, draft.stat().st_mtime - 120))
    RequestJournal(tmp_path).begin(begun("b")).end(ended("b"))
    loader.load()
    assert not draft.exists()
    assert kept.ends == [("b", "stop")]
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".jsonl"} == {"loader.lock"}


def test_a_draft_that_was_taken_from_its_process_costs_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def taken(draft: Path, path: Path) -> Path:
        draft.unlink()  # the process was stopped for a minute
        return replace(draft, path)

    journal = RequestJournal(tmp_path)
    with monkeypatch.context() as stopped:
        stopped.setattr(Path, "replace", taken)
        with pytest.raises(FileNotFoundError):  # the ledger keeps the row in memory then
            journal.begin(begun("a"))
    journal.begin(begun("b")).end(ended("b"))
    kept = Kept()
    JournalLoader(tmp_path, kept).load()
    assert kept.ends == [("b", "stop")]
