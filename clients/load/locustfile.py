# SPDX-License-Identifier: Apache-2.0
"""Locust's users of a Triton and of an OpenAI-compatible URL, streaming; started by `trireme bench locust`.

It can be given to `locust -f` as well, with the load in the file that TRIREME_LOCUST_LOAD names. Locust shows TTFT,
TPOT and E2E as requests of their own; every request's record goes to the master with Locust's own reports, so that
workers may run on other machines.
"""

# ruff: noqa: E402
import grpc.experimental.gevent as grpc_gevent

grpc_gevent.init_gevent()  # before the first channel

import itertools
import os
import time
import uuid
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
import grpc
import msgspec
from geventhttpclient import HTTPClient
from locust import User, constant, events
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import STATE_RUNNING, STATE_STOPPED, STATE_STOPPING
from tritonclient.grpc import service_pb2_grpc

from clients.error_tokens import parse_error
from clients.infer_messages import GenerateChunk, decode_chunk, encode_request, is_final_response
from clients.latency import MetricUndefined, e2e_ms, tpot_ms, ttft_ms
from clients.load.load_record import DONE, LoadRecord
from clients.load.locust_messages import (
    LOAD_VARIABLE,
    RECORDS_VARIABLE,
    WORKERS_VARIABLE,
    LocustFound,
    LocustLoad,
)
from clients.load.openai_errors import http_error
from clients.load.openai_stream import (
    OK,
    CompletionStream,
    completion_body,
    completions_url,
    headers,
    is_openai_url,
)
from clients.load.plan import Session
from clients.load.worker import CpuSample
from ensemble_configs.errors import ServingError, Unavailable

_PATIENCE_S = 600.0  # with an HTTP server that says nothing, where no timeout is asked for
_METRICS = {"TTFT": ttft_ms, "TPOT": tpot_ms, "E2E": e2e_ms}


class _Shared:
    """Of one process of Locust's. Times are of the wall clock, since workers may be on other machines."""

    def __init__(self) -> None:
        path = os.environ.get(LOAD_VARIABLE)
        if not path:
            raise SystemExit(f"{LOAD_VARIABLE} names no file; `trireme bench locust` sets it")
        self.told = msgspec.json.decode(Path(path).read_bytes(), type=LocustLoad)
        self.epoch_ns = time.time_ns() - time.monotonic_ns()
        self.records: list[LoadRecord] = []  # on a worker: since its last report
        self.cpu: dict[str, list[CpuSample]] = {}
        self.plan: Iterator[Session] = iter(())
        self.failure = ""

    def now_ns(self) -> int:
        """The wall clock's time, without its jumps."""
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


def _begin(session: Session) -> LoadRecord:
    now_ns = shared.now_ns()
    return LoadRecord(
        session=session.index, due_ns=now_ns, sent_ns=now_ns, max_tokens=session.turns[0].max_tokens,
        priority=session.priority, tenant=session.tenant, times_ns=[], tokens=[],
    )  # fmt: skip


class _LoadUser:
    """Asks the sessions of the plan, one after the other, and waits for each answer."""

    environment: Environment
    wait_time = constant(0)

    def converse(self) -> None:
        """One session."""
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
            record = _begin(session)
            record.turn = number
            try:
                history += turn.text + self.stream(session, number, history, record)
                record.end = DONE
            except ServingError as exc:
                record.end, record.error = exc.code, exc.message
            shared.note(self.environment, record)
            if not record.is_done:
                return

    def stream(self, session: Session, turn: int, history: str, record: LoadRecord) -> str:
        """Ask, and note each chunk. Raises: ServingError: it ended badly."""
        raise NotImplementedError


class TritonUser(_LoadUser, User):
    """Over Triton's gRPC stream, with a connection of its own."""

    abstract = is_openai_url(shared.told.load.url)
    tasks = [_LoadUser.converse]  # noqa: RUF012  Locust's own way

    def on_start(self) -> None:
        """Connect."""
        self._channel = grpc.insecure_channel(shared.told.load.url, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def on_stop(self) -> None:
        """Disconnect."""
        self._channel.close()

    def stream(self, session: Session, turn: int, history: str, record: LoadRecord) -> str:
        """One request."""
        load, answer = shared.told.load, ""
        message = encode_request(
            session.request(turn, history), model=load.model, model_version="", request_id=uuid.uuid4().hex
        )
        try:
            for response in self._stub.ModelStreamInfer(iter([message]), timeout=load.timeout_s):
                at_ns = shared.now_ns()
                if response.error_message:
                    raise parse_error(response.error_message, address=load.url)
                chunk = decode_chunk(response, is_final=is_final_response(response), received_ns=at_ns)
                if chunk is not None:
                    answer += _note(record, chunk)
        except grpc.RpcError as exc:
            raise parse_error(f"[{exc.code()}] {exc.details()}", address=load.url) from exc
        return answer


class OpenAIUser(_LoadUser, User):
    """Over `/completions` of an OpenAI-compatible server, as server-sent events, with a connection of its own."""

    abstract = not is_openai_url(shared.told.load.url)
    tasks = [_LoadUser.converse]  # noqa: RUF012

    def on_start(self) -> None:
        """Connect at the first request."""
        load = shared.told.load
        self._http = HTTPClient.from_url(load.url, network_timeout=load.timeout_s or _PATIENCE_S)
        self._path = urlsplit(completions_url(load.url)).path

    def on_stop(self) -> None:
        """Disconnect."""
        self._http.close()

    def stream(self, session: Session, turn: int, history: str, record: LoadRecord) -> str:
        """One request."""
        told, events_of_it, answer = shared.told, CompletionStream(), ""
        body = completion_body(session.request(turn, history), model=told.load.model, counts_each=told.counts_each)
        try:
            response = self._http.post(self._path, body, headers())
            if response.status_code != OK:
                raise http_error(response.status_code, response.read(), str(response.get("Retry-After", "")))
            while line := response.readline(b"\n"):
                for chunk in events_of_it.feed(line, shared.now_ns()):
                    answer += _note(record, chunk)
        except (OSError, HTTPException) as exc:
            raise Unavailable(f"{told.load.url}: {exc}", reason="connection_lost") from exc
        finally:
            for chunk in events_of_it.release():
                answer += _note(record, chunk)
        events_of_it.check_end()
        return answer


def _note(record: LoadRecord, chunk: GenerateChunk) -> str:
    """Returns: its text."""
    record.times_ns.append(chunk.received_ns)
    record.tokens.append(chunk.num_output_tokens or 0)
    record.input_tokens = record.input_tokens or chunk.num_input_tokens
    record.finish_reason = chunk.finish_reason or record.finish_reason
    return chunk.text


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    runner: Any = environment.runner
    number = max(0, getattr(runner, "worker_index", 0))
    count = max(1, int(os.environ.get(WORKERS_VARIABLE, "1")))
    shared.plan = itertools.islice(shared.told.load.plan(), number, None, count)
    if type(runner).__name__ != "MasterRunner":  # which asks nobody
        shared.cpu.setdefault(f"process {number}", []).append(_cpu())
    if type(runner).__name__ != "WorkerRunner":
        gevent.spawn(_quit_when_all_is_asked, runner)


def _quit_when_all_is_asked(runner: Any) -> None:
    """Locust by itself goes on without a user until its time is over."""
    while runner.state != STATE_RUNNING or runner.user_count:  # running: all have been started
        if runner.state in (STATE_STOPPING, STATE_STOPPED):
            return
        gevent.sleep(0.1)
    runner.quit()


def _cpu() -> CpuSample:
    return CpuSample(shared.now_ns(), time.process_time())


@events.report_to_master.add_listener
def _report(client_id: str, data: dict[str, Any], **_: Any) -> None:
    records, shared.records = shared.records, []
    data["trireme_records"] = msgspec.json.encode(records)
    data["trireme_failure"] = shared.failure
    data["trireme_cpu"] = [shared.now_ns(), time.process_time()]
    del client_id


@events.worker_report.add_listener
def _collect(client_id: str, data: dict[str, Any], **_: Any) -> None:
    shared.records += msgspec.json.decode(data.pop("trireme_records", b"[]"), type=list[LoadRecord])
    shared.failure = data.pop("trireme_failure", "") or shared.failure
    if "trireme_cpu" in data:
        shared.cpu.setdefault(client_id, []).append(CpuSample(*data.pop("trireme_cpu")))


@events.quitting.add_listener
def _write(environment: Environment, **_: Any) -> None:
    path = os.environ.get(RECORDS_VARIABLE)
    if not path or type(environment.runner).__name__ == "WorkerRunner":
        return
    for samples in shared.cpu.values():
        if len(samples) == 1:
            samples.append(_cpu())
    Path(path).write_bytes(msgspec.json.encode(LocustFound(shared.records, list(shared.cpu.values()), shared.failure)))
