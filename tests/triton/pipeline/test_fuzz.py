# SPDX-License-Identifier: Apache-2.0
"""Random requests to the live server: every request is answered, with no traceback, and nothing is left of it."""

import asyncio
import io
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import aiohttp
import grpc
import grpc.aio
import pytest
from fuzzed_requests import RequestFuzzer, Sent
from running_server import ENDPOINTS, RunningServer
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import wait_until

from benchmarks.support.report import environment, write_result

SEED = 20261120
NUM_CALLERS = 24
ANSWER_S = 60.0
ENGINE = {"provider": "simulated", "step_ms": 1.0, "num_kv_blocks": 4096}
# What our own wrapper says of an error that nobody has thought of.
UNEXPECTED = "unexpected error"

LOST = "lost"  # with the connection: the server died of it, or of another one that was under way
Outcome = tuple[str, str]  # a kind of answer, and its text where it is an error


async def ask_grpc(stub: service_pb2_grpc.GRPCInferenceServiceStub, sent: Sent) -> Outcome:
    """Ask over gRPC, and return the outcome.

    Raises:
        TimeoutError: no answer, or no end of it.
    """
    message = sent.message()
    try:
        async with asyncio.timeout(ANSWER_S):
            if not sent.is_streaming_call:
                await stub.ModelInfer(message)
                return "answered", ""
            return await _read_stream(stub, message, sent)
    except grpc.aio.AioRpcError as exc:
        if exc.code() is grpc.StatusCode.UNAVAILABLE:
            return LOST, exc.details() or ""
        return f"refused: {exc.code().name}", exc.details() or ""


async def _read_stream(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, message: service_pb2.ModelInferRequest, sent: Sent
) -> Outcome:
    answered: set[int | None] = set()
    is_over = asyncio.Event()

    async def requests() -> AsyncIterator[service_pb2.ModelInferRequest]:
        yield message
        await is_over.wait()

    call = stub.ModelStreamInfer(requests())
    try:
        async for response in call:
            if response.error_message:
                return "failed", response.error_message
            answered.add(_batch_index(response.infer_response))
            if response.infer_response.parameters["triton_final_response"].bool_param:
                return _complete(sent, answered)
    finally:
        is_over.set()
        call.cancel()
    return "cut", "the stream ended without a final response"


def _batch_index(response: service_pb2.ModelInferResponse) -> int | None:
    for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name == "batch_index":
            return int.from_bytes(content, "little")
    return None


def _complete(sent: Sent, answered: set[int | None]) -> Outcome:
    """Return whether each prompt of a valid request was answered, and told apart from the others."""
    is_batch = sent.num_prompts > 1 and sent.model != "preprocessing"
    expected = set(range(sent.num_prompts)) if is_batch else {None}
    if sent.is_valid and answered != expected:
        return "not all", f"answers for {answered}, and not for {expected}"
    return "answered", ""


async def ask_http(session: aiohttp.ClientSession, fuzzer: RequestFuzzer, kind: int) -> Outcome:
    """Ask by one of HTTP's three ways, and return the outcome.

    Raises:
        TimeoutError: no answer, or no end of it.
    """
    if kind == 0:
        sent = fuzzer.request()
        body, header_length = sent.binary()
        path, headers = f"{sent.model}/infer", {"Inference-Header-Content-Length": str(header_length)}
    else:
        model, body = fuzzer.json_body()
        path, headers = f"{model}/{'generate' if kind == 1 else 'generate_stream'}", {}
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            session.post(f"/v2/models/{path}", data=io.BytesIO(body), headers=headers) as response,
        ):
            text = await response.text(errors="replace")
    except aiohttp.ClientConnectionError as exc:
        return LOST, f"{exc!r} after {path}, {headers}: {body[:1000]!r}"
    return ("answered", "") if response.status == 200 and '"error"' not in text else (f"{response.status}", text)


class Fuzz:
    """Random requests from many callers at once, until `is_over(count)`."""

    def __init__(self, server: RunningServer, seed: int, is_over: Callable[[int], bool]) -> None:
        self._server = server
        self._fuzzer = RequestFuzzer(seed)
        self._is_over = is_over
        self._counter = itertools.count(1)
        self.outcomes: Counter[str] = Counter()
        self.faults: list[tuple[object, Outcome]] = []

    @property
    def num_answered(self) -> int:
        return self.outcomes.total()

    async def run(self) -> None:
        base = f"http://127.0.0.1:{self._server.http_port}"
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        async with (
            grpc.aio.insecure_channel(self._server.url, options=options) as channel,
            aiohttp.ClientSession(base) as session,
        ):
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            await asyncio.gather(*(self._call(stub, session) for _ in range(NUM_CALLERS)))

    async def _call(self, stub: service_pb2_grpc.GRPCInferenceServiceStub, session: aiohttp.ClientSession) -> None:
        for count in self._counter:
            if self._is_over(count) or LOST in self.outcomes:
                return
            if count % 5 == 0:
                way, sent = count // 5 % 3, None
                outcome = await ask_http(session, self._fuzzer, way)
                self._note(f"HTTP {way}", outcome, is_fault=False)
            else:
                sent = self._fuzzer.request()
                outcome = await ask_grpc(stub, sent)
                self._note(sent, outcome, is_fault=sent.is_valid and outcome[0] != "answered")

    def _note(self, what: object, outcome: Outcome, *, is_fault: bool) -> None:
        kind, text = outcome
        self.outcomes[kind] += 1
        if is_fault or kind in ("cut", LOST) or "Traceback" in text or UNEXPECTED in text or 'File "' in text:
            self.faults.append((what, outcome))


def fuzz(server: RunningServer, seed: int, is_over: Callable[[int], bool]) -> Fuzz:
    """Fuzz the server, and check everything that must hold."""
    before = server.descendants()
    run = Fuzz(server, seed, is_over)
    asyncio.run(run.run())
    assert run.faults == [], f"seed {seed}: {len(run.faults)} faults in {run.num_answered}"
    assert server.is_ready()
    assert server.descendants() == before, f"seed {seed}: a process was replaced"
    assert "Traceback" not in server.log()
    wait_until(lambda: server.num_streams() == 0 and server.used_kv_blocks() == 0, 10)
    return run


def test_two_thousand_random_requests_are_all_answered(start_server: Callable[..., RunningServer]) -> None:
    run = fuzz(start_server(engine=ENGINE, endpoints=ENDPOINTS), SEED, lambda count: count > 2_000)
    assert run.num_answered == 2_000
    assert run.outcomes["answered"] > 500  # the right ones among them
    assert run.outcomes["failed"] > 200


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_random_requests_or_half_an_hour_of_them(start_server: Callable[..., RunningServer]) -> None:
    start_s = time.monotonic()
    server = start_server(engine=ENGINE, endpoints=ENDPOINTS)
    seed = SEED + 1
    run = fuzz(server, seed, lambda count: count > 1_000_000 or time.monotonic() > start_s + 1800)
    result: dict[str, object] = {
        "benchmark": "fuzz",
        "seed": seed,
        "seconds": round(time.monotonic() - start_s),
        "requests": run.num_answered,
        "outcomes": dict(run.outcomes),
        "environment": environment(triton_http=f"127.0.0.1:{server.http_port}"),
    }
    write_result("fuzz", result)
    assert run.num_answered > 100_000
