# SPDX-License-Identifier: Apache-2.0
"""The ledger while the gateway, Triton and the database are killed at random: each finished request once, to the token.

`make soak` sends 50,000 requests and writes a result; `make test` a sample of them.
"""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import psycopg
import pytest
from gateway_process import GatewayProcess
from running_server import RunningServer, deployment_text
from waiting import wait_until

from benchmarks.support.report import environment, write_result
from gateway.ledger.ledger_row import UNSETTLED

if TYPE_CHECKING:
    from postgres_here import PostgresServer

ENGINE = {"provider": "simulated", "step_ms": 2.0, "max_num_seqs": 64, "num_kv_blocks": 4096}
TRITON = {"max_restarts": 100, "restart_window_s": 10.0}  # it is killed more often than any machine fails
PRICE = {"input": 0.15, "output": 0.6}
CALLERS = 32
QUIET = 200  # requests without kills, whose sums the metrics must have
FULL = pytest.param(50_000, 12, marks=[pytest.mark.soak, pytest.mark.timeout(3600)], id="full")
FINISHED = {"stop", "length"}


class KilledGateway(GatewayProcess):
    """A gateway that is killed, and started again at the same port."""

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()
        self.__enter__()


@dataclass
class Told:
    """The ends of requests, as callers were told.

    Attributes:
        finished: tokens of the prompt and the answer, by the ids of answers that came whole.
        failed: ids of answers that broke off; those that failed before have none.
    """

    finished: dict[str, tuple[int, int]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    num_failed: int = 0


class Callers:
    """Callers who ask for short answers, whole and streamed, until so many requests were sent."""

    def __init__(self, url: str, number: int, *, seed: int) -> None:
        self._url, self.num_left, self.told, self._rng = url, number, Told(), random.Random(seed)

    async def run(self) -> Told:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(self._go_on(session) for _ in range(CALLERS)))
        return self.told

    async def _go_on(self, session: aiohttp.ClientSession) -> None:
        while self.num_left > 0:
            self.num_left -= 1
            answer_id: list[str] = []
            try:
                usage = await self._ask(session, answer_id)
            except (aiohttp.ClientError, ConnectionError, TimeoutError, ValueError):
                self.told.num_failed += 1
                self.told.failed.update(answer_id)
                await asyncio.sleep(self._rng.uniform(0.5, 2.0))  # as a client would, before it tries again
            else:
                self.told.finished[answer_id[0]] = usage

    async def _ask(self, session: aiohttp.ClientSession, answer_id: list[str]) -> tuple[int, int]:
        """Return the tokens of an answer that came whole; its id is noted as soon as it is known."""
        is_streaming = self._rng.random() < 0.5
        body: dict[str, Any] = {"prompt": "Hello there", "max_tokens": self._rng.randint(1, 8), "ignore_eos": True}
        if is_streaming:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        usage: dict[str, int] | None = None
        async with session.post(f"{self._url}/completions", json=body) as answer:
            if answer.status != 200:
                raise ValueError(answer.status)
            if not is_streaming:
                found = await answer.json()
                answer_id.append(found["id"])
                return found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]
            async for line in answer.content:
                text = line.decode().removeprefix("data: ").strip()
                if text == "[DONE]":
                    assert usage is not None
                    return usage["prompt_tokens"], usage["completion_tokens"]
                if not text:
                    continue
                event = json.loads(text)
                if "error" in event:
                    raise ValueError(event["error"])
                answer_id[:] = [event["id"]]
                usage = event["usage"] or usage
        raise ValueError("the stream ended without its end")


class Killers:
    """The kills of a run, one after the other, until there is nobody to ask any more."""

    def __init__(self, kills: dict[str, Callable[[], None]], *, seed: int) -> None:
        self._kills, self._rng = kills, random.Random(seed)
        self.counts = Counter[str]()

    async def run(self, callers: Callers, rounds: int) -> None:
        """Kill each so often, at random moments of the requests."""
        order = [name for name in self._kills for _ in range(rounds)]
        self._rng.shuffle(order)
        first, last = callers.num_left * 0.95, callers.num_left * 0.1
        moments = sorted((self._rng.uniform(last, first) for _ in order), reverse=True)
        for name, moment in zip(order, moments, strict=True):
            while callers.num_left > moment:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(self._kills[name])
            self.counts[name] += 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(
        deployment_text("billed", engine=ENGINE, triton=TRITON, price=PRICE), tmp_path / "server"
    ) as running:
        yield running


def rows_of(url: str) -> list[tuple[Any, ...]]:
    columns = "id, finish, prompt_tokens, completion_tokens, cost_nano_usd, release"
    with psycopg.connect(url) as db:
        return list(db.execute(f"select {columns} from gateway_requests".encode()).fetchall())


def summed(url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "trireme", "gateway", "usage", "--ledger", url, "--by", "", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    [found] = json.loads(done.stdout)
    return dict(found)


def tokens_of_metrics(gateway: GatewayProcess) -> tuple[float, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/metrics", timeout=5) as answer:
        page = answer.read().decode()
    pattern = r'gen_ai_client_token_usage_sum\{.*gen_ai_token_type="%s"\} (\S+)'
    found = [re.findall(pattern % kind, page) for kind in ("input", "output")]
    prompt, completion = (sum(map(float, values)) for values in found)
    return prompt, completion


@pytest.mark.slow
@pytest.mark.parametrize(("number", "rounds"), [pytest.param(1500, 1, id="sample"), FULL])
def test_each_finished_request_is_in_the_ledger_once(
    server: RunningServer, postgres: "PostgresServer", tmp_path: Path, number: int, rounds: int
) -> None:
    where = environment() if number > 10_000 else None
    url = postgres.url(postgres.new_database())

    def kill_database() -> None:
        postgres.kill()
        time.sleep(1.0)
        postgres.start()

    def kill_triton() -> None:
        triton = server.tritonserver()
        triton.kill()
        triton.wait()
        wait_until(server.is_ready, 60.0)

    options = ("--ledger", url, "--ledger-journal", str(tmp_path / "journal"))
    begun_s = time.monotonic()
    with KilledGateway(server, tmp_path, options=options) as gateway:
        callers = Callers(gateway.url, number, seed=number)
        killers = Killers({"gateway": gateway.kill, "Triton": kill_triton, "database": kill_database}, seed=number)

        async def both() -> Told:
            told, _ = await asyncio.gather(callers.run(), killers.run(callers, rounds))
            return told

        told = asyncio.run(both())
        seconds = time.monotonic() - begun_s
        assert killers.counts == {"gateway": rounds, "Triton": rounds, "database": rounds}
        assert len(told.finished) > number / 2
        wait_until(gateway.is_ready, 60.0)
        before = tokens_of_metrics(gateway)
        quiet = asyncio.run(Callers(gateway.url, QUIET, seed=1).run())
        assert quiet.num_failed == 0
        after = tokens_of_metrics(gateway)
        everything = told.finished | quiet.finished
        wait_until(lambda: everything.keys() <= {name for name, *_ in with_prefix(rows_of(url))}, 60.0)
    rows = {row[0]: row for row in with_prefix(rows_of(url))}
    wrong = [
        (name, rows[name], tokens)
        for name, tokens in everything.items()
        if rows[name][2:4] != tokens or rows[name][1] not in FINISHED or rows[name][5] != 1
    ]
    assert wrong == []
    # What callers were not told of to the end: it failed, or its gateway died over it or over the last byte.
    others = Counter(row[1] for name, row in rows.items() if name not in everything)
    num_told_late = sum(count for finish, count in others.items() if finish in FINISHED)
    assert num_told_late <= rounds * 2 * CALLERS
    assert others[UNSETTLED] <= rounds * CALLERS
    for prompt, completion, cost in (row[2:5] for row in rows.values()):
        assert cost == prompt * 150 + completion * 600
    found = summed(url)
    sums = [sum(row[column] for row in rows.values()) for column in (2, 3, 4)]
    assert [found["requests"], found["prompt_tokens"], found["completion_tokens"]] == [len(rows), *sums[:2]]
    assert round(found["cost_usd"] * 1e9) == sums[2]
    of_quiet = [sum(tokens[side] for tokens in quiet.finished.values()) for side in (0, 1)]
    assert [after[side] - before[side] for side in (0, 1)] == of_quiet
    if where is not None:
        result = {
            "benchmark": "gateway_ledger",
            "engine": "simulated",
            "requests": number,
            "callers": CALLERS,
            "kills": dict(killers.counts),
            "seconds": round(seconds, 1),
            "finished": len(told.finished),
            "failed": told.num_failed,
            "rows": len(rows) - len(quiet.finished),
            "finished_once_and_to_the_token": len(everything) - len(wrong) - len(quiet.finished),
            "others": dict(sorted(others.items())),
            "without_kills": {
                "requests": QUIET,
                "tokens": of_quiet,
                "tokens_by_metrics": [after[side] - before[side] for side in (0, 1)],
            },
            "environment": where,
        }
        write_result("gateway_ledger", result)


def with_prefix(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows with the ids that callers have."""
    return [(f"cmpl-{row[0]}", *row[1:]) for row in rows]
