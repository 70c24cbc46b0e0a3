# SPDX-License-Identifier: Apache-2.0
"""Several adapters on one engine: each sees its own requests under its own keys, and takes nobody down when it goes."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.engine_messages import Cancel, Channel, ChannelClosed, Ready, Report, Step, Submit
from serving.engine_messages import Command as Commands
from serving.engines.base import (
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenChunk,
)
from serving.switchboard import Switchboard

INFO = EngineInfo(
    provider="test",
    vocab_size=100,
    max_seq_len=10,
    end_ids=(),
    kv_block_tokens=16,
    num_kv_blocks=4,
    max_num_seqs=4,
    supported=frozenset(),
)
STATS = EngineStats(num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=4, num_steps=0)


class Line:
    """A switchboard, its owner, and as many guests as call."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "engine")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        ours, theirs = socket.socketpair()
        self.owner = Channel(ours, Report)
        self.switchboard = Switchboard(Channel(theirs, Commands), self.listener, INFO)
        self.channels = [self.owner]
        assert self.owner.receive(is_blocking=True) == [Ready(INFO)]

    def call(self) -> Channel:
        """A new guest, let in."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        guest = Channel(sock, Report)
        self.channels.append(guest)
        assert self.switchboard.receive(is_blocking=True) == []
        assert guest.receive(is_blocking=True) == [Ready(INFO)]
        return guest

    def submit(self, caller: Channel, key: int) -> int:
        """The engine's key of a new request."""
        caller.send(Submit(request(key)))
        [given] = self.switchboard.receive(is_blocking=True)
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
    made.switchboard.close()
    made.listener.close()


def test_each_caller_gets_the_chunks_of_its_own_requests_under_its_own_keys(line: Line) -> None:
    guest = line.call()
    of_owner, of_guest = line.submit(line.owner, 7), line.submit(guest, 7)
    assert of_owner != of_guest
    line.switchboard.send([TokenChunk(of_guest, [1]), TokenChunk(of_owner, [2], FinishReason.LENGTH)], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(7, [2], FinishReason.LENGTH)], STATS)]
    assert guest.receive(is_blocking=True) == [Step([TokenChunk(7, [1])], STATS)]


def test_the_owner_hears_of_every_step_and_a_guest_of_those_with_chunks_of_its_own(line: Line) -> None:
    guest = line.call()
    line.switchboard.send([], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([], STATS)]
    assert guest.receive(is_blocking=False) == []
    key = line.submit(guest, 1)
    line.switchboard.send([], STATS)
    line.switchboard.send([TokenChunk(key, [5], FinishReason.STOP)], STATS)
    line.switchboard.send([], STATS)
    assert guest.receive(is_blocking=True) == [Step([TokenChunk(1, [5], FinishReason.STOP)], STATS)]


def test_a_request_is_stopped_by_its_own_caller_only(line: Line) -> None:
    guest = line.call()
    of_owner = line.submit(line.owner, 7)
    guest.send(Cancel(7))
    assert line.switchboard.receive(is_blocking=True) == []
    line.switchboard.send([], STATS)
    assert guest.receive(is_blocking=True) == [Step([TokenChunk(7, [], FinishReason.CANCELLED)], STATS)]
    line.owner.send(Cancel(7))
    assert line.switchboard.receive(is_blocking=True) == [of_owner]


def test_a_guest_that_goes_takes_its_requests_with_it_and_nothing_else(line: Line) -> None:
    guest = line.call()
    of_owner, of_guest = line.submit(line.owner, 1), line.submit(guest, 1)
    guest.close()
    assert line.switchboard.receive(is_blocking=True) == [of_guest]
    chunks = [TokenChunk(of_guest, [], FinishReason.CANCELLED), TokenChunk(of_owner, [5])]
    line.switchboard.send(chunks, STATS)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(1, [5])], STATS)]


def test_a_request_that_is_stopped_twice_at_once_ends_once(line: Line) -> None:
    key = line.submit(line.owner, 1)
    line.owner.send(Cancel(1))
    line.owner.send(Cancel(1))
    assert line.switchboard.receive(is_blocking=True) == [key, key]
    line.switchboard.send([TokenChunk(key, [], FinishReason.CANCELLED) for _ in range(2)], STATS)
    assert line.owner.receive(is_blocking=True) == [Step([TokenChunk(1, [], FinishReason.CANCELLED)], STATS)]


def test_a_guest_that_hangs_up_before_it_is_let_in_disturbs_nobody(line: Line) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(line.path)
    sock.close()
    for _ in range(2):  # it is let in, then its end is read
        line.switchboard.receive(is_blocking=False)
    assert line.submit(line.owner, 1)


def test_the_owners_end_is_the_end(line: Line) -> None:
    line.call()
    line.owner.close()
    with pytest.raises(ChannelClosed):
        line.switchboard.receive(is_blocking=True)
