# SPDX-License-Identifier: Apache-2.0
"""The built-in load client against a server that plays a script, and says itself when it sent each response."""

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from kserve_server import KServeServer, Step, response
from load_interrupts import interrupt, once_done
from load_records import farthest_from_stamps
from process_words import words_of

from clients.latency import ttft_ms
from clients.load.load_options import Load
from clients.load.processes import run_processes
from clients.load.run_command import put_on
from clients.load_report.run_figures import figures_of
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import read_run
from trireme.base.errors import RequestError, ServerError, Unavailable

pytestmark = pytest.mark.slow

FIXED = {"kind": "fixed", "prompts": ["a b c"], "max_tokens": 8}
PERIOD_S = 0.02


class StampingServer(KServeServer):
    """A server that keeps when it sent each response of each request, on this machine's monotonic clock."""

    def __init__(self, *script: Step) -> None:
        super().__init__(*script)
        self.sent_ns: list[list[int]] = []

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """Play the script."""
        stamps: list[int] = []
        self.sent_ns.append(stamps)
        for step in super().ModelStreamInfer(requests, context):
            stamps.append(time.monotonic_ns())
            yield step


def tokens(count: int, *, gap_s: float = PERIOD_S) -> list[Step]:
    """Return a script that sends one token at a time, with a pause before each."""
    steps: list[Step] = []
    for number in range(count):
        steps += [gap_s, response("x", num_output_tokens=1, num_input_tokens=3, final=number == count - 1)]
    return steps


def load(server: KServeServer, **fields: Any) -> Load:
    return Load(**{"url": server.url, "workload": FIXED, "num_users": 1, "num_requests": 5, **fields})


def test_its_times_are_the_servers_to_a_millisecond() -> None:
    with StampingServer(*tokens(10)) as server:
        outcome = run_processes(load(server, num_users=4, num_requests=96, num_processes=2))
    assert len(outcome.records) == 96
    late_ms = []
    by_first = sorted((stamps for stamps in server.sent_ns if stamps), key=lambda stamps: stamps[0])
    for record, stamps in zip(sorted(outcome.records, key=lambda one: one.times_ns[0]), by_first, strict=True):
        received = [at_ns + outcome.start_ns for at_ns in record.times_ns]
        late_ms += [(at - sent) / 1e6 for at, sent in zip(received, stamps, strict=True)]
    assert 0 < statistics.median(late_ms) < 1.0, "what lies between them is loopback and this machine's other work"


def test_its_figures_are_the_scripts(tmp_path: Path) -> None:
    with StampingServer(*tokens(6)) as server:
        run = put_on(load(server, num_users=2, num_requests=24), tmp_path / "run", warmup=0, metrics=None)
    figures = figures_of(run)
    assert figures.ends == {"done": figures.num_requests}
    assert figures.osl is not None
    assert figures.osl.mean == 6
    assert figures.isl is not None
    assert figures.isl.mean == 3
    again = read_run(tmp_path / "run")
    assert again.records == run.records
    assert again.info == run.info


def test_its_figures_are_the_servers_stamps_to_one_in_a_hundred(tmp_path: Path) -> None:
    def worst(folder: Path) -> float:
        with StampingServer(*tokens(6, gap_s=0.1)) as server:
            run = put_on(load(server, num_users=8, num_requests=40), folder, warmup=0, metrics=None)
        return farthest_from_stamps(figures_of(run), run.records, server.sent_ns)

    # A program that was not run for some ms is late with what came meanwhile: one of three runs without that will do.
    assert any(worst(tmp_path / name) < 0.01 for name in "abc")


def test_a_server_that_stalls_cannot_hide_it_in_an_open_loop() -> None:
    stall = threading.Event()
    done: list[int] = []

    def step(_: Any) -> list[Step]:
        if not done:
            threading.Timer(1.5, stall.set).start()
        done.append(1)
        return [stall, *tokens(1, gap_s=0.0)]

    with KServeServer(step) as server:
        outcome = run_processes(load(server, num_users=None, rate_per_s=20.0, arrivals="constant", num_requests=20))
    ttfts_ms = [ttft_ms(record.latencies()) for record in outcome.records]
    assert len(done) == 20
    # Due at 50, 100, ... 1000 ms; a closed loop of one user would have had a single request wait.
    assert sum(value > 400 for value in ttfts_ms) >= 18
    assert ttfts_ms[0] - ttfts_ms[-1] == pytest.approx(950, abs=200)
    assert max(record.lag_ns for record in outcome.records) < 200 * 10**6


def test_latency_counts_from_when_a_request_was_due_though_the_client_was_late() -> None:
    record = LoadRecord(session=0, due_ns=0, sent_ns=30 * 10**6, times_ns=[50 * 10**6], tokens=[1])
    assert ttft_ms(record.latencies()) == pytest.approx(50)
    assert record.lag_ns == 30 * 10**6


def test_a_refused_request_is_sent_again_and_its_latency_counts_from_the_first_time() -> None:
    asked: list[int] = []

    def step(_: Any) -> list[Step]:
        asked.append(1)
        refusal = "[UNAVAILABLE reason=queue_full retry_after_ms=150] full"
        return [refusal] if len(asked) == 1 else tokens(2, gap_s=0.0)

    with KServeServer(step) as server:
        [record] = run_processes(load(server, num_requests=1, num_retries=2)).records
    assert (record.end, record.num_attempts, len(asked)) == ("done", 2, 2)
    assert 150 <= ttft_ms(record.latencies()) < 1000
    assert record.lag_ns == 0


ENDS: list[tuple[list[Step], str, int]] = [
    (["[UNAVAILABLE reason=queue_full] full"], "UNAVAILABLE", 0),
    ([response("x", num_output_tokens=1), "[INTERNAL] it broke"], "INTERNAL", 1),
    ([response("", num_output_tokens=0, final=True)], "done", 0),
    ([response("x", num_output_tokens=1, final=True)], "done", 1),
    ([response("x", num_output_tokens=1), 5.0], "DEADLINE", 1),
]


def test_every_end_is_kept() -> None:
    scripts = iter([script for script, _, _ in ENDS for _ in range(2)])
    with KServeServer(lambda _: next(scripts)) as server:
        records = run_processes(load(server, num_requests=2 * len(ENDS), timeout_s=0.5)).records
    ends = [(end, num_tokens) for _, end, num_tokens in ENDS for _ in range(2)]
    assert [(record.end, record.output_tokens) for record in records] == ends
    assert all(bool(record.error) == (record.end != "done") for record in records)


def test_a_conversation_goes_on_with_what_was_said() -> None:
    talk = {"kind": "conversation", "turns": {"mean": 3}, "isl": {"mean": 4}, "osl": {"mean": 8}, "think_s": 0.01}
    with KServeServer(response("well", num_output_tokens=1, final=True)) as server:
        outcome = run_processes(load(server, workload=talk, num_requests=2))
        prompts = [request.raw_input_contents[0][4:].decode() for request in server.requests]
    assert [(record.session, record.turn) for record in outcome.records] == [(s, t) for s in (0, 1) for t in range(3)]
    first, second, third = prompts[:3]
    assert second.startswith(f"{first}well\nuser: ")
    assert third.startswith(f"{second}well\nuser: ")


def test_processes_share_the_plan_and_no_request_is_sent_twice() -> None:
    with KServeServer(*tokens(1, gap_s=0.0)) as server:
        outcome = run_processes(load(server, num_users=3, num_requests=31, num_processes=3))
        assert len(server.requests) == 31
    assert sorted(record.session for record in outcome.records) == list(range(31))
    assert len(outcome.cpu) == 3
    assert all(samples[-1].cpu_s > 0 for samples in outcome.cpu)


def test_a_duration_ends_a_closed_loop() -> None:
    with KServeServer(*tokens(2, gap_s=0.05)) as server:
        outcome = run_processes(load(server, num_requests=None, duration_s=1.0))
    assert 3 <= len(outcome.records) <= 10
    assert all(record.end == "done" for record in outcome.records)
    assert max(record.due_ns for record in outcome.records) < 1e9


def test_ctrl_c_keeps_what_has_ended() -> None:
    with KServeServer(*tokens(4, gap_s=0.1)) as server:
        outcome = run_processes(load(server, num_users=2, num_requests=10_000), ended=once_done(interrupt))
    assert outcome.was_interrupted
    assert 2 <= sum(record.end == "done" for record in outcome.records) < 100
    assert {record.end for record in outcome.records} == {"done"}


def test_a_process_that_dies_ends_the_load_with_an_error() -> None:
    def kill_worker() -> None:
        for child in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(words_of(child)):
                child.kill()

    died = pytest.raises(ServerError, match="process of the load client died")
    with KServeServer(*tokens(4, gap_s=0.1)) as server, died:
        run_processes(load(server, num_requests=10_000), ended=once_done(kill_worker))


def test_where_nobody_answers_it_says_so() -> None:
    with pytest.raises(Unavailable, match=r"no server takes requests for model 'ensemble' at 127\.0\.0\.1:9"):
        run_processes(Load(url="127.0.0.1:9", workload=FIXED, num_users=1, num_requests=1))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_users": None}, "rate"),
        ({"rate_per_s": 5.0}, "rate"),
        ({"num_requests": None}, "requests"),
        ({"num_requests": 0}, "requests"),
        ({"num_users": None, "rate_per_s": -1.0}, "rate"),
        ({"num_users": None, "rate_per_s": 1.0, "arrivals": "never"}, "arrivals"),
        ({"num_users": None, "rate_per_s": 1.0, "arrivals": "gamma", "burstiness": 0.0}, "burstiness"),
        ({"timeout_s": 0.0}, "timeout"),
    ],
)
def test_a_load_that_does_not_go_together_is_refused(fields: dict[str, Any], field: str) -> None:
    wrong = Load(**{"url": "here:1", "workload": FIXED, "num_users": 1, "num_requests": 1, **fields})
    with pytest.raises(RequestError) as caught:
        wrong.check()
    assert caught.value.facts["field"] == field


def test_the_same_seed_asks_the_same_whatever_the_number_of_processes() -> None:
    lengths = {"kind": "synthetic", "isl": {"mean": 20, "stddev": 5}, "osl": {"mean": 9, "stddev": 3}}
    one = Load(url="here:1", workload=lengths, rate_per_s=5.0, num_requests=20, seed=4)
    other = msgspec.structs.replace(one, num_processes=3)
    assert list(one.plan()) == list(other.plan())
    assert list(one.plan()) != list(msgspec.structs.replace(one, seed=5).plan())
