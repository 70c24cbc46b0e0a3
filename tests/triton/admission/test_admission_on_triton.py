# SPDX-License-Identifier: Apache-2.0
"""Admission of the running server, asked by every text model: classes, limits, refusals and what is in flight."""

import asyncio
import json
import queue
import random
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from running_server import ENDPOINTS, RunningServer, deployment_text
from text_models import ONE_AND_IN_SOAK_ALL
from waiting import wait_until

from clients.streaming import AsyncTritonClient, GenerateRequest, TritonClient
from trireme.base.errors import QueueFull, RequestError, RequestTimeout, ServingError, Unavailable

ONE_SEAT = {"provider": "simulated", "step_ms": 10.0, "max_num_seqs": 1, "num_kv_blocks": 256}
EIGHT_SEATS = {"provider": "simulated", "step_ms": 10.0, "max_num_seqs": 8, "num_kv_blocks": 64}


def ask(max_tokens: int = 10, **more: object) -> GenerateRequest:
    return GenerateRequest(text_input="hello", max_tokens=max_tokens, stream=True, **more)  # type: ignore[arg-type]


async def finish(client: AsyncTritonClient, request: GenerateRequest, model: str) -> float:
    """Return when the request has ended, in seconds of some clock."""
    async for _ in client.generate(request, model=model):
        pass
    return time.monotonic()


@pytest.fixture(scope="module")
def one_seat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    text = deployment_text("one_seat", engine=ONE_SEAT, endpoints=ENDPOINTS, admission={"queue": {"max_requests": 6}})
    with RunningServer(text, tmp_path_factory.mktemp("one_seat")) as server:
        yield server


@pytest.fixture
def one_seat(one_seat_server: RunningServer) -> RunningServer:
    """Return an idle server: each test finds it so."""
    wait_until(lambda: one_seat_server.num_streams() == 0, 10)
    return one_seat_server


def test_priority_decides_who_starts_in_every_model(one_seat: RunningServer, model: str) -> None:
    async def run() -> list[int]:
        async with AsyncTritonClient(one_seat.url) as client:
            holder = asyncio.create_task(finish(client, ask(100), model))
            await asyncio.to_thread(wait_until, lambda: one_seat.used_kv_blocks() > 0, 5)
            tasks = {}
            for number, priority in enumerate([3, 2, 1, 3, 2, 1]):
                tasks[number] = asyncio.create_task(finish(client, ask(priority=priority, tenant="a"), model))
                await asyncio.sleep(0.03)
            ends = {number: await task for number, task in tasks.items()}
            await holder
            return sorted(ends, key=lambda number: ends[number])

    assert asyncio.run(run()) == [2, 5, 1, 4, 0, 3]


def test_a_class_may_be_named_by_a_request_parameter(one_seat: RunningServer, model: str) -> None:
    body = {"text_input": "hello", "max_tokens": 4, "priority_class": "bulk"}
    url = f"http://127.0.0.1:{one_seat.http_port}/v2/models/{model}/generate"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()))
    assert "[INVALID_ARG field=priority_class value=bulk]" in json.loads(refused.value.read())["error"]
    body["priority_class"] = "premium"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as response:
        assert response.status == 200


def test_a_full_queue_refuses_with_the_time_to_come_back(one_seat: RunningServer) -> None:
    async def run() -> list[ServingError | float]:
        async with AsyncTritonClient(one_seat.url) as client:
            asked = [asyncio.create_task(finish(client, ask(30, tenant=str(n)), "ensemble")) for n in range(20)]
            return await asyncio.gather(*asked, return_exceptions=True)  # type: ignore[return-value]

    results = asyncio.run(run())
    refusals = [result for result in results if isinstance(result, ServingError)]
    assert all(type(refusal) is QueueFull and int(str(refusal.facts["retry_after_ms"])) > 0 for refusal in refusals)
    assert 12 <= len(refusals) <= 14
    refused = one_seat.metric("trireme_refused_requests_total", **{"class": "standard", "reason": "queue_full"})
    assert refused == len(refusals)


def test_a_deadline_ends_a_request_that_runs_and_one_that_waits(one_seat: RunningServer) -> None:
    with TritonClient(one_seat.url) as client, pytest.raises(RequestTimeout, match="deadline_ms passed after"):
        list(client.generate(ask(500, deadline_ms=300)))

    async def waits() -> None:
        async with AsyncTritonClient(one_seat.url) as client:
            holder = asyncio.create_task(finish(client, ask(100), "ensemble"))
            await asyncio.to_thread(wait_until, lambda: one_seat.used_kv_blocks() > 0, 5)
            with pytest.raises((RequestTimeout, Unavailable)):
                await finish(client, ask(queue_timeout_ms=100), "ensemble")
            await holder

    asyncio.run(waits())


def ask_with_timeout(server: RunningServer, model: str, timeout_us: int, **more: object) -> str | None:
    """Ask by NVIDIA's client, whose `timeout` is Triton's own parameter; return the error, if there is one."""
    responses: queue.Queue[tuple[object, Exception | None]] = queue.Queue()
    asked = {"text_input": b"hello", "max_tokens": 100} | more
    inputs = []
    for name, value in asked.items():
        array = np.array([[value]], np.object_ if isinstance(value, bytes) else np.int32)
        inputs.append(grpcclient.InferInput(name, [1, 1], "BYTES" if isinstance(value, bytes) else "INT32"))
        inputs[-1].set_data_from_numpy(array)
    with grpcclient.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer(model, inputs, timeout=timeout_us)
        _, error = responses.get(timeout=20)
        client.stop_stream()
    return None if error is None else str(error)


def test_tritons_own_timeout_is_a_deadline_in_every_model(one_seat: RunningServer, model: str) -> None:
    late = ask_with_timeout(one_seat, model, 300_000)  # 100 tokens take a second
    assert "[DEADLINE reason=deadline_ms]" in str(late)
    assert ask_with_timeout(one_seat, model, 20_000_000) is None
    assert "[DEADLINE" in str(ask_with_timeout(one_seat, model, 20_000_000, deadline_ms=300))
    assert "[DEADLINE" in str(ask_with_timeout(one_seat, model, 300_000, deadline_ms=20_000))


def test_without_admission_tritons_timeout_is_ignored_as_upstream_does(simulated: RunningServer, model: str) -> None:
    assert ask_with_timeout(simulated, model, 1) is None


def test_under_load_batch_gets_shorter_answers_and_then_none_and_premium_all(
    start_server: Callable[..., RunningServer],
) -> None:
    """8 seats of 30 tokens at 10 ms: some 25 requests a second, and three times as many come."""
    cap = {"action": "cap_max_tokens", "priority_class": "batch", "max_tokens": 5, "enter": 1.2, "leave": 0.3}
    refuse = {"action": "refuse", "priority_class": "batch", "enter": 1.5, "leave": 0.5}
    ladder = {"window_s": 1.0, "min_step_s": 1.0, "steps": [cap, refuse]}
    server = start_server(engine=EIGHT_SEATS | {"num_kv_blocks": 512}, admission={"ladder": ladder})
    rng = random.Random(5)
    hints_ms: list[int] = []
    ends: list[tuple[float, int, int | str]] = []  # when it came, its class, and its tokens or why it was refused

    async def one(client: AsyncTritonClient, at: float, start_s: float) -> None:
        priority = rng.choices([1, 3], [2, 8])[0]
        await asyncio.sleep(start_s + at - time.monotonic())
        num_tokens = 0
        try:
            asked = ask(30, priority=priority, return_num_output_tokens=True)
            async for chunk in client.generate(asked, model="ensemble"):
                num_tokens += chunk.num_output_tokens or 0
        except Unavailable as exc:
            hints_ms.append(int(str(exc.facts["retry_after_ms"])))
            ends.append((at, priority, str(exc.facts["reason"])))
        else:
            ends.append((at, priority, num_tokens))

    async def run() -> float:
        async with AsyncTritonClient(server.url) as client:
            start_s = time.monotonic()
            asked = [asyncio.create_task(one(client, at, start_s)) for at in arrivals(rng, 75, 6)]
            await asyncio.sleep(5)
            step = await asyncio.to_thread(server.metric, "trireme_degradation_step")
            await asyncio.gather(*asked)
            return step

    assert asyncio.run(run()) == 2
    assert {end for _, priority, end in ends if priority == 1} == {30}
    of_batch = Counter(end for _, priority, end in ends if priority == 3)
    assert set(of_batch) == {30, 5, "shedding"}
    assert min(hints_ms) > 0
    refused = server.metric("trireme_refused_requests_total", **{"class": "batch", "reason": "shedding"})
    assert refused == of_batch["shedding"]
    wait_until(lambda: server.metric("trireme_degradation_step") == 0, 15)


# In the graph nobody can tell before its first chunk: Triton does not say, and there is nothing to throw away.
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_client_that_leaves_the_queue_is_not_in_it_any_more(one_seat: RunningServer, model: str) -> None:
    async def run() -> None:
        async with AsyncTritonClient(one_seat.url) as client:
            holder = asyncio.create_task(finish(client, ask(400), model))
            await asyncio.to_thread(wait_until, lambda: one_seat.used_kv_blocks() > 0, 5)
            waiting = asyncio.create_task(finish(client, ask(priority=3), model))
            queued = {"class": "batch"}
            await asyncio.to_thread(wait_until, lambda: one_seat.metric("trireme_queue_requests", **queued) == 1, 5)
            waiting.cancel()
            await asyncio.to_thread(wait_until, lambda: one_seat.metric("trireme_queue_requests", **queued) == 0, 2)
            holder.cancel()

    asyncio.run(run())


def arrivals(rng: random.Random, per_s: float, seconds: float) -> Iterator[float]:
    at = 0.0
    while (at := at + rng.expovariate(per_s)) < seconds:
        yield at


@pytest.mark.parametrize("model", ONE_AND_IN_SOAK_ALL)
def test_three_times_what_it_can_do_is_boring(start_server: Callable[..., RunningServer], model: str) -> None:
    """8 seats of 30 tokens at 30 ms: nearly 9 requests a second. Each is answered, or refused at once; nothing grows.

    Three times as many are far less than two busy cores can do, so what waits here waits for a seat.
    """
    budget = {"forecast": "learned", "kv_fraction": 0.75, "shares": {"standard": 0.9, "batch": 0.8}}
    engine = EIGHT_SEATS | {"step_ms": 30.0}
    server = start_server(engine=engine, endpoints=[model], admission={"budget": budget}, slo={"ttft_ms": 1200})
    rng = random.Random(3)
    refusals: list[tuple[float, Unavailable]] = []
    first_token_s: dict[int, list[float]] = {1: [], 2: [], 3: []}
    used_blocks: list[float] = []

    async def one(client: AsyncTritonClient, at: float, start_s: float) -> str:
        priority = rng.choices([1, 2, 3], [2, 5, 3])[0]
        await asyncio.sleep(start_s + at - time.monotonic())
        sent_s = time.monotonic()
        chunks = client.generate(ask(30, priority=priority), model=model)
        try:
            await anext(chunks)
        except Unavailable as exc:
            refusals.append((time.monotonic() - sent_s, exc))
            return "refused"
        first_token_s[priority].append(time.monotonic() - sent_s)
        async for _ in chunks:
            pass
        return "done"

    async def watch() -> None:
        while True:
            used_blocks.append(await asyncio.to_thread(server.used_kv_blocks))
            await asyncio.sleep(0.1)

    async def run() -> Counter[str]:
        async with AsyncTritonClient(server.url) as client:
            watching = asyncio.create_task(watch())
            start_s = time.monotonic()
            found = await asyncio.gather(*(one(client, at, start_s) for at in arrivals(rng, 26, 8)))
            watching.cancel()
            return Counter(found)

    ends = asyncio.run(run())
    assert ends["done"] > 50
    assert ends["refused"] > 70
    assert max(used_blocks) <= 48
    assert all(int(str(refusal.facts["retry_after_ms"])) > 0 for _, refusal in refusals)
    assert statistics.median(seconds for seconds, _ in refusals) < 0.2
    assert len(first_token_s[1]) > 5 * len(first_token_s[3])
    wait_until(lambda: server.used_kv_blocks() == 0, 10)


def test_without_admission_a_wish_about_when_to_run_is_refused_and_not_ignored(simulated: RunningServer) -> None:
    with TritonClient(simulated.url) as client, pytest.raises(RequestError, match="priority needs admission"):
        list(client.generate(ask(priority=1)))
