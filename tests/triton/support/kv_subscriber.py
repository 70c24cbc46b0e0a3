# SPDX-License-Identifier: Apache-2.0
"""A reader of KV events as routers publish what they read; nothing of ours is used.

The batch is what Dynamo's router reads as a tuple of three (`lib/kv-router/src/zmq_wire`, KvEventBatch: seconds,
events, rank or nothing), and an event a map with a `type` and the fields that it names as required (`RawKvEvent`). The
topic and the frames are those of llm-d's router (`pkg/kvevents/engineadapter/vllm_adapter.go`, parseTopic: three parts
between `@`; `pkg/kvevents/zmq_subscriber.go`: three frames, eight bytes of number, and of a replay an empty one before
them).
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

_REQUIRED = {
    "BlockStored": {"block_hashes", "parent_block_hash", "token_ids", "block_size"},
    "BlockRemoved": {"block_hashes"},
    "AllBlocksCleared": set(),
}
Batch = list[dict[str, Any]]


def read_batch(payload: bytes) -> Batch:
    """Return the events of a batch, each checked."""
    seconds, events, rank = msgspec.msgpack.decode(payload)  # no less than three
    assert isinstance(seconds, float)
    assert rank is None or isinstance(rank, int)
    for event in events:
        assert _REQUIRED[event["type"]] <= event.keys()
        for block_hash in event.get("block_hashes", ()):
            assert 0 <= block_hash < 2**64
        if event["type"] == "BlockStored":
            assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
            assert all(0 <= token < 2**32 for token in event["token_ids"])
            keys = event.get("extra_keys")
            assert keys is None or len(keys) == len(event["block_hashes"])
    return list(events)


def replay(context: "zmq.Context[Any]", port: int, first: int) -> Iterator[tuple[bytes, int, Batch]]:
    """Yield topic, number and events of the batches from a number on."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(f"tcp://127.0.0.1:{port}")
    try:
        socket.send_multipart([b"", struct.pack(">Q", first)])
        while True:
            assert socket.poll(10_000), "the replay has no end"
            empty, topic, number, payload = socket.recv_multipart()
            assert empty == b""
            assert len(number) == 8
            if payload == b"":
                assert struct.unpack(">q", number) == (-1,)
                return
            yield topic, struct.unpack(">Q", number)[0], read_batch(payload)
    finally:
        socket.close()


class BlockTable:
    """The blocks of a server, as a router keeps them."""

    def __init__(self) -> None:
        self.hashes: set[int] = set()
        self.topics: list[str] = []

    def take(self, topic: bytes, number: int, events: Batch) -> None:
        """Take a batch."""
        assert number >= 0
        kind, server, model = topic.decode().split("@")
        assert kind == "kv"
        assert server
        assert model
        self.topics.append(topic.decode())
        for event in events:
            match event["type"]:
                case "BlockStored":
                    parent = event["parent_block_hash"]
                    assert parent is None or parent in self.hashes, "a parent comes before its children"
                    self.hashes.update(event["block_hashes"])
                case "BlockRemoved":
                    self.hashes.difference_update(event["block_hashes"])
                case "AllBlocksCleared":
                    self.hashes.clear()
