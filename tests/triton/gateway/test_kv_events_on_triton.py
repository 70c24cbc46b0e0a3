# SPDX-License-Identifier: Apache-2.0
"""KV cache events of real servers: what gateways know by them, and what subscribers over ZeroMQ and HTTP are told.

The engines are `simulated`, with blocks that are kept for reuse; the first repeats its prompt and the second does not,
so an answer tells who has made it. `tests/unit/serving/engines/vllm` has vLLM's own events.
"""

import contextlib
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from gateway_process import GatewayProcess
from kv_subscriber import BlockTable, read_batch, replay
from openai import OpenAI
from process_words import words_of
from running_server import RunningServer, deployment_text

from trireme.base.free_ports import free_ports

WORDS = ("river", "stone", "amber", "north", "cloud", "paper", "seven", "glass", "under", "light")
ECHO, HASH = 0, 1  # the servers
NUM_BLOCKS = (4096, 1024)  # of each


def deployment(server: int, ports: tuple[int, int]) -> str:
    engine = {
        "provider": "simulated",
        "mode": ("echo", "hash")[server],
        "is_block_reuse": True,
        "max_seq_len": 8192,
        "num_kv_blocks": NUM_BLOCKS[server],
        "step_ms": 1,
    }
    first, second = ports
    events = {
        "endpoint": f"tcp://*:{first}",
        "replay_endpoint": f"tcp://*:{second}",
        "num_kept_batches": 8,
        "server_name": f"server-{server}",
    }
    return deployment_text("alike", engine=engine, kv_events=events)


@pytest.fixture(scope="module")
def ports() -> list[tuple[int, int]]:
    free = free_ports(4)
    return [(free[0], free[1]), (free[2], free[3])]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, ports: list[tuple[int, int]]) -> Iterator[list[RunningServer]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(RunningServer(deployment(server, ports[server]), tmp_path_factory.mktemp("server")))
            for server in (ECHO, HASH)
        ]


class Gateway:
    """A gateway before servers."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process

    def ask(self, prompt: str) -> int:
        """Return the server that answers."""
        with OpenAI(base_url=self._process.url, api_key="none", max_retries=0) as client:
            answer = client.completions.create(model="alike", prompt=prompt, max_tokens=8, temperature=0)
        return ECHO if prompt.startswith(answer.choices[0].text.strip()) else HASH


@contextlib.contextmanager
def gateway_of(servers: list[RunningServer], folder: Path, *, is_told: bool = True) -> Iterator[Gateway]:
    folder.mkdir()
    options = [part for server in servers[1:] for part in ("--url", server.url)]
    for server in servers if is_told else []:
        options += ["--metrics-url", f"127.0.0.1:{server.metrics_port}"]
    with GatewayProcess(servers[0], folder, options=tuple(options)) as running:
        yield Gateway(running)


def text(name: str, num_words: int = 300) -> str:
    choice = random.Random(name)
    return " ".join(choice.choice(WORDS) for _ in range(num_words))


def send(server: RunningServer, prompt: str) -> None:
    """Ask a server itself, as somebody does who does not come by a gateway."""
    body = json.dumps({"text_input": prompt, "max_tokens": 8}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/v2/models/ensemble/generate", data=body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


def is_answering(server: RunningServer) -> bool:
    with contextlib.suppress(urllib.error.HTTPError):
        send(server, "Are you there again?")
        return True
    return False


def snapshot(server: RunningServer, query: str = "") -> dict[str, Any]:
    """Return what a server tells first over HTTP."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/kv_events{query}", timeout=10) as answer:
        assert answer.readline() == b"id: 0\n"
        assert answer.readline() == b"event: snapshot\n"
        found: dict[str, Any] = json.loads(answer.readline().removeprefix(b"data: "))
        return found


def held_prefixes(server: RunningServer) -> set[int]:
    return {
        number
        for engine in snapshot(server, "?prefixes=true")["engines"]
        for event in engine["events"]
        for number in event.get("numbers", ())
    }


def wait_for(is_so: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_second_gateway_finds_what_the_first_one_and_others_have_sent(
    servers: list[RunningServer], tmp_path: Path
) -> None:
    prompts = [text(f"second {number}") for number in range(8)]
    with gateway_of(servers, tmp_path / "first") as first:
        holders = [first.ask(prompt) for prompt in prompts]
    assert set(holders) == {ECHO, HASH}
    others = [text(f"direct {number}") for number in range(4)]
    for number, prompt in enumerate(others):
        send(servers[number % 2], prompt)
    with gateway_of(servers, tmp_path / "second") as second:
        time.sleep(1.0)  # for its feeds
        # From the last on: who does not know takes the first server first, and then the other one.
        found = [second.ask(prompt + text("end", 40)) for prompt in reversed(prompts)]
        assert found == holders[::-1] != [ECHO, HASH] * 4
        assert [second.ask(prompt + text("end", 40)) for prompt in reversed(others)] == [HASH, ECHO] * 2
        # What others send while it runs, it hears of, too.
        for number, prompt in enumerate(texts := [text(f"later {number}") for number in range(4)]):
            send(servers[number // 2], prompt)
        time.sleep(0.5)
        assert [second.ask(prompt) for prompt in texts] == [ECHO, ECHO, HASH, HASH]
    with gateway_of(servers, tmp_path / "guessing", is_told=False) as guessing:
        assert [guessing.ask(prompt) for prompt in reversed(prompts)] == [ECHO, HASH] * 4, "who is not told guesses"


def test_a_cache_that_is_lost_attracts_nobody_any_more(servers: list[RunningServer], tmp_path: Path) -> None:
    prompts = [text(f"lost {number}") for number in range(6)]
    with (
        gateway_of(servers, tmp_path / "told") as told,
        gateway_of(servers, tmp_path / "guessing", is_told=False) as guessing,
    ):
        for prompt in prompts:
            send(servers[HASH], prompt)
        wait_for(lambda: held_prefixes(servers[HASH]))
        time.sleep(0.5)
        assert {told.ask(prompt) for prompt in prompts} == {HASH}
        guesses = [guessing.ask(prompt) for prompt in prompts]
        time.sleep(2.5)  # what was sent a moment ago counts for so long
        before = servers[HASH].engine_process()
        before.kill()
        wait_for(lambda: not held_prefixes(servers[HASH]))
        wait_for(lambda: is_answering(servers[HASH]))
        chosen = [told.ask(prompt) for prompt in prompts]
        assert set(chosen) == {ECHO, HASH}, "they take turns, as with prompts that nobody has"
        assert [guessing.ask(prompt) for prompt in prompts] == guesses


def test_blocks_that_gave_way_to_others_attract_nobody(tmp_path: Path, servers: list[RunningServer]) -> None:
    prompt = text("gives way")
    with gateway_of(servers, tmp_path / "told") as told:
        send(servers[HASH], prompt)
        time.sleep(0.5)
        assert told.ask(prompt) == HASH
        known = held_prefixes(servers[HASH])
        for number in range(60):
            send(servers[HASH], text(f"other {number}", 900))
            if not known & held_prefixes(servers[HASH]):
                break
        else:
            pytest.fail("nothing gave way")
        time.sleep(2.5)
        assert told.ask(prompt) == ECHO, "the first of two that do not have it, and have nothing to do"


def test_a_subscriber_by_the_published_format_knows_what_the_server_holds(
    servers: list[RunningServer], ports: list[tuple[int, int]]
) -> None:
    live, asked = ports[ECHO]
    context = zmq.Context()
    with contextlib.closing(context.socket(zmq.SUB)) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
        socket.connect(f"tcp://127.0.0.1:{live}")
        time.sleep(0.5)
        table = BlockTable()
        for message in replay(context, asked, 0):  # more was told than is kept: all that is held comes at once
            table.take(*message)
        numbers: list[int] = []
        for number in range(3):
            send(servers[ECHO], text(f"subscribed {number}"))
            while number + 1 > len(numbers):
                assert socket.poll(10_000), "nothing was told"
                topic, counter, payload = socket.recv_multipart()
                numbers.append(int.from_bytes(counter, "big"))
                table.take(topic, numbers[-1], read_batch(payload))
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        assert set(table.topics) == {"kv@server-0@alike"}
        told = snapshot(servers[ECHO])["engines"]
        [engine] = told
        hashes = {each for event in engine["events"] for each in event.get("block_hashes", ())}
        assert table.hashes == hashes
        assert not any("token_ids" in event for event in engine["events"]), "nobody has allowed them over HTTP"
        # A gap is asked for by its first number; the end has the number -1.
        again = list(replay(context, asked, numbers[1]))
        assert [number for _, number, _ in again] == numbers[1:]
    context.term()


def test_a_question_that_is_none_is_refused_by_name(servers: list[RunningServer]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        snapshot(servers[ECHO], "?prefixes=yes")
    assert "prefixes must be true or false, got 'yes'" in refused.value.read().decode()


def test_a_frontend_that_is_started_again_knows_all_anew(servers: list[RunningServer]) -> None:
    send(servers[HASH], text("kept"))
    before = held_prefixes(servers[HASH])
    assert before
    [frontend] = [
        each for each in servers[HASH].descendants() if "serving.frontend.process" in words_of(each)
        and '"kind":"http"' in "".join(words_of(each))
    ]  # fmt: skip
    frontend.kill()

    def is_back() -> bool:
        with contextlib.suppress(OSError):
            return held_prefixes(servers[HASH]) == before
        return False

    wait_for(is_back)
