# SPDX-License-Identifier: Apache-2.0
"""A limit before several gateway processes on one Redis: the limit gets through, and tokens are settled exactly.

`make soak` has eight gateways and 10,000 requests, and writes a result; `make test` a sample.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import pytest
import yaml
from kserve_server import KServeServer, story
from redis.asyncio import Redis
from redis_here import PASSWORD

from benchmarks.support.report import environment, write_result
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from gateway.access.api_key import ApiKey
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from gateway.limits.key_limits import KeyLimits
from gateway.redis_place import PASSWORD as PASSWORD_VARIABLE
from trireme.base.free_ports import free_ports

if TYPE_CHECKING:
    from redis_here import RedisServer

TAKEN = 4 + 4  # tokens of the story's prompt and answer
TOKENS_PER_MINUTE = 60_000
TIMES_THE_LIMIT = 4
MOST_OFF = 0.01  # the goal
FULL = pytest.param(8, 10_000, 2_500, marks=[pytest.mark.soak, pytest.mark.timeout(600)], id="full")


@contextlib.contextmanager
def gateways(number: int, server_url: str, redis_url: str, keys: Path) -> Iterator[list[int]]:
    """Yield the ports of so many gateway processes, which are ready."""
    deployment = keys.with_name("deployment.yaml")
    deployment.write_text(yaml.safe_dump({**yaml.safe_load(DEFAULT_DEPLOYMENT.read_text()), "name": "demo"}))
    ports = free_ports(number)
    common = [sys.executable, "-m", "trireme", "gateway", "serve", "--deployment", str(deployment)]
    common += ["--url", server_url, "--keys", str(keys), "--limits", redis_url]
    running = [
        subprocess.Popen(
            [*common, "--port", str(port)], env={**os.environ, PASSWORD_VARIABLE: PASSWORD}, stderr=subprocess.DEVNULL
        )
        for port in ports
    ]
    try:
        asyncio.run(_all_ready(ports))
        yield ports
    finally:
        for process in running:
            process.terminate()
        assert [process.wait(30) for process in running] == [0] * number


async def _all_ready(ports: list[int]) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        for port in ports:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/health/ready") as answer:
                        if answer.status == 200:
                            break
                await asyncio.sleep(0.1)


class Sent(NamedTuple):
    """Requests that were sent.

    Attributes:
        statuses: how many answers had each.
        seconds: from the first request to the last.
        slowest_s: of the answers.
    """

    statuses: Counter[int]
    seconds: float
    slowest_s: float


async def send(ports: list[int], key: ApiKey, *, number: int, per_s: float, seed: int) -> Sent:
    """Send requests at random times to gateways at random."""
    rng, statuses, latencies_s = random.Random(seed), Counter[int](), [0.0]
    headers = {"Authorization": f"Bearer {key.text}"}
    body: dict[str, Any] = {"prompt": "Hi", "max_tokens": 100}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def ask(port: int) -> None:
            begun_s = time.monotonic()
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
                await answer.read()
                statuses[answer.status] += 1
            latencies_s.append(time.monotonic() - begun_s)

        tasks, begun_s = [], time.monotonic()
        due_s = begun_s
        for _ in range(number):
            due_s += rng.expovariate(per_s)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(ask(rng.choice(ports))))
        seconds = time.monotonic() - begun_s
        await asyncio.gather(*tasks)
    return Sent(statuses, seconds, max(latencies_s))


async def charged(ports: list[int], key: ApiKey, redis_url: str, number: int) -> float:
    """Return the tokens that so many requests were charged, by what is left of the limit before and after them."""
    redis: Any = Redis.from_url(redis_url, password=PASSWORD)  # its types are those of both its clients
    name = f"trireme:limits:{{{key.id}}}"
    seconds, micros = await redis.time()
    before, before_s = TOKENS_PER_MINUTE / 2, seconds + micros / 1e6  # a full one would hide what comes back
    await redis.hset(name, mapping={"tokens": before, "tokens_seen_s": repr(before_s)})
    sent = await send(ports, key, number=number, per_s=200, seed=2)
    assert sent.statuses == {200: number}
    after, after_s = map(float, await redis.hmget(name, ["tokens", "tokens_seen_s"]))
    await redis.aclose()
    assert after < TOKENS_PER_MINUTE - number
    charges: float = before - after + (after_s - before_s) * TOKENS_PER_MINUTE / 60
    return charges


@pytest.mark.slow
@pytest.mark.parametrize(("number", "requests", "per_minute"), [pytest.param(2, 600, 300, id="sample"), FULL])
def test_four_times_the_limit_lets_the_limit_through(
    redis_server: "RedisServer", tmp_path: Path, number: int, requests: int, per_minute: int
) -> None:
    where = environment() if requests >= 10_000 else None
    place = tmp_path / "keys.sqlite"
    with KeyStore(place) as store:
        key = store.create(NewKey("limited", limits=KeyLimits(requests_per_minute=per_minute)))
        warm = store.create(NewKey("warm", limits=KeyLimits(requests_per_minute=10_000)))
        counted = store.create(NewKey("counted", limits=KeyLimits(tokens_per_minute=TOKENS_PER_MINUTE)))
    with KServeServer(*story()) as server, gateways(number, server.url, redis_server.url, place) as ports:
        per_s = TIMES_THE_LIMIT * per_minute / 60
        asyncio.run(send(ports, warm, number=8 * number, per_s=200, seed=1))
        statuses, seconds, slowest_s = asyncio.run(send(ports, key, number=requests, per_s=per_s, seed=requests))
        num_counted = requests // 20
        settled = asyncio.run(charged(ports, counted, redis_server.url, num_counted))
    assert set(statuses) == {200, 429}
    allowed = per_minute + per_minute * seconds / 60
    off = statuses[200] / allowed - 1
    # Redis saw the first and the last request so much later than they were sent, at most.
    unknown = per_minute * slowest_s / 60 / allowed
    assert abs(off) <= MOST_OFF + unknown, (statuses, allowed, slowest_s)
    assert settled == pytest.approx(num_counted * TAKEN, abs=1e-3)
    if where is not None:
        result = {
            "benchmark": "gateway_limits",
            "engine": "none: a scripted server answers",
            "gateways": number,
            "requests": requests,
            "requests_per_minute": per_minute,
            "times_the_limit": round(requests / seconds * 60 / per_minute, 3),
            "seconds": round(seconds, 2),
            "let_through": statuses[200],
            "refused": statuses[429],
            "allowed": round(allowed, 1),
            "off": round(off, 5),
            "settled_tokens": round(settled, 6),
            "tokens_that_were_taken": num_counted * TAKEN,
            "environment": where,
        }
        write_result("gateway_limits", result)
