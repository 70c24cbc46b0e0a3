# SPDX-License-Identifier: Apache-2.0
"""The ends of an unfinished load: signals, a parent that is gone, a server that is gone, a full disk."""

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kserve_server import DIE, HANG, KServeServer, Step, response

from clients.load.load_options import MOST_PLANNED, Load
from clients.load.processes import run_processes
from clients.load.run_command import put_on
from clients.load.server_down import ServerDown, next_pause_s
from clients.load.worker import GIVE_UP_S
from clients.load_run.load_record import UNANSWERED
from clients.load_run.run_folder import read_run
from trireme.base.errors import RequestError, ServerError
from trireme.commands import run_command

pytestmark = pytest.mark.slow

FIXED = {"kind": "fixed", "prompts": ["a b c"], "max_tokens": 8}
START_S = 60.0  # on a busy machine
ANSWER: list[Step] = [0.02, response("x", num_output_tokens=1, num_input_tokens=3, final=True)]


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `trireme bench run` into `tmp_path / "run"`, with more to do than the test waits for."""
    started = []

    def begin(server: KServeServer, *options: str, **settings: Any) -> "subprocess.Popen[str]":
        options = ("--url", server.url, "--prompt", "a", "--concurrency", "2", "--requests", "9999", *options)
        command = [sys.executable, "-m", "trireme", "bench", "run", *options, "--warmup", "0", "--metrics", "none"]
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "run")],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        with process:  # closes its pipes
            process.kill()


def wait_for(is_so: Callable[[], bool], *, at_most_s: float = START_S) -> None:
    end_s = time.monotonic() + at_most_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def num_kept(out: Path) -> int:
    path = out / "requests.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_sigterm_keeps_what_has_ended(start: Start, tmp_path: Path) -> None:
    with KServeServer(*ANSWER) as server:
        running = start(server)
        wait_for(lambda: num_kept(tmp_path / "run") > 5)
        running.terminate()
        out, err = running.communicate(timeout=START_S)
    assert running.returncode == 130
    assert "TTFT" in out, err
    run = read_run(tmp_path / "run")
    assert run.info.was_interrupted
    assert run.info.cpu
    assert {one.end for one in run.records} == {"done"}, "what it cancelled itself is no failure of the server"


def test_processes_of_a_killed_run_end_at_once_and_its_folder_can_be_read(start: Start, tmp_path: Path) -> None:
    with KServeServer(*ANSWER) as server:
        running = start(server, "--processes", "2")
        wait_for(lambda: num_kept(tmp_path / "run") > 5)
        children = psutil.Process(running.pid).children(recursive=True)
        running.kill()
        running.communicate(timeout=START_S)
        _, alive = psutil.wait_procs(children, timeout=3.0)
    assert len(children) >= 2
    assert alive == []
    run = read_run(tmp_path / "run")
    assert run.info.was_interrupted
    assert len(run.records) > 5


def test_a_full_disk_ends_a_run_with_the_files_name_and_keeps_what_fits(start: Start, tmp_path: Path) -> None:
    with KServeServer(*ANSWER) as server:
        running = start(server)
        # A disk that is full after 4 KiB, with EFBIG in place of ENOSPC; `preexec_fn` would fork beside gRPC's threads.
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        _, err = running.communicate(timeout=START_S)
    assert running.returncode == 1
    assert f"{tmp_path / 'run' / 'requests.jsonl'} cannot be written: File too large" in err
    assert "make room" in err
    run = read_run(tmp_path / "run")
    assert len(run.records) > 5
    assert f"The last line of requests.jsonl is cut; the {len(run.records)} in front of it are used." in run.info.note


def test_ctrl_c_cancels_what_runs_and_counts_it_nowhere(start: Start, tmp_path: Path) -> None:
    def step(_: Any) -> list[Step]:
        asked.append(1)
        return ANSWER if len(asked) < 4 else [response("x", num_output_tokens=1), HANG]

    asked: list[int] = []
    with KServeServer(step) as server:
        running = start(server)
        wait_for(lambda: num_kept(tmp_path / "run") == 3 and len(asked) == 5)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=START_S)
    assert running.returncode == 130
    run = read_run(tmp_path / "run")
    assert [one.end for one in run.records] == ["done"] * 3
    assert run.info.unended is not None
    assert run.info.unended.count == 2, "one for each user"
    first_end_ns = min(one.end_ns for one in run.records)  # records are written in another order on a busy machine
    assert first_end_ns <= run.info.unended.since_ns < run.info.unended.stopped_ns
    assert "2 requests, due from" in out, "who stopped a server that stalls sees that it did"


def dying(after: int, died_s: list[float] | None = None) -> Callable[[Any], list[Step]]:
    """Return a script that answers `after` requests and breaks all connections at the next.

    The moment of the break is noted in `died_s`.
    """
    asked: list[int] = []

    def step(_: Any) -> list[Step]:
        asked.append(1)
        if len(asked) <= after:
            return ANSWER
        if died_s is not None:
            died_s.append(time.monotonic())
        return [DIE]

    return step


def test_a_server_that_is_gone_ends_the_run_and_users_do_not_storm_its_address(tmp_path: Path) -> None:
    died_s: list[float] = []  # two processes take their time to begin
    with (
        KServeServer(dying(20, died_s)) as server,
        pytest.raises(ServerError, match=f"no server answers at {server.url} since"),
    ):
        put_on(
            Load(url=server.url, workload=FIXED, num_users=8, num_requests=99_999, num_processes=2),
            tmp_path / "run", warmup=0, metrics=None,
        )  # fmt: skip
    assert GIVE_UP_S < time.monotonic() - died_s[0] < GIVE_UP_S + 15
    run = read_run(tmp_path / "run")
    lost = [one for one in run.records if not one.is_done]
    assert "No server answered for the last 1" in run.info.note
    assert {one.reason for one in lost} <= UNANSWERED
    # Each of 8 users after 0.1, 0.2, 0.4, 0.8 s and then every second: some 14 in 11 s.
    assert 8 * 6 < len(lost) < 8 * 20


def test_an_open_loop_whose_server_is_gone_at_its_end_has_failed(tmp_path: Path) -> None:
    with KServeServer(dying(5)) as server, pytest.raises(ServerError, match=r"no server answers at .* since 2 s"):
        put_on(
            Load(url=server.url, workload=FIXED, rate_per_s=10.0, arrivals="constant", num_requests=30),
            tmp_path / "run", warmup=0, metrics=None,
        )  # fmt: skip
    run = read_run(tmp_path / "run")
    assert len(run.records) == 30
    assert not any(one.is_refused for one in run.records)
    assert not run.info.was_interrupted


def test_an_outage_lasts_from_the_first_to_the_last_request_that_nobody_answered() -> None:
    server_down = ServerDown()
    for at_s in (5, 7, 16):
        server_down.note_loss(at_s * 10**9)
    assert server_down.seconds == 11
    server_down.note_answer()
    server_down.note_loss(20 * 10**9)
    assert server_down.seconds == 0


def test_a_user_waits_longer_each_time_up_to_a_second() -> None:
    pauses = [0.0]
    for _ in range(5):
        pauses.append(next_pause_s(pauses[-1]))
    assert pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.0]


def test_what_nobody_expected_in_a_process_arrives_as_what_it_is() -> None:
    unchecked = {"kind": "nothing"}  # `trireme bench run` would have refused it
    with pytest.raises(ServerError, match=r"(?s)client failed: ValidationError: .*'nothing'.*\(load_options\.py, line"):
        run_processes(Load(url="127.0.0.1:9", workload=unchecked, num_users=1, num_requests=1))


def test_a_run_that_failed_as_a_whole_says_why_in_place_of_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with KServeServer("[INTERNAL] it broke") as server, pytest.raises(SystemExit) as ended:
        run_command("bench", ["run", "--url", server.url, "--prompt", "a", "--concurrency", "1", "--requests", "3",
                              "--warmup", "0", "--metrics", "none", "--out", str(tmp_path / "run")])  # fmt: skip
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "no request ended well: 3 of 3 ended with INTERNAL (it broke)" in said.err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"duration_s": float("inf")}, "--duration must be a number above 0, got inf"),
        ({"duration_s": float("nan")}, "--duration must be a number above 0, got nan"),
        ({"timeout_s": float("inf")}, "--timeout must be a number above 0"),
        ({"num_requests": 10**14}, r"at most 10000000 requests, got 1e\+14: give fewer --requests$"),
        (
            {"num_requests": None, "num_users": None, "rate_per_s": 1e6, "duration_s": 11.0},
            r"got 1\.1e\+07: give a lower --rate or --duration$",
        ),
    ],
)
def test_a_load_without_a_bound_is_refused(fields: dict[str, Any], message: str) -> None:
    wrong = Load(**{"url": "here:1", "workload": FIXED, "num_users": 1, "num_requests": 1, **fields})
    with pytest.raises(RequestError, match=message):
        wrong.check()


def test_the_smaller_of_two_bounds_counts() -> None:
    Load(url="here:1", workload=FIXED, rate_per_s=1e6, duration_s=1e6, num_requests=MOST_PLANNED).check()


def test_a_long_plan_says_how_far_it_is() -> None:
    told: list[int] = []

    def planned(num_sessions: int) -> None:
        told.append(num_sessions)
        if len(told) == 3:
            raise KeyboardInterrupt  # as Ctrl-C does then

    load = Load(url="127.0.0.1:9", workload=FIXED, num_users=1, num_requests=MOST_PLANNED)
    with pytest.raises(KeyboardInterrupt):
        run_processes(load, planned=planned)
    assert 0 < told[0] < told[1] < told[2] < MOST_PLANNED
