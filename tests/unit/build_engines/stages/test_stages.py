# SPDX-License-Identifier: Apache-2.0
"""Stages run once, are found again by what made them, and end with all their processes."""

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from build_engines.stages.stage_list import Command, Estimate, Stage, run_stages
from build_engines.stages.stage_process import last_lines
from build_engines.stages.work_folder import WorkFolder
from trireme.base.errors import BuildError
from trireme.base.project_files import CODE_ROOT


class Recorder:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.tail: list[str] = []
        self.started = threading.Event()

    def stage_started(self, _number: int, _total: int, stage: Stage) -> None:
        self.events.append(("started", stage.name))
        self.started.set()

    def stage_finished(self, _number: int, _total: int, stage: Stage, _duration_s: float, *, is_reused: bool) -> None:
        self.events.append(("reused" if is_reused else "finished", stage.name))

    def stage_failed(self, _number: int, _total: int, stage: Stage, _log: Path | None, tail: Sequence[str]) -> None:
        self.events.append(("failed", stage.name))
        self.tail = list(tail)


def writing(text: str, name: str = "out.txt") -> Callable[[Path, Path], None]:
    def work(folder: Path, _work: Path) -> None:
        (folder / name).write_text(text)

    return work


def python(code: str) -> Command:
    return Command((sys.executable, "-c", code))


def upper(after: str, name: str) -> Command:
    """Return a command that makes its output from that of another stage, by relative paths."""
    return python(
        "from pathlib import Path; "
        f"Path('{name}.partial/out.txt').write_text(Path('{after}/out.txt').read_text().upper())"
    )


def two_stages(text: str = "weights", **key: str) -> list[Stage]:
    return [
        Stage("first", "write", writing(text), key={"text": text}),
        Stage("second", "shout", upper("first", "second"), key=dict(key), after=("first",)),
    ]


@contextlib.contextmanager
def work_in(path: Path) -> Iterator[WorkFolder]:
    with WorkFolder.open(path / "work", wait_s=0) as work:
        yield work


def run(stages: list[Stage], path: Path) -> list[tuple[str, str]]:
    recorder = Recorder()
    with work_in(path) as work:
        run_stages(stages, work, recorder)
    return recorder.events


def test_stages_run_in_order_and_read_what_is_before_them(tmp_path: Path) -> None:
    events = run(two_stages(), tmp_path)
    assert events == [("started", "first"), ("finished", "first"), ("started", "second"), ("finished", "second")]
    assert (tmp_path / "work/second/out.txt").read_text() == "WEIGHTS"


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    run(two_stages(), tmp_path)
    assert run(two_stages(), tmp_path) == [("reused", "first"), ("reused", "second")]


def test_a_changed_setting_runs_its_stage_and_what_reads_it(tmp_path: Path) -> None:
    run(two_stages(), tmp_path)
    assert [event for event, _ in run(two_stages("other"), tmp_path)] == ["started", "finished"] * 2
    assert (tmp_path / "work/second/out.txt").read_text() == "OTHER"
    assert run(two_stages("other", level="2"), tmp_path)[0] == ("reused", "first")


def test_a_stage_that_makes_the_same_anew_spares_those_behind_it(tmp_path: Path) -> None:
    run(two_stages(), tmp_path)
    (tmp_path / "work/first.stamp.json").unlink()
    assert run(two_stages(), tmp_path) == [("started", "first"), ("finished", "first"), ("reused", "second")]


@pytest.mark.parametrize("harm", ["altered", "missing", "added"])
def test_outputs_that_were_touched_are_made_again(tmp_path: Path, harm: str) -> None:
    run(two_stages(), tmp_path)
    output = tmp_path / "work/first/out.txt"
    match harm:
        case "altered":
            output.write_text("weighty")
        case "missing":
            output.unlink()
        case "added":
            (tmp_path / "work/first/more.txt").write_text("")
    assert run(two_stages(), tmp_path)[0] == ("started", "first")
    assert output.read_text() == "weights"
    assert not (tmp_path / "work/first/more.txt").exists()


def test_a_failed_tool_is_shown_with_its_log_and_the_finished_stages_stay(tmp_path: Path) -> None:
    failing = python(
        "for n in range(30): print('line', n)\nopen('second.partial/half', 'w').write('x')\nraise SystemExit(3)"
    )
    stages = [two_stages()[0], Stage("second", "fail", failing, key={}, after=("first",))]
    recorder = Recorder()
    with work_in(tmp_path) as work, pytest.raises(BuildError) as caught:
        run_stages(stages, work, recorder)
    assert "stage second failed" in caught.value.message
    assert "ended with status 3" in caught.value.message
    assert str(tmp_path / "work/logs/02-second.log") in caught.value.message
    assert "what is finished is kept (first): go on with --resume" in caught.value.message
    assert recorder.tail == [f"line {n}" for n in range(10, 30)]
    assert not (tmp_path / "work/second.partial").exists()
    assert run(two_stages(), tmp_path)[0] == ("reused", "first")


def test_a_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    stage = Stage("only", "x", Command(("no-such-tool", "--flag")), key={})
    with work_in(tmp_path) as work, pytest.raises(BuildError, match="no-such-tool ended with status 127"):
        run_stages([stage], work, Recorder())
    assert "cannot start no-such-tool: No such file or directory" in last_lines(tmp_path / "work/logs/01-only.log")[-1]


def test_a_killed_tool_is_told_from_one_that_failed(tmp_path: Path) -> None:
    stage = Stage("only", "x", python("import os; os.kill(os.getpid(), 9)"), key={})
    with work_in(tmp_path) as work, pytest.raises(BuildError, match="was ended by SIGKILL, as the kernel does when"):
        run_stages([stage], work, Recorder())


def test_outputs_that_fail_their_check_are_no_outputs(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        if not (folder / "rank1.engine").is_file():
            raise BuildError("trtllm-build wrote no rank1.engine, and said nothing")

    stage = Stage("engine", "x", writing("", "rank0.engine"), key={}, check=check)
    with work_in(tmp_path) as work, pytest.raises(BuildError, match=r"wrote no rank1\.engine"):
        run_stages([stage], work, Recorder())
    assert not list((tmp_path / "work").glob("engine*"))


def test_a_disk_without_room_is_refused_before_anything_runs(tmp_path: Path) -> None:
    stage = Stage("huge", "x", writing("x"), key={}, estimate=Estimate(disk_bytes=1 << 60))
    small = Stage("small", "y", writing("y"), key={}, estimate=Estimate(disk_bytes=50 << 20))
    recorder = Recorder()
    told = r"huge 1073741824.0 GiB, small 50.0 MiB\); free some"  # not 0.0 GiB
    with work_in(tmp_path) as work, pytest.raises(BuildError, match=told):
        run_stages([stage, small], work, recorder)
    assert recorder.events == []


def test_room_is_asked_for_what_is_left_only(tmp_path: Path) -> None:
    first, second = two_stages()
    run([first], tmp_path)
    large = Stage(first.name, first.title, first.work, key=first.key, estimate=Estimate(disk_bytes=1 << 60))
    assert run([large, second], tmp_path)[0] == ("reused", "first")


def test_a_disk_that_fills_up_is_named(tmp_path: Path) -> None:
    def fill(_folder: Path, _work: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rank0.engine")

    with work_in(tmp_path) as work, pytest.raises(BuildError, match="is full"):
        run_stages([Stage("only", "x", fill, key={})], work, Recorder())


def test_a_tool_that_meets_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    code = "open('only.partial/rank0.engine', 'wb').write(bytes(3 << 20))"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # what a file may hold; the kernel says EFBIG
    try:
        with work_in(tmp_path) as work, pytest.raises(BuildError, match="is full"):
            run_stages([Stage("only", "x", python(code), key={})], work, Recorder())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "work").glob("only*"))


SLEEPER = """
import subprocess, sys, time
from pathlib import Path
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
Path("pids.draft").write_text(f"{__import__('os').getpid()} {worker.pid}")
Path("pids.draft").rename("pids")
time.sleep(600)
"""


def pids_of(work: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while not (work / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(pid) for pid in (work / "pids").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_interrupt_ends_the_tool_with_its_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    stages = [two_stages()[0], Stage("second", "sleep", python(SLEEPER), key={}, after=("first",))]
    pids: list[int] = []
    main = threading.get_ident()

    def interrupt() -> None:
        pids.extend(pids_of(tmp_path / "work"))
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with work_in(tmp_path) as work, pytest.raises(KeyboardInterrupt):
        run_stages(stages, work, Recorder())
    thread.join()
    assert len(pids) == 2
    assert not any(map(is_running, pids))
    assert not (tmp_path / "work/second.partial").exists()
    assert run(two_stages(), tmp_path)[0] == ("reused", "first")


def test_an_interrupt_while_a_stage_begins_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = WorkFolder.begin

    def interrupted(work: WorkFolder, stage: str) -> Path:
        assert begin(work, stage).is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkFolder, "begin", interrupted)
    with work_in(tmp_path) as work, pytest.raises(KeyboardInterrupt):
        run_stages(two_stages(), work, Recorder())
    assert not list(work.path.glob("*.partial"))


def test_a_killed_build_takes_its_tool_with_it_and_is_waited_for(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from build_engines.stages.stage_list import Command, Stage, run_stages
from build_engines.stages.work_folder import WorkFolder
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_stages import Recorder, SLEEPER, python
with WorkFolder.open(Path({str(tmp_path / "work")!r})) as work:
    run_stages([Stage("only", "sleep", python(SLEEPER), key={{}})], work, Recorder())
"""
    build = subprocess.Popen([sys.executable, "-c", code], cwd=CODE_ROOT)
    pids = pids_of(tmp_path / "work")
    build.kill()
    build.wait()
    with WorkFolder.open(tmp_path / "work") as work:  # waits for the lock, which the tool's guard still holds
        assert not any(map(is_running, pids))
        run_stages([Stage("only", "write", writing("x"), key={})], work, Recorder())


def test_a_second_build_of_the_same_is_refused(tmp_path: Path) -> None:
    with (
        work_in(tmp_path),
        pytest.raises(BuildError, match="another build of this recipe is running"),
        work_in(tmp_path),
    ):
        pass


def test_removing_a_work_folder_lets_the_next_build_in(tmp_path: Path) -> None:
    with work_in(tmp_path) as work:
        run_stages(two_stages(), work, Recorder())
        work.remove()
        assert not work.path.exists()
    assert run(two_stages(), tmp_path)[0] == ("started", "first")


def test_who_waits_for_a_work_folder_that_is_removed_gets_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "work"
    waits, has_it = threading.Event(), threading.Event()
    seen: list[list[str]] = []

    def wait() -> None:
        with WorkFolder.open(path, on_wait=waits.set) as work:
            (work.path / "mine").touch()
            has_it.wait()
            seen.append(sorted(file.name for file in path.iterdir()))

    with WorkFolder.open(path) as first:
        for number in range(5000):  # removing them takes longer than a waiter sleeps
            (path / f"{number}").touch()
        waiter = threading.Thread(target=wait)
        waiter.start()
        waits.wait()
        first.remove()
    has_it.set()
    waiter.join()
    assert seen == [["lock", "mine"]]
    assert list(tmp_path.glob(".removing-*")) == []


def test_what_a_killed_build_has_left_of_a_removed_folder_the_next_one_removes(tmp_path: Path) -> None:
    (tmp_path / ".removing-0" / "engine").mkdir(parents=True)
    with work_in(tmp_path):
        assert list(tmp_path.glob(".removing-*")) == []
