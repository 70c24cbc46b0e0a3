# SPDX-License-Identifier: Apache-2.0
"""Tests of what a gateway knows of servers' caches: by what they tell, where they tell, and else by what it sent."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from clients.access import NO_ACCESS
from clients.infer_messages import GenerateRequest, encode_request
from gateway.servers.cache_feed import CacheFeed, FeedError
from gateway.servers.choice import choose
from gateway.servers.prefixes import Prefixes, numbers_of
from gateway.servers.server import Server
from serving.pipeline.prompt_prefix import prefix_of
from trireme.base.free_ports import free_ports

NO_CLIENT: Any = None
ENGINE, ONE = "tensorrt_llm", "tensorrt_llm/1"


class Clock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


def text(content: str) -> list[int]:
    return numbers_of(GenerateRequest(text_input=content, max_tokens=1))


def chat(*contents: str, session: str = "") -> list[int]:
    messages: list[dict[str, object]] = [{"role": "user", "content": content} for content in contents]
    return numbers_of(GenerateRequest(messages=messages, max_tokens=1), session=session)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def prefixes(clock: Clock) -> Prefixes:
    return Prefixes(now_s=clock)


def test_a_server_that_tells_is_believed_but_for_what_it_was_sent_a_moment_ago(
    prefixes: Prefixes, clock: Clock
) -> None:
    mine, others = text("a" * 1024), text("b" * 1024)
    prefixes.add(mine)
    prefixes.begin_to_tell([ONE])
    assert prefixes.num_had(mine, engine=ENGINE) == 4
    clock.at_s += 3.0
    assert prefixes.num_had(mine, engine=ENGINE) == 0, "it has had time to tell"
    prefixes.note_stored(ONE, mine[:3], [])
    prefixes.note_stored(ONE, others, others[-1:])
    assert [prefixes.num_had(each, engine=ENGINE) for each in (mine, others)] == [3, 4]
    assert prefixes.has_begun(others, engine=ENGINE)
    assert not prefixes.has_begun(mine, engine=ENGINE)


def test_what_a_server_has_lost_attracts_nobody(prefixes: Prefixes) -> None:
    prompt = text("a" * 1024)
    prefixes.begin_to_tell([ONE])
    prefixes.add(prompt)
    prefixes.note_stored(ONE, prompt, prompt[-1:])
    prefixes.note_removed(ONE, prompt[2:])
    assert prefixes.num_had(prompt, engine=ENGINE) == 2
    assert not prefixes.has_begun(prompt, engine=ENGINE)
    prefixes.note_cleared(ONE)
    assert prefixes.num_had(prompt, engine=ENGINE) == 0


def test_releases_of_an_engine_count_together_and_other_engines_by_themselves(prefixes: Prefixes) -> None:
    prompt = text("a" * 512)
    prefixes.begin_to_tell([ONE, "tensorrt_llm/2", "other_tensorrt_llm/1"])
    prefixes.note_stored("tensorrt_llm/2", prompt, [])
    assert prefixes.num_had(prompt, engine=ENGINE) == 2
    assert prefixes.num_had(prompt, engine="other_tensorrt_llm") == 0
    prefixes.add(prompt)
    prefixes.note_cleared("other_tensorrt_llm/1")
    assert prefixes.num_had(prompt, engine="untold_tensorrt_llm") == 0


def test_an_engine_that_does_not_tell_beside_one_that_does_is_guessed(prefixes: Prefixes, clock: Clock) -> None:
    prompt = text("a" * 512)
    prefixes.begin_to_tell(["other_tensorrt_llm/1"])
    prefixes.add(prompt)
    clock.at_s += 60.0
    assert prefixes.num_had(prompt, engine=ENGINE) == 2


def test_a_session_stays_though_no_server_tells_of_it_until_its_cache_is_lost(prefixes: Prefixes, clock: Clock) -> None:
    prompt = chat("Hi", session="mine")
    prefixes.begin_to_tell([ONE])
    prefixes.add(prompt)
    clock.at_s += 60.0
    assert prefixes.num_had(prompt, engine=ENGINE, is_session=True) == 1
    prefixes.note_cleared(ONE)
    assert prefixes.num_had(prompt, engine=ENGINE, is_session=True) == 0


def test_where_telling_ends_what_was_sent_counts(prefixes: Prefixes, clock: Clock) -> None:
    prompt = text("a" * 512)
    prefixes.add(prompt)
    prefixes.begin_to_tell([ONE])
    clock.at_s += 60.0
    prefixes.stop_telling()
    assert prefixes.num_had(prompt, engine=ENGINE) == 2


def test_a_prompt_goes_to_the_server_that_tells_of_it() -> None:
    servers = [Server(name, NO_CLIENT, ["ensemble"]) for name in "abc"]
    for server in servers:
        server.prefixes.begin_to_tell([ONE])
    prompt = text("a" * 2048)
    servers[2].prefixes.note_stored(ONE, prompt, [])
    assert choose(servers, prompt, model="ensemble").url == "c"
    servers[2].prefixes.note_removed(ONE, prompt[:1])
    assert choose(servers, prompt, model="ensemble").url == "a"


def tensors(**values: object) -> dict[str, Any]:
    return {
        name: np.array([[value if isinstance(value, int) else str(value).encode()]], dtype=object)
        for name, value in values.items()
    }


TOOLS: list[dict[str, object]] = [{"type": "function", "function": {"name": "weather", "parameters": {"b": 1.5}}}]
MESSAGES: list[dict[str, object]] = [
    {"role": "system", "content": "é" * 300}, {"role": "user", "content": [{"type": "text", "text": "Hi\n\"there\""}]},
]  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest(text_input="x" * 700, max_tokens=1),
        GenerateRequest(text_input="ü" * 700, max_tokens=1, tenant="ada"),
        GenerateRequest(text_input="x" * 700, max_tokens=1, lora_name="poet"),
        GenerateRequest(text_input="x" * 700, max_tokens=1, lora_task_id=7),
        GenerateRequest(messages=MESSAGES, max_tokens=1),
        GenerateRequest(messages=MESSAGES, tools=TOOLS, max_tokens=1, tenant="ada"),
    ],
    ids=["text", "tenant", "adapter", "adapter's number", "messages", "tools"],
)
def test_a_server_has_the_numbers_of_a_gateway_by_the_message_that_it_gets(request_: GenerateRequest) -> None:
    message = encode_request(request_, model="ensemble", model_version="", request_id="")
    sent: dict[str, Any] = {}
    for given, content in zip(message.inputs, message.raw_input_contents, strict=True):
        value = content[4:] if given.datatype == "BYTES" else int.from_bytes(content, "little")
        if given.name in {"text_input", "messages", "tools", "tenant", "lora_name", "lora_task_id"}:
            sent[given.name] = np.array([[value]], dtype=object)
    found = prefix_of(sent)
    assert found is not None
    assert found.numbers == numbers_of(request_, tenant=request_.tenant or "")
    assert found.numbers
    assert found.ends == sorted(found.ends)
    assert found.ends[-1] <= found.num_bytes


def test_a_batch_of_prompts_and_messages_that_are_no_json_have_no_numbers() -> None:
    assert prefix_of({"text_input": np.array([[b"a"], [b"b"]], dtype=object)}) is None
    assert prefix_of(tensors(messages="no json")) is None


def test_other_tenants_and_adapters_have_other_numbers() -> None:
    asked = [
        GenerateRequest(text_input="x" * 700, max_tokens=1, tenant=tenant, lora_name=name)
        for tenant in (None, "a", "ab")
        for name in (None, "b")
    ]
    found = [tuple(numbers_of(each, tenant=each.tenant or "")) for each in asked]
    assert len(set(found)) == len(found)


def test_numbers_are_the_same_on_every_machine() -> None:
    assert text("x" * 256) == [text("x" * 512)[0]] == [8_979_514_434_470_255_789]


class Told:
    """A server that tells what a test says."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = 200

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.path_qs == "/kv_events?prefixes=true"
        answer = web.StreamResponse(status=self.status)
        await answer.prepare(request)
        while (line := await self.lines.get()) is not None:
            await answer.write(line)
        return answer

    def tell(self, kind: str, data: object) -> None:
        self.lines.put_nowait(f"id: 0\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode())


@contextlib.asynccontextmanager
async def telling() -> AsyncIterator[tuple[Told, CacheFeed]]:
    told = Told()
    runner = web.ServerRunner(web.Server(told.answer))
    await runner.setup()
    [port] = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    feed = CacheFeed(f"http://127.0.0.1:{port}/metrics", NO_ACCESS)
    try:
        yield told, feed
    finally:
        await feed.close()
        told.lines.put_nowait(None)
        await runner.cleanup()


def stored(numbers: list[int], ends: list[int]) -> dict[str, object]:
    return {"type": "PrefixesStored", "numbers": numbers, "ends": ends}


def test_a_feed_is_followed_in_whatever_parts_it_comes() -> None:
    async def run() -> None:
        prefixes = Prefixes()
        async with telling() as (told, feed):
            following = asyncio.create_task(feed.follow(prefixes))
            told.lines.put_nowait(b": alive\n\n")
            told.tell("snapshot", {"engines": [{"engine": ONE, "events": [stored([1, 2], [2])]}]})
            whole = json.dumps({"engine": ONE, "events": [stored([3], [])]}).encode()
            for part in (b"id: 1\nevent: ba", b"tch\ndata: " + whole[:9], whole[9:] + b"\n", b"\n"):
                told.lines.put_nowait(part)
                await asyncio.sleep(0.02)
            async with asyncio.timeout(5):
                while prefixes.num_had([1, 2, 3], engine=ENGINE) < 3:
                    await asyncio.sleep(0.01)
            told.tell("batch", {"engine": ONE, "at_s": 1.0, "events": [{"type": "PrefixesRemoved", "numbers": [2]}]})
            async with asyncio.timeout(5):
                while prefixes.num_had([1, 2, 3], engine=ENGINE) > 1:
                    await asyncio.sleep(0.01)
            told.tell("batch", {"engine": ONE, "at_s": 1.0, "events": [{"type": "AllBlocksCleared"}]})
            told.lines.put_nowait(None)
            with pytest.raises(FeedError, match="has ended"):
                await following
        assert prefixes.num_had([1]) == 0

    asyncio.run(run())


def test_a_feed_that_begins_again_takes_nothing_away_of_what_a_server_was_sent() -> None:
    """A snapshot begins with a clear, for who has known something else; the server has lost nothing."""

    async def run() -> None:
        prefixes = Prefixes()
        prefixes.add([7, 8])
        async with telling() as (told, feed):
            following = asyncio.create_task(feed.follow(prefixes))
            cleared = {"type": "AllBlocksCleared"}
            told.tell("snapshot", {"engines": [{"engine": ONE, "events": [cleared, stored([1, 2], [2])]}]})
            async with asyncio.timeout(5):
                while prefixes.num_had([1, 2], engine=ENGINE) < 2:
                    await asyncio.sleep(0.01)
            assert prefixes.num_had([7, 8], engine=None) == 2
            told.tell("batch", {"engine": ONE, "at_s": 1.0, "events": [cleared]})
            async with asyncio.timeout(5):
                while prefixes.num_had([7, 8], engine=None):
                    await asyncio.sleep(0.01)
            told.lines.put_nowait(None)
            with pytest.raises(FeedError, match="has ended"):
                await following

    asyncio.run(run())


@pytest.mark.parametrize(("status", "is_untold"), [(404, True), (503, False)])
def test_a_server_that_does_not_tell_is_known_from_one_that_is_away(status: int, *, is_untold: bool) -> None:
    async def run() -> None:
        async with telling() as (told, feed):
            told.status = status
            told.lines.put_nowait(None)
            with pytest.raises(FeedError, match=f"HTTP {status}") as failed:
                await feed.follow(Prefixes())
            assert failed.value.is_untold == is_untold

    asyncio.run(run())


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"engines": [{"engine": 1, "events": []}]}'])
def test_a_feed_that_cannot_be_read_ends_and_what_was_sent_counts(data: bytes) -> None:
    async def run() -> None:
        prefixes = Prefixes()
        prefixes.add([1, 2])
        async with telling() as (told, feed):
            told.lines.put_nowait(b"event: snapshot\ndata: " + data + b"\n\n")
            with pytest.raises(FeedError):
                await feed.follow(prefixes)
        assert prefixes.num_had([1, 2], engine=ENGINE) == 2

    asyncio.run(run())


def test_a_page_elsewhere_has_no_feed_beside_it() -> None:
    async def run() -> None:
        feed = CacheFeed("http://127.0.0.1:1/federate", NO_ACCESS)
        with pytest.raises(FeedError, match="not at /metrics") as failed:
            await feed.follow(Prefixes())
        assert failed.value.is_untold

    asyncio.run(run())
