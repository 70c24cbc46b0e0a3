# SPDX-License-Identifier: Apache-2.0
"""Messages between adapter and engine arrive whole and in order, however the socket cuts them."""

import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

import msgspec
import pytest

from serving.engine_process.engine_messages import (
    Broken,
    Cancel,
    Channel,
    ChannelClosed,
    Command,
    Ready,
    Report,
    Step,
    Stop,
    Submit,
)
from serving.engines.seam.base import (
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenChunk,
)

STATS = EngineStats(num_running=1, num_waiting=2, num_used_kv_blocks=3, num_kv_blocks=4, num_steps=5)
INFO = EngineInfo(
    provider="toy", vocab_size=9, max_seq_len=8, end_ids=(1, 2), kv_block_tokens=4, num_kv_blocks=4, max_num_seqs=2,
    max_num_batched_tokens=64,
    supported=frozenset({"top_p"}),
)  # fmt: skip
REQUEST = GenerationRequest(
    key=2**63,
    input_ids=[1, 2, 3],
    sampling=SamplingParams(max_tokens=4, temperature=0.1, seed=2**64 - 1, end_id=-1),
    stop_strings=("\n\n", "終わり"),
)
COMMANDS: list[Command] = [Submit(REQUEST), Submit(REQUEST, "id"), Cancel(7), Stop("id")]
CHUNKS = [
    TokenChunk(1, [5, 6]),
    TokenChunk(2, [], FinishReason.CANCELLED),
    TokenChunk(3, [], error="[INVALID_ARG] no"),
]
REPORTS: list[Report] = [Ready(INFO), Step(CHUNKS, STATS), Step([], STATS), Broken("[INTERNAL] gone")]


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@pytest.fixture
def ends(sockets: tuple[socket.socket, socket.socket]) -> tuple[Channel, Channel]:
    """Return the adapter's end and the engine's end of a channel."""
    return Channel(sockets[0], Report), Channel(sockets[1], Command)


def frame(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(body)) + body


def test_every_message_arrives_as_it_was_sent(ends: tuple[Channel, Channel]) -> None:
    adapter, engine = ends
    for command in COMMANDS:
        adapter.send(command)
        assert engine.receive(is_blocking=True) == [command]
    for report in REPORTS:
        engine.send(report)
        assert adapter.receive(is_blocking=True) == [report]


def test_all_that_has_arrived_is_read_at_once_in_order(ends: tuple[Channel, Channel]) -> None:
    adapter, engine = ends
    for key in range(200):  # a Unix socket holds 278 messages, however small
        adapter.send(Cancel(key))
    assert engine.receive(is_blocking=True) == [Cancel(key) for key in range(200)]
    assert engine.receive(is_blocking=False) == []


def test_one_message_is_taken_and_the_rest_is_left_for_later(ends: tuple[Channel, Channel]) -> None:
    adapter, engine = ends
    for key in range(3):
        adapter.send(Cancel(key))
    assert engine.receive_one() == Cancel(0)
    assert engine.receive(is_blocking=True) == [Cancel(1), Cancel(2)]
    assert engine.receive(is_blocking=False) == []


def test_without_blocking_nothing_is_waited_for(ends: tuple[Channel, Channel]) -> None:
    assert ends[1].receive(is_blocking=False) == []


def test_frames_may_be_cut_anywhere(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    engine = Channel(theirs, Command)
    data = b"".join(map(frame, COMMANDS))
    for cut in range(len(data) + 1):
        ours.sendall(data[:cut])
        first = engine.receive(is_blocking=False)
        ours.sendall(data[cut:])
        assert first + engine.receive(is_blocking=False) == COMMANDS


def test_frames_may_come_byte_by_byte(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    engine = Channel(theirs, Command)
    received: list[object] = []
    for byte in b"".join(map(frame, COMMANDS)):
        ours.sendall(bytes([byte]))
        received += engine.receive(is_blocking=False)
    assert received == COMMANDS


def test_a_blocking_receive_waits_for_the_rest_of_a_frame(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    data = frame(COMMANDS[0])
    ours.sendall(data[:10])
    late = threading.Timer(0.05, ours.sendall, [data[10:]])
    late.start()
    assert Channel(theirs, Command).receive(is_blocking=True) == [COMMANDS[0]]
    late.join()


def test_messages_larger_than_the_socket_holds_arrive(sockets: tuple[socket.socket, socket.socket]) -> None:
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    adapter, engine = Channel(sockets[0], Report), Channel(sockets[1], Command)
    rng = random.Random(1)
    sent = [
        Submit(msgspec.structs.replace(REQUEST, key=key, input_ids=[rng.randrange(2**31) for _ in range(100_000)]))
        for key in range(3)
    ]
    sender = threading.Thread(target=lambda: deque(map(adapter.send, sent)))
    sender.start()
    received: list[object] = []
    while len(received) < 3:
        received += engine.receive(is_blocking=True)
    sender.join()
    assert received == sent


def test_what_was_sent_before_the_end_is_read_before_it(sockets: tuple[socket.socket, socket.socket]) -> None:
    adapter, engine = Channel(sockets[0], Report), Channel(sockets[1], Command)
    adapter.send(Cancel(1))
    adapter.close()
    assert engine.receive(is_blocking=True) == [Cancel(1)]
    for is_blocking in (True, False):
        with pytest.raises(ChannelClosed):
            engine.receive(is_blocking=is_blocking)


def test_half_a_frame_before_the_end_is_no_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    ours.sendall(frame(COMMANDS[0])[:-1])
    ours.close()
    with pytest.raises(ChannelClosed):
        Channel(theirs, Command).receive(is_blocking=True)


def test_sending_to_a_side_that_is_gone_is_told(ends: tuple[Channel, Channel]) -> None:
    adapter, engine = ends
    engine.close()
    with pytest.raises(ChannelClosed):
        adapter.send(Cancel(1))
    with pytest.raises(ChannelClosed):
        engine.send(Step([], STATS))


@pytest.mark.parametrize("who_closes", ["the side that waits", "the other side"])
def test_closing_is_seen_by_a_thread_that_waits(ends: tuple[Channel, Channel], who_closes: str) -> None:
    waiting, other = ends
    outcome: list[str] = []

    def wait() -> None:
        try:
            waiting.receive(is_blocking=True)
        except ChannelClosed:
            outcome.append("closed")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    (waiting if who_closes == "the side that waits" else other).close()
    thread.join(5)
    assert outcome == ["closed"]
    with pytest.raises(ChannelClosed):
        (other if who_closes == "the side that waits" else waiting).receive(is_blocking=True)


def test_a_sender_that_waits_for_room_sees_the_close_too(ends: tuple[Channel, Channel]) -> None:
    adapter, _ = ends
    outcome: list[str] = []

    def send_forever() -> None:
        try:
            while True:
                adapter.send(Submit(REQUEST))
        except ChannelClosed:
            outcome.append("closed")

    thread = threading.Thread(target=send_forever)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    adapter.close()
    thread.join(5)
    assert outcome == ["closed"]


def test_a_channel_that_is_closed_already_says_so(ends: tuple[Channel, Channel]) -> None:
    adapter, _ = ends
    adapter.close()
    adapter.close()  # twice is once
    for is_blocking in (True, False):
        with pytest.raises(ChannelClosed):
            adapter.receive(is_blocking=is_blocking)
