# SPDX-License-Identifier: Apache-2.0
"""Tests of an engine that tells, of the hub that hears it, and of subscribers that are slow, late or gone."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from aiohttp import ClientSession, ClientTimeout, web

from ensemble_configs.chat.prefix_numbers import prompt_prefix
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import EngineInfo, GenerationRequest, SamplingParams
from serving.engines.seam.clock import WallClock
from serving.engines.seam.kv_events import AllBlocksCleared, BlocksStored
from serving.kv_events import event_link, http_events
from serving.kv_events.event_hub import EventHub, ToldEngine
from serving.kv_events.event_link import EventLink, StepNews
from serving.kv_events.held_blocks import HeldBlocks
from serving.kv_events.http_events import EventsOverHttp
from serving.kv_events.messages import Source, ToldEvent, publisher_path
from serving.kv_events.telling_engine import TellingEngine, source_of
from serving.kv_events.wire_events import json_event, vllm_batch
from serving.kv_events.zmq_outlet import is_listening, named
from trireme.base.free_ports import free_ports

SPEC = SimulatedEngineSpec(provider="simulated", is_block_reuse=True, step_ms=0, num_kv_blocks=64)


@pytest.fixture(autouse=True)
def _short_silences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_events, "_ALIVE_S", 0.1)  # by which a subscriber that has gone is noticed


def source(**changes: Any) -> Source:
    fields = {
        "engine": "tensorrt_llm/1", "model": "alike", "server": "here", "endpoint": None, "replay_endpoint": None,
        "num_kept_batches": 100, "tells_tokens": False,
    }  # fmt: skip
    return Source(**(fields | changes))


class NotedLink(EventLink):
    """A link beside which is noted what the engine holds, before the link's thread has its turn."""

    def __init__(self, source: Source, path: Path, info: EngineInfo) -> None:
        self.noted = HeldBlocks(info.kv_block_tokens)
        super().__init__(source, path, info)

    def tell(self, news: StepNews) -> None:
        for event in news.events:
            self.noted.apply(event)
        super().tell(news)


class Teller:
    """An engine that tells, and what it holds."""

    def __init__(self, run_dir: Path, **changes: Any) -> None:
        engine = create_engine(SPEC, clock=WallClock(), tells_kv_events=True)
        self.link = NotedLink(source(**changes), publisher_path(run_dir), engine.info)
        self.engine = TellingEngine(engine, self.link)
        self._key = 0

    def ask(self, first: int, num_tokens: int = 64) -> None:
        self._key += 1
        prompt = [first + number for number in range(num_tokens)]
        prefix = prompt_prefix(text=f"{first} ".encode() * 200)
        sampling = SamplingParams(max_tokens=2)
        self.engine.add(GenerationRequest(key=self._key, input_ids=prompt, sampling=sampling, prefix=prefix))
        while self.engine.has_work:
            self.engine.step()

    def held(self) -> set[int]:
        return self.link.noted.hashes()

    def close(self) -> None:
        self.engine.close()


async def until(is_so: Callable[[], object], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await asyncio.sleep(0.01)


def hashes_in(hub: EventHub, engine: str = "tensorrt_llm/1") -> set[int]:
    return hub.engines[engine].blocks.hashes() if engine in hub.engines else set()


def test_a_hub_holds_what_its_engines_hold_whoever_comes_first(tmp_path: Path) -> None:
    async def run() -> None:
        early = Teller(tmp_path, engine="tensorrt_llm/1")
        early.ask(100)
        hub = EventHub()
        await hub.listen(tmp_path)
        late = Teller(tmp_path, engine="tensorrt_llm/2")
        await until(lambda: len(hub.engines) == 2)
        for number in range(40):  # more than fit
            early.ask(20 + 37 * number)
            late.ask(20 + 41 * number)
        await until(lambda: hashes_in(hub, "tensorrt_llm/1") == early.held() != set())
        await until(lambda: hashes_in(hub, "tensorrt_llm/2") == late.held() != set())
        assert hub.engines["tensorrt_llm/1"].prefixes == set(early.link._places._blocks) != set()
        for teller in (early, late):
            teller.close()
        await until(lambda: not hub.engines)
        await hub.close()

    asyncio.run(run())


def test_a_hub_that_is_started_again_is_told_all_by_an_engine_that_has_nothing_to_do(tmp_path: Path) -> None:
    async def run() -> None:
        teller = Teller(tmp_path)
        teller.ask(100)
        for _ in range(2):
            hub = EventHub()
            await hub.listen(tmp_path)
            await until(lambda hub=hub: hashes_in(hub) == teller.held() != set())  # type: ignore[misc]
            assert hub.engines["tensorrt_llm/1"].ends
            await hub.close()
        teller.close()

    asyncio.run(run())


def test_an_engine_does_not_wait_for_a_publisher_that_reads_nothing_and_tells_the_next_one_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_link, "_SEND_S", 5.0)

    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(publisher_path(tmp_path)))
            deaf.listen()
            teller = Teller(tmp_path)
            accepted, _ = deaf.accept()
            number = 0
            while teller.link._news.qsize() < 20:  # the link is stuck, and the engine is not
                number += 1
                teller.ask(20 + 7 * number % 1000, 512)
            accepted.close()
        publisher_path(tmp_path).unlink()
        hub = EventHub()
        await hub.listen(tmp_path)
        await until(lambda: hashes_in(hub) == teller.held() != set())
        teller.close()
        await hub.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def served(hub: EventHub) -> Any:
    events = EventsOverHttp(hub)
    server = web.Server(events.answer)
    runner = web.ServerRunner(server)
    await runner.setup()
    [port] = free_ports(1)
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{port}/kv_events", events
    finally:
        await runner.cleanup()


async def read(answer: Any, number: int) -> list[tuple[str, int, Any]]:
    """Return the next events of a stream: kind, number and data."""
    found: list[tuple[str, int, Any]] = []
    while len(found) < number:
        event = (await answer.content.readuntil(b"\n\n")).decode()
        if event.startswith(":"):
            continue
        fields = dict(line.split(": ", 1) for line in event.strip().split("\n"))
        found.append((fields["event"], int(fields["id"]), msgspec.json.decode(fields["data"])))
    return found


def test_a_subscriber_over_http_is_told_all_and_then_what_changes(tmp_path: Path) -> None:
    async def run() -> None:
        hub = EventHub()
        await hub.listen(tmp_path)
        teller = Teller(tmp_path, tells_tokens=True)
        teller.ask(100)
        await until(lambda: hashes_in(hub))
        async with served(hub) as (url, _), ClientSession() as session, session.get(url) as answer:
            [(kind, number, first)] = await read(answer, 1)
            assert (kind, number) == ("snapshot", 0)
            [engine] = first["engines"]
            assert (engine["engine"], engine["model"]) == ("tensorrt_llm/1", "alike")
            cleared, stored, prefixes = engine["events"]
            assert cleared == {"type": "AllBlocksCleared"}
            assert stored["token_ids"] == list(range(100, 164))
            assert set(prefixes["ends"]) <= set(prefixes["numbers"])
            teller.ask(500)
            [(kind, number, second)] = await read(answer, 1)
            assert (kind, number, second["engine"]) == ("batch", 1, "tensorrt_llm/1")
            assert [event["type"] for event in second["events"]][-2:] == ["BlockStored", "PrefixesStored"]
            teller.close()
            [(_, _, last)] = await read(answer, 1)
            assert last["events"] == [{"type": "AllBlocksCleared"}]
        await hub.close()

    asyncio.run(run())


def test_a_subscriber_that_falls_behind_is_told_all_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_events, "_MAX_WAITING", 3)

    async def run() -> None:
        hub = EventHub()
        await hub.listen(tmp_path)
        teller = Teller(tmp_path)
        stream = http_events._Stream(hub, are_prefixes=False)
        hub.subscribe(stream)
        assert b"event: snapshot" in await stream.next()
        for number in range(12):
            teller.ask(20 + 100 * number)
        await until(lambda: hashes_in(hub) == teller.held())
        anew = await stream.next()
        assert b"id: 1\nevent: snapshot" in anew
        assert all(str(each).encode() in anew for each in teller.held())
        teller.close()
        await hub.close()

    asyncio.run(run())


def test_what_comes_while_a_snapshot_is_made_is_told_behind_it_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    snapshot = ToldEngine.snapshot

    def slow(engine: ToldEngine) -> list[ToldEvent]:
        assert may_go_on.wait(30), "the loop, which lets it go on, stood still"
        return snapshot(engine)

    async def run() -> None:
        hub = EventHub()
        await hub.listen(tmp_path)
        teller = Teller(tmp_path)
        teller.ask(100)
        await until(lambda: hashes_in(hub))
        before = teller.held()
        stream = http_events._Stream(hub, are_prefixes=False)
        hub.subscribe(stream)
        monkeypatch.setattr(ToldEngine, "snapshot", slow)
        first = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        teller.ask(500)
        await until(lambda: hashes_in(hub) == teller.held())
        may_go_on.set()
        told = await first
        later = teller.held() - before
        assert all(str(each).encode() in told for each in before)
        assert not any(str(each).encode() in told for each in later)
        behind = await stream.next()
        assert later
        assert all(str(each).encode() in behind for each in later)
        teller.close()
        await hub.close()

    asyncio.run(run())


def test_only_so_many_subscribers_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_events, "_MAX_SUBSCRIBERS", 1)

    async def run() -> None:
        hub = EventHub()
        await hub.listen(tmp_path)
        timeout = ClientTimeout(total=10)
        async with served(hub) as (url, events), ClientSession(timeout=timeout) as session:
            async with session.get(url) as first:
                await read(first, 1)
                async with session.get(url) as second:
                    assert second.status == 503
                    assert "1 subscribers of KV events already" in await second.text()
            first.close()
            await until(lambda: events._num_subscribers == 0)
        await hub.close()

    asyncio.run(run())


def test_two_engines_share_a_publisher_whose_numbers_have_no_gap(tmp_path: Path) -> None:
    async def run() -> None:
        port, replay_port = free_ports(2)
        settings = {"endpoint": f"tcp://*:{port}", "replay_endpoint": f"tcp://*:{replay_port}"}
        hub = EventHub()
        await hub.listen(tmp_path)
        tellers = [Teller(tmp_path, engine=f"tensorrt_llm/{each}", model=f"m{each}", **settings) for each in (1, 2)]
        await until(lambda: len(hub.engines) == 2)
        context = zmq.Context()
        with contextlib.closing(context.socket(zmq.SUB)) as subscriber:
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.setsockopt(zmq.LINGER, 0)
            subscriber.connect(f"tcp://127.0.0.1:{port}")
            await asyncio.sleep(0.3)
            for number in range(10):
                tellers[number % 2].ask(20 + 100 * number)
            for number, teller in enumerate(tellers):
                name = f"tensorrt_llm/{number + 1}"
                await until(lambda name=name, teller=teller: hashes_in(hub, name) == teller.held())  # type: ignore[misc]
            told = []
            while subscriber.poll(300):
                told.append(subscriber.recv_multipart())
        numbers = [int.from_bytes(each[1], "big") for each in told]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert {each[0] for each in told} == {b"kv@here@m1", b"kv@here@m2"}
        for teller in tellers:
            teller.close()
        await hub.close()
        context.term()

    asyncio.run(run())


def test_an_endpoint_that_is_taken_is_told_by_name_and_http_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        [port] = free_ports(1)
        taken = await asyncio.start_server(lambda *_: None, "0.0.0.0", port)
        hub = EventHub()
        await hub.listen(tmp_path)
        teller = Teller(tmp_path, endpoint=f"tcp://*:{port}")
        teller.ask(100)
        await until(lambda: hashes_in(hub) == teller.held() != set())
        assert f"kv_events.endpoint tcp://*:{port} cannot be used: Address already in use" in caplog.text
        teller.close()
        taken.close()
        await hub.close()

    asyncio.run(run())


def test_what_nobody_can_read_ends_one_engine_s_telling_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        hub = EventHub()
        await hub.listen(tmp_path)
        teller = Teller(tmp_path)
        teller.ask(100)
        _, writer = await asyncio.open_unix_connection(publisher_path(tmp_path))
        writer.write(b"\x04\0\0\0junk")
        await until(lambda: "that nobody can read" in caplog.text)
        writer.close()
        await until(lambda: hashes_in(hub) == teller.held() != set())
        teller.close()
        await hub.close()

    asyncio.run(run())


def test_a_link_that_breaks_gathers_nothing_and_its_engine_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    teller = Teller(tmp_path)

    def breaks(_news: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(teller.link, "_take", breaks)
    teller.ask(100)
    teller.link._thread.join(10.0)
    assert "KV events are told no longer" in caplog.text
    for number in range(5):
        teller.ask(200 + number)
    # What came before the thread had ended is all that is left.
    num_left = teller.link._news.qsize()
    teller.ask(300)
    assert teller.link._news.qsize() == num_left
    teller.close()


def test_a_batch_of_vllm_has_three_parts_and_its_maps_the_fields_that_routers_name() -> None:
    stored = BlocksStored([2**64 - 1, 7], None, [1, 2, 3, 4], 2, "poet", "ada", 0, "full_attention")
    payload = vllm_batch(12.5, [stored, AllBlocksCleared()])
    assert payload is not None
    assert msgspec.msgpack.decode(payload) == [
        12.5,
        [
            {
                "type": "BlockStored", "block_hashes": [2**64 - 1, 7], "parent_block_hash": None,
                "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": "poet",
                "group_idx": 0, "extra_keys": [["poet", "ada"], ["poet"]], "kv_cache_spec_kind": "full_attention",
            },
            {"type": "AllBlocksCleared"},
        ],
        0,
    ]  # fmt: skip
    assert "token_ids" not in json_event(stored, has_tokens=False)
    assert "extra_keys" not in json_event(stored, has_tokens=False), "a tenant's name is nobody's either"


@pytest.mark.parametrize(
    ("endpoint", "is_bound"),
    [("tcp://*:5557", True), ("tcp://router:5557", False), ("ipc:///run/events", True), ("tcp://[::]:5557", True)],
)
def test_a_publisher_listens_or_calls_by_vllm_s_rule(endpoint: str, *, is_bound: bool) -> None:
    assert is_listening(endpoint) == is_bound


def test_the_server_s_name_may_be_the_machine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "chat-0")
    monkeypatch.setattr("socket.gethostbyname", {"chat-0": "10.1.2.3"}.__getitem__)
    assert (named("{host}"), named("{address}:8000"), named("mine")) == ("chat-0", "10.1.2.3:8000", "mine")


def test_an_engine_is_called_by_its_model_and_release() -> None:
    release = ReleaseSpec.model_validate({
        "release": 2, "tokenizer": {"dir": "t"}, "engine": {"provider": "simulated"},
        "kv_events": {"model_name": "org/chat", "endpoint": "tcp://*:5557"},
    })  # fmt: skip
    found = source_of(release, Path("/models/chat_tensorrt_llm/2"))
    assert (found.engine, found.model, found.endpoint) == ("chat_tensorrt_llm/2", "org/chat", "tcp://*:5557")
