# SPDX-License-Identifier: Apache-2.0
"""The users of Locust, who ask the sessions of a load.

`trireme bench locust` starts this file, and on workers `locust -f`.

The process that `trireme bench locust` starts has the load in a file, and sends it to its workers. Locust shows TTFT,
TPOT and E2E as requests of their own; every request's record goes to the master with Locust's own reports, so that
workers may run on other machines.
"""

# ruff: noqa: E402
import grpc.experimental.gevent as grpc_gevent

grpc_gevent.init_gevent()  # before the first channel

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import locust
import msgspec
from locust import User, constant, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import STATE_RUNNING, STATE_STOPPED, STATE_STOPPING, MasterRunner, WorkerRunner

from clients.latency import MetricUndefined, e2e_ms, tpot_ms, ttft_ms
from clients.load.load_plan import Session
from clients.load.tools.locust_messages import LOAD_VARIABLE, RECORDS_VARIABLE, LocustFound, LocustLoad
from clients.load.tools.locust_streams import OpenAIStreams, TritonStreams, open_streams
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import DONE, LoadRecord
from trireme.base.errors import ServingError
from trireme.base.known_types import known

_METRICS = {"TTFT": ttft_ms, "TPOT": tpot_ms, "E2E": e2e_ms}
_SHARE = "trireme_share"  # the message from the master to a worker
_REPORT_PATIENCE_S = 15.0  # reports come every 3 s


class _Shared:
    """The state of one process of Locust's.

    Times are of the wall clock, since workers may be on other machines.
    """

    def __init__(self) -> None:
        self.load: LocustLoad | None = None  # of a worker: none before the master sent it
        self.epoch_ns = time.time_ns() - time.monotonic_ns()
        self.records: list[LoadRecord] = []  # on a worker: since its last report
        self.cpu: dict[str, list[CpuSample]] = {}  # of each process that asks
        self.num_reports: Counter[str] = Counter()  # of each worker
        self.plan: Iterator[Session] = iter(())
        self.failure = ""

    def now_ns(self) -> int:
        """Return the wall clock's time, without its jumps, in nanoseconds."""
        return time.monotonic_ns() + self.epoch_ns

    def note(self, environment: Environment, record: LoadRecord) -> None:
        """Keep a request's record, and show it to Locust."""
        record.end_ns = self.now_ns()
        self.records.append(record)
        exception = None if record.is_done else ServingError(f"{record.end}: {record.error}")
        for name, metric in _METRICS.items():
            try:
                value_ms = metric(record.latencies())
            except MetricUndefined:
                if exception is None or name != "E2E":
                    continue
                value_ms = (record.end_ns - record.due_ns) / 1e6
            environment.events.request.fire(
                request_type="stream", name=name, response_time=value_ms, response_length=record.output_tokens,
                exception=exception if name == "E2E" else None, context={},
            )  # fmt: skip


shared = _Shared()


class LoadUser(User):
    """A user who asks the sessions of the plan, one after the other, and waits for each answer."""

    wait_time = constant(0)
    _streams: TritonStreams | OpenAIStreams | None = None

    def on_stop(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams.close()

    @task
    def converse(self) -> None:
        """Ask one session's requests."""
        try:
            session = next(shared.plan, None)
        except ServingError as exc:  # nothing can be asked: by itself Locust would try for ever
            shared.failure = exc.message
            session = None
        if session is None:
            raise StopUser
        history = ""
        for number, turn in enumerate(session.turns):
            time.sleep(turn.think_s)  # gevent's
            now_ns = shared.now_ns()
            record = session.record(number, due_ns=now_ns, sent_ns=now_ns)
            try:
                history += turn.text + self._ask(session, number, history, record)
                record.end = DONE
            except ServingError as exc:
                record.fail(exc)
            shared.note(self.environment, record)
            if not record.is_done:
                return

    def _ask(self, session: Session, turn: int, history: str, record: LoadRecord) -> str:
        """Return the answer to a request.

        Raises:
            ServingError: the request ended badly.
        """
        if self._streams is None:
            assert shared.load is not None, "no session is asked without it"
            self._streams = open_streams(shared.load, shared.now_ns)
        answer = ""
        for chunk in self._streams.generate(session.request(turn, history)):
            record.add_chunk(chunk)
            answer += chunk.text
        return answer


@events.init.add_listener
def _listen(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.register_message(_SHARE, _take_share)


def _take_share(environment: Environment, msg: Any, **_: Any) -> None:
    del environment
    shared.load = msgspec.json.decode(msg.data, type=known(LocustLoad))


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    """Start the plan, on the master and on each worker.

    Locust's message to start follows the master's to each worker.
    """
    runner: Any = environment.runner
    if isinstance(runner, WorkerRunner):
        _plan(number=max(0, runner.worker_index))
        return
    path = os.environ.get(LOAD_VARIABLE)
    if not path:
        raise SystemExit(f"{LOAD_VARIABLE} names no file; start this with `trireme bench locust`, or as its --worker")
    load = msgspec.json.decode(Path(path).read_bytes(), type=known(LocustLoad))
    shared.records, shared.cpu = [], {}  # of an earlier start, on Locust's page
    if isinstance(runner, MasterRunner):  # which asks nobody
        load = msgspec.structs.replace(load, num_workers=runner.worker_count)
        runner.send_message(_SHARE, msgspec.json.encode(load))
    else:
        shared.load = load
        _plan(number=0)
    gevent.spawn(_quit_when_all_is_asked, runner)


def _plan(*, number: int) -> None:
    """Set what this process asks: each worker its part of the sessions, by turns."""
    if shared.load is None or number >= shared.load.num_workers:
        shared.failure = "a worker of Locust's came after the load had begun; start all workers first"
        shared.plan = iter(())
        return
    shared.plan = itertools.islice(shared.load.load.plan(), number, None, shared.load.num_workers)
    _note_cpu()


def _quit_when_all_is_asked(runner: Any) -> None:
    """Quit once all is asked; Locust by itself goes on without a user until its time is over."""
    while runner.state != STATE_RUNNING or runner.user_count:  # running: all have been started
        if runner.state in (STATE_STOPPING, STATE_STOPPED):
            return
        gevent.sleep(0.1)
    if isinstance(runner, MasterRunner):
        _await_reports(runner)
    runner.quit()


def _await_reports(master: MasterRunner) -> None:
    """Wait for one more report of each worker.

    Users may end before the first, and Locust itself waits half a second for the last.
    """
    before = shared.num_reports.copy()
    deadline_s = time.monotonic() + _REPORT_PATIENCE_S
    while time.monotonic() < deadline_s and any(
        shared.num_reports[worker.id] == before[worker.id] for worker in master.clients.all
    ):
        gevent.sleep(0.1)


def _note_cpu() -> None:
    shared.cpu.setdefault("this process", []).append(CpuSample(shared.now_ns(), time.process_time()))


@events.report_to_master.add_listener
def _report(client_id: str, data: dict[str, Any], **_: Any) -> None:
    if shared.cpu:  # it has begun
        _note_cpu()
    left = LocustFound(shared.records, [*shared.cpu.values()], shared.failure)
    data["trireme"] = msgspec.json.encode(left)
    shared.records = []
    del client_id


@events.worker_report.add_listener
def _collect(client_id: str, data: dict[str, Any], **_: Any) -> None:
    left = msgspec.json.decode(data.pop("trireme"), type=known(LocustFound))
    shared.records += left.records
    shared.num_reports[client_id] += 1
    shared.failure = left.failure or shared.failure
    for samples in left.cpu:  # all since it began
        shared.cpu[client_id] = samples


@events.quitting.add_listener
def _write(environment: Environment, **_: Any) -> None:
    path = os.environ.get(RECORDS_VARIABLE)
    if not path or isinstance(environment.runner, WorkerRunner):
        return
    if not isinstance(environment.runner, MasterRunner):
        _note_cpu()
    left = LocustFound(shared.records, list(shared.cpu.values()), shared.failure, locust.__version__)
    Path(path).write_bytes(msgspec.json.encode(left))
