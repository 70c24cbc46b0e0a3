# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/kubernetes.md: three Tritons behind the chart's Envoy (`make soak`)."""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_here import needs_chart
from chart_replicas import Site
from envoy_here import needs_envoy
from streams_under_change import PROMPTS, Streams, answers, request
from test_chart_on_triton import MODEL, NUM_STREAMS, NUM_TOKENS, cut_and_failed

from benchmarks.support.report import environment, ratio_of_quantiles, write_result
from clients.streaming import AsyncTritonClient

pytestmark = [needs_chart, needs_envoy, pytest.mark.soak, pytest.mark.quiet, pytest.mark.timeout(1800)]
FOUND: dict[str, Any] = {"benchmark": "chart"}
SHORT = 3  # tokens
NUM_REQUESTS, SHARE = 20_000, 0.10
NUM_WINDOWS, WINDOW_S, NUM_CALLERS = 20, 4.0, 8
NUM_KILLS = 3


@pytest.fixture(scope="module", autouse=True)
def result() -> Iterator[None]:
    """Write the result once all tests have passed."""
    yield
    assert len(FOUND) == 5, "figures of a part are no result"
    write_result("chart", {**FOUND, "environment": environment()})


@pytest.fixture
def canary(tmp_path: Path) -> Site:
    """Return a site of two stable servers and a candidate."""
    other = {**MODEL, "release": 2, "engine": {**MODEL["engine"], "seed": 2, "step_ms": 5.0}}
    other.pop("endpoints")
    model = {**MODEL, "engine": {**MODEL["engine"], "step_ms": 5.0}}
    traffic = {"candidate": "chat-2", "candidateWeight": round(SHARE * 10_000)}
    return Site(tmp_path, {"name": "chat", **model, "other_releases": [other]}, {"traffic": {"chat": traffic}})


def test_a_split_of_90_to_10_over_twenty_thousand_requests(canary: Site) -> None:
    with canary.run(chat=2, chat_2=1):
        stable, candidate = (canary.url_of(canary.replicas[name][0]) for name in ("chat", "chat-2"))
        by_release = {
            release: answers(url, "ensemble", max_tokens=SHORT) for release, url in ((1, stable), (2, candidate))
        }
        begun_s = time.monotonic()
        with Streams(canary.envoy.url, by_release, num_streams=32, max_tokens=SHORT, pause_s=0.0) as load:
            while load.num_answers.total() < NUM_REQUESTS and not load.wrong:
                time.sleep(0.1)
        seconds = time.monotonic() - begun_s
    assert load.wrong == load.refused == []
    share = load.num_answers[2] / load.num_answers.total()
    assert abs(share - SHARE) < 0.01
    FOUND["split"] = {
        "requests": load.num_answers.total(),
        "to_candidate": share,
        "wanted": SHARE,
        "failed": 0,
        "requests_per_s": round(load.num_answers.total() / seconds),
    }


def test_a_mirrored_server_that_hangs(canary: Site) -> None:
    """Windows with every request mirrored to it and without take turns."""
    mirror = {"candidateWeight": 0, "mirror": {"server": "chat-2", "percent": 100}}
    with canary.run(chat=2, chat_2=1):
        [hung] = canary.replicas["chat-2"]
        canary.envoy.upgrade({"traffic": {"chat": mirror}})
        asyncio.run(latencies(canary.envoy.url, WINDOW_S))  # warm
        hung.signal(signal.SIGSTOP)
        try:
            plain, mirrored = [], []
            for _ in range(NUM_WINDOWS // 2):
                canary.envoy.upgrade({"traffic": {"chat": {"mirror": None}}})
                plain.append(asyncio.run(latencies(canary.envoy.url, WINDOW_S)))
                canary.envoy.upgrade({"traffic": {"chat": {"mirror": mirror["mirror"]}}})
                mirrored.append(asyncio.run(latencies(canary.envoy.url, WINDOW_S)))
        finally:
            hung.signal(signal.SIGCONT)
    FOUND["hung_mirror"] = {
        "requests": sum(map(len, plain + mirrored)),
        "p50_over_without": ratio_of_quantiles(mirrored, plain, 0.5),
        "p99_over_without": ratio_of_quantiles(mirrored, plain, 0.99),
    }
    assert FOUND["hung_mirror"]["p50_over_without"]["low"] < 1.05  # no more than the noise


async def latencies(url: str, seconds: float) -> list[float]:
    """Return the latencies of requests that all succeed."""
    found: list[float] = []
    ends_s = time.monotonic() + seconds

    async def caller(client: AsyncTritonClient, number: int) -> None:
        while time.monotonic() < ends_s:
            begun_s = time.monotonic()
            async for _ in client.generate(request(PROMPTS[number % len(PROMPTS)], max_tokens=SHORT)):
                pass
            found.append(time.monotonic() - begun_s)

    async with AsyncTritonClient(url) as client:
        await asyncio.gather(*(caller(client, number) for number in range(NUM_CALLERS)))
    return found


@pytest.fixture
def three(tmp_path: Path) -> Site:
    return Site(tmp_path, {"name": "chat", **MODEL})


def test_a_server_that_is_killed(three: Site) -> None:
    seconds = []
    with three.run(chat=3):
        by_release = {1: answers(three.url_of(three.replicas["chat"][0]), "ensemble", max_tokens=NUM_TOKENS)}
        with Streams(three.envoy.url, by_release, num_streams=NUM_STREAMS, max_tokens=NUM_TOKENS, pause_s=0.0) as load:
            for number in range(NUM_KILLS):
                load.wait_for(1, 2 * NUM_STREAMS)
                killed = three.replicas["chat"][number]
                killed.signal(signal.SIGKILL)
                begun_s = time.monotonic()
                while not three.envoy.hosts("chat-grpc")[killed.host]:
                    time.sleep(0.01)
                seconds.append(round(time.monotonic() - begun_s, 2))
                killed.leave_service()
                three.grow("chat")
            load.wait_for(1, 2 * NUM_STREAMS)
    cut, failed = cut_and_failed(load)
    assert failed == []
    assert max(seconds) < 5
    FOUND["killed"] = {
        "ejected_after_s": seconds,
        "answers": load.num_answers.total(),
        "streams_cut": len(cut),
        "failed_before_they_began": len(failed),
    }


def test_three_servers_are_replaced_twice(three: Site) -> None:
    begun_s = time.monotonic()
    with three.run(chat=3):
        by_release = {1: answers(three.url_of(three.replicas["chat"][0]), "ensemble", max_tokens=NUM_TOKENS)}
        with Streams(three.envoy.url, by_release, num_streams=NUM_STREAMS, max_tokens=NUM_TOKENS, pause_s=0.0) as load:
            for number in range(6):
                three.grow("chat")
                load.wait_for(1, NUM_STREAMS)
                assert three.replicas["chat"][number].delete() == 0
            load.wait_for(1, NUM_STREAMS)
    assert load.wrong == load.refused == []
    FOUND["replaced"] = {
        "servers": 6,
        "seconds": round(time.monotonic() - begun_s, 1),
        "answers": load.num_answers.total(),
        "failed": len(load.refused),
        "cut": len(load.wrong),
    }
