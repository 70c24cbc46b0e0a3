# SPDX-License-Identifier: Apache-2.0
"""Gateways before two real servers: what one gateway has at a server moves the requests of the other elsewhere."""

import contextlib
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam
from running_server import RunningServer, deployment_text

# A stream lasts as long as a test; more than four of them at a server wait there.
ENGINE = {"provider": "simulated", "step_ms": 50.0, "num_kv_blocks": 4096, "max_num_seqs": 4, "seed": 1}
LONG = 1500  # tokens
WAIT_S = 60.0
TWO_LOOKS_S = 1.5  # in which a gateway has seen twice who waits


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    with contextlib.ExitStack() as stack:
        text = deployment_text("alike", engine=ENGINE)
        yield [
            stack.enter_context(RunningServer(text, tmp_path_factory.mktemp(f"server{number}"))) for number in range(2)
        ]


class Caller:
    """A caller of one gateway, whose streams go on until they are closed or the gateway ends."""

    def __init__(self, gateway: GatewayProcess, pool: ThreadPoolExecutor) -> None:
        self.gateway, self._pool = gateway, pool
        self._num_begun = 0

    def begin(self, *contents: str) -> None:
        """Send a chat, and return once the gateway has sent it to a server; it may wait there."""
        self._num_begun += 1
        self._pool.submit(self._read, contents)
        wait_until(lambda: self._num_running() >= self._num_begun)

    def ask(self, *contents: str) -> int:
        """Return the server that answers a chat of some tokens, once it has."""
        before = self.running()
        asked = self._pool.submit(self._read, contents, 20)
        wait_until(lambda: self.running() != before)
        [server] = [number for number, count in enumerate(self.running()) if count > before[number]]
        asked.result(WAIT_S)
        wait_until(lambda: self.running() == before)
        return server

    def _read(self, contents: tuple[str, ...], max_tokens: int = LONG) -> None:
        with contextlib.suppress(OpenAIError), OpenAI(base_url=self.gateway.url, api_key="x", max_retries=0) as client:
            messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": each} for each in contents]
            client.chat.completions.create(
                model="alike", messages=messages, max_tokens=max_tokens, extra_body={"ignore_eos": True}
            )

    def metric(self, name: str) -> list[float]:
        """Return a metric of each server."""
        return self._values(rf"trireme_gateway_server_{name}{{.*}}")

    def _num_running(self) -> float:
        return sum(self.running() or self._values("trireme_gateway_running_requests"))  # one server has no metrics

    def _values(self, name: str) -> list[float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.gateway.port}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        return [float(value) for value in re.findall(rf"^{name} (\S+)$", page, re.MULTILINE)]

    def running(self) -> list[float]:
        """Return how many requests of this gateway run at each server."""
        return self.metric("running_requests")


@contextlib.contextmanager
def caller_of(servers: list[RunningServer], folder: Path, *options: str) -> Iterator[Caller]:
    urls = tuple(part for server in servers[1:] for part in ("--url", server.url))
    folder.mkdir()
    with (
        ThreadPoolExecutor(16) as pool,  # ends after the gateway, with which all streams end
        GatewayProcess(servers[0], folder, options=(*urls, *options, "--exit-timeout-s", "0")) as gateway,
    ):
        yield Caller(gateway, pool)


def pages_of(servers: list[RunningServer]) -> list[str]:
    return [part for server in servers for part in ("--metrics-url", f"127.0.0.1:{server.metrics_port}")]


@contextlib.contextmanager
def one_server_loaded(server: RunningServer, folder: Path) -> Iterator[None]:
    """Let a gateway that knows one server alone have six streams there."""
    with caller_of([server], folder) as caller:
        for number in range(6):
            caller.begin(f"{number}")
        yield


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_requests_go_where_no_other_gateway_has_its_own(servers: list[RunningServer], tmp_path: Path) -> None:
    with (
        caller_of(servers, tmp_path / "seeing", *pages_of(servers)) as seeing,
        caller_of(servers, tmp_path / "blind") as blind,
        one_server_loaded(servers[0], tmp_path / "loading"),
    ):
        wait_until(lambda: seeing.metric("load_requests") == [6, 0])  # four that run, and two that wait
        time.sleep(TWO_LOOKS_S)
        for number in range(3):
            seeing.begin(f"mine {number}")
        assert seeing.running() == [0, 3]
        for number in range(4):
            blind.begin(f"of the blind {number}")
        assert blind.running() == [2, 2]
        assert blind.metric("load_requests") == []


def test_a_conversation_leaves_the_server_that_another_gateway_fills(
    servers: list[RunningServer], tmp_path: Path
) -> None:
    first = "word " * 200
    with (
        caller_of(servers, tmp_path / "seeing", *pages_of(servers)) as seeing,
        caller_of(servers, tmp_path / "blind") as blind,
    ):
        wait_until(lambda: seeing.metric("load_requests") == [0, 0])  # those of another test have ended
        for caller in (seeing, blind):
            assert [caller.ask(first), caller.ask(first, "And then?")] == [0, 0]
        with one_server_loaded(servers[0], tmp_path / "loading"):
            wait_until(lambda: seeing.metric("load_requests") == [6, 0])
            time.sleep(TWO_LOOKS_S)
            assert seeing.ask(first, "And then?", "And now?") == 1
            blind.begin(first, "And then?", "And now?")
            assert blind.running() == [1, 0]
