# SPDX-License-Identifier: Apache-2.0
"""The threads that reply, the response workers: each owns some streams, so the replies of a stream keep their order.

Refusals have a worker of their own: behind the tokens of running streams they would wait too long.

Triton takes a response by a handshake between two processes, some six switches of a thread in a row. One thread alone
waits for each switch in turn, and everything on the way falls asleep between two responses; with several responses on
the way, threads find work without being woken (docs/performance.md).
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable

from serving.engines.seam.base import TokenChunk
from serving.pipeline.response_coalescing import ChunkGather

_log = logging.getLogger("trireme.reply_lanes")

# Half of the threads that Triton's Python backend has for a model's messages (`thread-pool-size`, 8): with 8 lanes a
# benchmark once stood still, with 4 never.
NUM_LANES = 4


class ReplyLanes:
    """The response workers of one service, called lanes here; the key of a stream picks its lane.

    Args:
        reply: called on a lane's thread with each chunk to send.
        delay_s: returns the seconds that chunks may wait to be joined (`ChunkGather`).
    """

    def __init__(self, reply: Callable[[TokenChunk], None], *, delay_s: Callable[[], float]) -> None:
        self._lanes = [_Lane(reply, ChunkGather(delay_s)) for _ in range(NUM_LANES)]
        self._refusals = _Lane(reply, ChunkGather(lambda: 0.0))
        self._begun: set[int] = set()  # streams with a chunk put, but not their last chunk

    def put(self, chunks: Iterable[TokenChunk]) -> None:
        """Queue chunks to be sent, each stream's chunks in the order given here; for one thread."""
        parts: dict[_Lane, list[TokenChunk]] = {}
        for chunk in chunks:
            parts.setdefault(self._lane_of(chunk), []).append(chunk)
        for lane, part in parts.items():
            lane.inbox.put(part)

    def _lane_of(self, chunk: TokenChunk) -> "_Lane":
        lane = self._lanes[chunk.key % NUM_LANES]
        if chunk.error is None and chunk.finish_reason is None:
            self._begun.add(chunk.key)
        elif chunk.key in self._begun:
            self._begun.discard(chunk.key)
        elif chunk.error is not None:
            return self._refusals
        return lane

    def clear(self) -> None:
        """Drop the waiting chunks: the engine is gone. Only the thread that calls `put` may call this."""
        self._begun.clear()
        for lane in (*self._lanes, self._refusals):
            lane.inbox.put(_CLEAR)

    def close(self) -> None:
        """Stop sending and return at once; only a chunk whose sending has begun is still sent."""
        for lane in (*self._lanes, self._refusals):
            lane.inbox.put(_CLOSE)


_CLEAR, _CLOSE = "clear", "close"


class _Lane:
    def __init__(self, reply: Callable[[TokenChunk], None], gather: ChunkGather) -> None:
        self.inbox: queue.SimpleQueue[list[TokenChunk] | str] = queue.SimpleQueue()
        self._reply = reply
        self._gather = gather
        threading.Thread(target=self._run, name="reply-lane", daemon=True).start()

    def _run(self) -> None:
        while True:
            chunks: list[TokenChunk] = []
            for item in self._arrived():
                if item == _CLOSE:
                    return
                if isinstance(item, str):
                    self._gather.clear()
                    chunks.clear()
                else:
                    chunks += item
            for chunk in self._gather.due(chunks):
                self._reply_safely(chunk)

    def _arrived(self) -> list[list[TokenChunk] | str]:
        """Return everything in the inbox; wait for a first item, at the longest until a chunk is due."""
        try:
            items = [self.inbox.get(timeout=self._gather.wait_s())]
            while not self.inbox.empty():  # no other thread takes
                items.append(self.inbox.get())
        except queue.Empty:
            return []
        return items

    def _reply_safely(self, chunk: TokenChunk) -> None:
        try:
            self._reply(chunk)
        except Exception:  # one stream's failure must not end the worker of many
            _log.exception("a chunk could not be replied", extra={"is_of_request": True})
