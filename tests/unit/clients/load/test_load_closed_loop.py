# SPDX-License-Identifier: Apache-2.0
"""The rates of a closed loop whose users go in waves, against a server that plays a script."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kserve_server import KServeServer, Step, response
from load_records import record, run

from clients.infer_messages import GenerateChunk
from clients.load.arrival_process import closed_loop
from clients.load.load_options import Load
from clients.load.load_plan import Session, Turn
from clients.load.run_command import put_on
from clients.load.send import Sender
from clients.load.sessions_ahead import SessionsAhead
from clients.load.worker import num_users_of, sessions_of
from clients.load_report.run_figures import figures_of
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import Run

pytestmark = pytest.mark.slow

NUM_USERS, NUM_TOKENS = 8, 12


@pytest.mark.parametrize(("num_users", "num_processes"), [(16, 3), (16, 4), (5, 4), (3, 3), (2, 5)])
def test_processes_are_done_together_though_their_users_are_not_equally_many(
    num_users: int, num_processes: int
) -> None:
    # A second a request: so many users, as many requests a second, whatever process each of them is in.
    load = Load(
        url="here:1", workload={"kind": "fixed", "prompts": ["a"], "max_tokens": 1}, num_users=num_users,
        num_requests=60 * num_users, num_processes=num_processes,
    )  # fmt: skip
    records, asked = [], []
    for process in range(num_processes):
        users, sessions = num_users_of(load, process), list(sessions_of(load, process))
        asked += [session.index for session in sessions]
        for number in range(len(sessions)):
            begun_ms = number // users * 1000
            records.append(record(begun_ms, [(begun_ms + 1000, 1)]))
    assert sorted(asked) == list(range(60 * num_users))
    figures = figures_of(run(sorted(records, key=lambda one: one.due_ns), num_users=num_users))
    assert figures.requests.per_s == pytest.approx(num_users)


def test_a_prompt_that_takes_long_to_write_holds_no_answer_up() -> None:
    was_answered, records = threading.Event(), list[LoadRecord]()
    first, *others = (Session(index=index, turns=(Turn("a", 1),)) for index in range(4))

    def rest() -> Iterator[Session]:
        assert was_answered.wait(10), "the first user's answer was not read while the second one's prompt was written"
        yield from others

    class Client:
        async def generate(self, *_: object, **__: object) -> AsyncIterator[GenerateChunk]:
            await asyncio.sleep(0.05)
            was_answered.set()
            for chunk in list[GenerateChunk]():
                yield chunk

    async def load() -> None:
        sender = Sender(Client(), model="m", start_ns=time.monotonic_ns(), timeout_s=None, num_retries=0)  # type: ignore[arg-type]
        with SessionsAhead([first], rest(), num_ahead=2) as sessions:
            await closed_loop(sender, sessions, num_users=2, end_ns=None, note=records.append)

    asyncio.run(load())
    assert sorted(record.session for record in records) == [0, 1, 2, 3]


def test_both_rates_are_littles_law_and_agree(tmp_path: Path) -> None:
    script: list[Step] = [0.1]  # s to the first token, then 10 ms to each
    for number in range(NUM_TOKENS):
        script += [response("x", num_output_tokens=1, final=number == NUM_TOKENS - 1), 0.01]

    def measured(folder: Path) -> Run:
        workload = {"kind": "fixed", "prompts": ["a"], "max_tokens": NUM_TOKENS}
        with KServeServer(*script[:-1]) as server:
            load = Load(url=server.url, workload=workload, num_users=NUM_USERS, num_requests=100)  # 12.5 waves
            return put_on(load, folder, warmup=0, metrics=None)

    def farthest(run: Run) -> float:
        """Return how far Little's law is off, as a share of the requests in flight in the measured part."""
        figures = figures_of(run)
        window = figures.window
        assert figures.output_tokens.per_s == pytest.approx(NUM_TOKENS * figures.requests.per_s, rel=1e-9)
        assert window.seconds > 1
        busy_ns = sum(
            max(0, min(record.times_ns[-1], window.end_ns) - max(record.due_ns, window.start_ns))
            for record in run.records
        )
        in_flight = busy_ns / 1e9 / window.seconds
        assert NUM_USERS / 2 < in_flight <= NUM_USERS
        return abs(figures.requests.per_s * figures.latencies["e2e"].mean / 1e3 / in_flight - 1)

    # On a busy machine requests of one part are slower than those of another: one of three runs without that will do.
    assert any(farthest(measured(tmp_path / name)) < 0.01 for name in "abc")
