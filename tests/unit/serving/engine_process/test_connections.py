# SPDX-License-Identifier: Apache-2.0
"""Several adapters on one engine: each sees its own requests under its own keys, and its end disturbs no other."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from serving.engine_process.connections import STATS_S, EngineConnections
from serving.engine_process.engine_messages import Cancel, Channel, ChannelClosed, Ready, Report, Step, Stop, Submit
from serving.engine_process.engine_messages import Command as Commands
from serving.engines.seam.base import (
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenChunk,
)

INFO = EngineInfo(
    provider="test",
    vocab_size=100,
    max_seq_len=10,
    end_ids=(),
    kv_block_tokens=16,
    num_kv_blocks=4,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    supported=frozenset(),
)
STATS = EngineStats(num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=4, num_steps=0)


class Line:
    """An engine's connections with an owner and any number of clients."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "engine")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        ours, theirs = socket.socketpair()
        self.owner = Channel(ours, Report)
        self.connections = EngineConnections(Channel(theirs, Commands), self.listener, INFO)
        self.channels = [self.owner]
        assert self.owner.receive(is_blocking=True) == [Ready(INFO)]

    def call(self) -> Channel:
        """Return the channel of a new client."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        client = Channel(sock, Report)
        self.channels.append(client)
        assert self.connections.receive(timeout_s=1.0) == []
        assert client.receive(is_blocking=True) == [Ready(INFO)]
        return client

    def submit(self, caller: Channel, key: int, request_id: str = "") -> int:
        """Submit a request, and return the engine's key for it."""
        caller.send(Submit(request(key), request_id))
        [given] = self.connections.receive(timeout_s=1.0)
        assert isinstance(given, GenerationRequest)
        assert given.input_ids == [key]
        return given.key


def request(key: int) -> GenerationRequest:
    return GenerationRequest(key=key, input_ids=[key], sampling=SamplingParams(max_tokens=1))


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line(tmp_path)
    yield made
    for channel in made.channels:
        channel.close()
    made.connections.close()
    made.listener.close()


def test_each_caller_gets_the_chunks_of_its_own_requests_under_its_own_keys(line: Line) -> None:
    client = line.call()
    of_owner, of_client = line.submit(line.owner, 7), line.submit(client, 7)
    assert of_owner != of_client
    line.connections.send([TokenChunk(of_client, [1]), TokenChunk(of_owner, [2], FinishReason.LENGTH)], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(7, [2], FinishReason.LENGTH)], STATS)]
    assert client.receive(is_blocking=True) == [Step([TokenChunk(7, [1])], STATS)]


def test_a_guest_hears_only_of_steps_that_concern_it(line: Line) -> None:
    client = line.call()
    line.submit(client, 1)
    line.connections.send([], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([], STATS)]
    assert client.receive(is_blocking=False) == []


def test_the_owner_hears_now_and_then_of_a_busy_engine_and_at_once_of_an_idle_one(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    busy = msgspec.structs.replace(STATS, num_running=1)
    client = line.call()
    key = line.submit(client, 1)
    for _ in range(3):
        line.connections.send([TokenChunk(key, [5])], busy)
    assert line.owner.receive(is_blocking=True) == [Step([], busy)]
    now_s += STATS_S
    line.connections.send([], busy)
    line.connections.send([], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([], busy), Step([], STATS)]
    own = line.submit(line.owner, 1)
    line.connections.send([TokenChunk(own, [6])], busy)
    line.connections.send([TokenChunk(own, [7])], busy)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(1, [6])], busy), Step([TokenChunk(1, [7])], busy)]


def test_a_request_is_stopped_by_its_own_caller_only(line: Line) -> None:
    client = line.call()
    of_owner = line.submit(line.owner, 7)
    client.send(Cancel(7))
    assert line.connections.receive(timeout_s=1.0) == []
    line.connections.send([], STATS)
    assert client.receive(is_blocking=True) == [Step([TokenChunk(7, [], FinishReason.CANCELLED)], STATS)]
    line.owner.send(Cancel(7))
    assert line.connections.receive(timeout_s=1.0) == [of_owner]


def test_a_clients_request_id_stops_what_the_other_callers_have_under_it(line: Line) -> None:
    client, other = line.call(), line.call()
    line.submit(line.owner, 1, "a")  # of the one that asks, and stopped by it
    line.submit(client, 1, "b")
    line.submit(client, 2)
    named = [line.submit(client, 3, "a"), line.submit(client, 4, "a"), line.submit(other, 1, "a")]
    line.owner.send(Stop("a"))
    assert line.connections.receive(timeout_s=1.0) == named


def test_a_guest_that_goes_takes_its_requests_with_it_and_nothing_else(line: Line) -> None:
    client = line.call()
    of_owner, of_client = line.submit(line.owner, 1), line.submit(client, 1)
    client.close()
    assert line.connections.receive(timeout_s=1.0) == [of_client]
    chunks = [TokenChunk(of_client, [], FinishReason.CANCELLED), TokenChunk(of_owner, [5])]
    line.connections.send(chunks, STATS)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(1, [5])], STATS)]


def test_a_request_that_is_stopped_twice_at_once_ends_once(line: Line) -> None:
    key = line.submit(line.owner, 1)
    line.owner.send(Cancel(1))
    line.owner.send(Cancel(1))
    assert line.connections.receive(timeout_s=1.0) == [key, key]
    line.connections.send([TokenChunk(key, [], FinishReason.CANCELLED) for _ in range(2)], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(1, [], FinishReason.CANCELLED)], STATS)]


def test_a_guest_that_hangs_up_before_it_is_let_in_disturbs_nobody(line: Line) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(line.path)
    sock.close()
    for _ in range(2):  # it is let in, then its end is read
        line.connections.receive(timeout_s=0.0)
    assert line.submit(line.owner, 1)


def test_the_owners_end_is_the_end(line: Line) -> None:
    line.call()
    line.owner.close()
    with pytest.raises(ChannelClosed):
        line.connections.receive(timeout_s=1.0)
