# SPDX-License-Identifier: Apache-2.0
"""Streams whose real server is killed, or drains, in the middle: they go on at another one, to the letter.

`make soak` moves 200 streams and writes a result; `make test` moves a sample of them.
"""

import asyncio
import contextlib
import functools
import json
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import pytest
from gateway_process import GatewayProcess
from running_server import PROJECT, RunningServer, deployment_text
from waiting import wait_until

from benchmarks.support.report import environment, write_result

MODEL = str(PROJECT / "examples/demo_model/openvino/target")
ENGINES = {
    # In f32: else a prompt's numbers, and those of the same tokens one by one, differ where two words are as likely.
    "openvino": {
        "provider": "openvino",
        "dir": MODEL,
        "max_seq_len": 2048,
        "num_kv_blocks": 2048,
        "execution_mode": "accuracy",
    },
    "simulated": {"provider": "simulated", "step_ms": 10.0, "max_num_seqs": 64, "num_kv_blocks": 4096},
}
TRITON = {"max_restarts": 100, "restart_window_s": 10.0}  # it is killed more often than any machine fails
ENDPOINTS = ("ensemble", "tensorrt_llm_bls")
AT_A_TIME, NUM_PROMPTS, MAX_TOKENS = 8, 24, 96
STREAMS = 200
SOAK = [pytest.mark.soak, pytest.mark.timeout(3000)]
COUNTS = [
    (8, "openvino"),
    *(pytest.param(STREAMS, engine, marks=SOAK, id=f"full-{engine}") for engine in ENGINES),
]  # fmt: skip
WHO, NAMES = ("girl", "boy", "dog", "cat", "bird", "bear"), ("Lily", "Tom", "Max", "Mia")
WHERE, WHAT = ("a big forest", "a small house", "a red barn"), ("play", "find a friend", "eat some cake", "sing")


class Streamed(NamedTuple):
    """A stream as its caller saw it.

    Attributes:
        longest_gap_s: between two events.
    """

    text: str
    usage: tuple[int, int]
    finish_reason: str
    longest_gap_s: float


@contextlib.contextmanager
def two_servers(folder: Path, engine: str, *options: str) -> Iterator[tuple[list[RunningServer], GatewayProcess]]:
    text = deployment_text("moved", engine=ENGINES[engine], triton=TRITON, endpoints=ENDPOINTS)
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(RunningServer(text, folder / f"server{number}", options=options)) for number in range(2)
        ]
        gateway = stack.enter_context(GatewayProcess(servers[0], folder, options=("--url", servers[1].url)))
        yield servers, gateway


def prompts() -> list[str]:
    """Return the beginnings of stories, short and long, as the demo model has learned them."""
    rng, found = random.Random(26), []
    for number in range(NUM_PROMPTS):
        who, name, where, what = WHO[number % 6], NAMES[number // 6], rng.choice(WHERE), rng.choice(WHAT)
        begin = f"Once upon a time, there was a little {who} named {name}. {name} lived in {where}."
        found.append(f"{begin} One day, {name} wanted to {what}." * (1 + number % 3))
    return found


def is_back(server: RunningServer, pid: int) -> bool:
    """Return whether another tritonserver than one that was killed takes requests."""
    pids = [process.pid for process in server.tritons()]
    return bool(pids) and pid not in pids and server.is_ready()


def metric(gateway: GatewayProcess, name: str) -> float:
    """Return the sum of a metric over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def take_all(gateway: GatewayProcess) -> bool:
    return metric(gateway, "trireme_gateway_server_is_taking_requests") == 2


async def stream(
    session: aiohttp.ClientSession, url: str, prompt: str, on_event: Callable[[], None] = lambda: None
) -> Streamed:
    body = {
        "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    parts, reasons, gaps, usage = [], [], [0.0], None
    async with session.post(f"{url}/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        last_s: float | None = None
        async for line in answer.content:
            data = line.decode().removeprefix("data: ").strip()
            if not data or data == "[DONE]":
                continue
            event: dict[str, Any] = json.loads(data)
            assert "error" not in event, event
            now_s = time.monotonic()
            gaps.append(0.0 if last_s is None else now_s - last_s)
            last_s = now_s
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                parts.append(choice["text"])
                reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            on_event()
    assert usage is not None
    [reason] = reasons
    return Streamed("".join(parts), (usage["prompt_tokens"], usage["completion_tokens"]), reason, max(gaps))


async def streams(
    gateway: GatewayProcess, asked: list[str], *, after: int = 0, then: Callable[[], None] = lambda: None
) -> list[Streamed]:
    """Return what comes of some streams at a time, with `then` called after so many events of all."""
    num_events = 0

    def count() -> None:
        nonlocal num_events
        num_events += 1
        if num_events == after:
            then()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        return await asyncio.gather(*(stream(session, gateway.url, prompt, count) for prompt in asked))


def undisturbed(gateway: GatewayProcess) -> dict[str, Streamed]:
    asked, found = prompts(), dict[str, Streamed]()
    for begin in range(0, len(asked), AT_A_TIME):
        some = asked[begin : begin + AT_A_TIME]
        found |= dict(zip(some, asyncio.run(streams(gateway, some)), strict=True))
    return found


@pytest.mark.parametrize(("num_streams", "engine"), COUNTS)
def test_a_stream_whose_server_is_killed_goes_on_to_the_letter(tmp_path: Path, num_streams: int, engine: str) -> None:
    where = environment() if num_streams == STREAMS else None
    rng, counts, gaps_s = random.Random(num_streams), Counter[str](), list[float]()
    with two_servers(tmp_path, engine) as (servers, gateway):
        wait_until(lambda: take_all(gateway), 30)
        expected = undisturbed(gateway)
        while counts["moved"] < num_streams:
            wait_until(lambda: take_all(gateway), 60)
            asked = rng.sample(sorted(expected), AT_A_TIME)
            moment = rng.randint(AT_A_TIME, AT_A_TIME * MAX_TOKENS // 5)  # an event may have several tokens
            server = servers[counts["kills"] % 2]
            victim = server.tritonserver()
            before = metric(gateway, "trireme_gateway_stream_gap_seconds_count")
            found = asyncio.run(streams(gateway, asked, after=moment, then=victim.kill))
            moved = int(metric(gateway, "trireme_gateway_stream_gap_seconds_count") - before)
            for prompt, each in zip(asked, found, strict=True):
                assert each[:3] == expected[prompt][:3], (prompt, gateway.log()[-3000:])
            counts += Counter(kills=1, streams=len(asked), moved=moved)
            wait_until(functools.partial(is_back, server, victim.pid), 60)
            gaps_s += sorted(each.longest_gap_s for each in found)[len(found) - moved :]
    if where is not None:
        p50, p99 = np.percentile(gaps_s, (50, 99))
        result = {
            "benchmark": f"gateway_moved_streams_{engine}",
            "engine": {**ENGINES[engine], "dir": "the demo model"} if engine == "openvino" else ENGINES[engine],
            "servers": 2,
            "at_a_time": AT_A_TIME,
            "max_tokens": MAX_TOKENS,
            "prompts": NUM_PROMPTS,
            "equal_to_undisturbed": counts["streams"],
            **counts,
            "gap_s": {"p50": p50, "p99": p99, "longest": max(gaps_s)},
            "environment": where,
        }
        write_result(f"gateway_moved_streams_{engine}", result)


def test_a_server_that_drains_breaks_no_stream(tmp_path: Path) -> None:
    with two_servers(tmp_path, "simulated", "--exit-timeout-s", "0.1") as (servers, gateway):
        wait_until(lambda: take_all(gateway), 30)
        expected = undisturbed(gateway)
        asked = prompts()[:AT_A_TIME]
        found = asyncio.run(streams(gateway, asked, after=40, then=servers[0].interrupt))
        assert [each[:3] for each in found] == [expected[prompt][:3] for prompt in asked]
        assert [each[:3] for each in asyncio.run(streams(gateway, asked))] == [each[:3] for each in found]
