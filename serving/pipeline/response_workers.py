# SPDX-License-Identifier: Apache-2.0
"""The threads that reply: each owns the streams of its lane, so that the replies of a stream keep their order. What is
refused has a lane of its own: it would wait there for the tokens of all others.

Triton takes a response by a handshake between two processes, some six switches of a thread in a row. One thread alone
waits for each of them in turn, and everything on the way falls asleep between two responses; with several on the way
the others find work without being woken (docs/performance.md).
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
    """All lanes; a stream's is told by its key.

    Args:
        reply: called on a lane's thread with each chunk that is to be sent.
        delay_s: how long chunks may wait to be joined (`ChunkGather`).
    """

    def __init__(self, reply: Callable[[TokenChunk], None], *, delay_s: Callable[[], float]) -> None:
        self._lanes = [_Lane(reply, ChunkGather(delay_s)) for _ in range(NUM_LANES)]
        self._refusals = _Lane(reply, ChunkGather(lambda: 0.0))
        self._begun: set[int] = set()  # streams that a chunk was put of, and not the last one

    def put(self, chunks: Iterable[TokenChunk]) -> None:
        """Have chunks sent, each stream's in the order given here; for one thread."""
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
        """Forget what waits: the engine is gone; for the same thread."""
        self._begun.clear()
        for lane in (*self._lanes, self._refusals):
            lane.inbox.put(_CLEAR)

    def close(self) -> None:
        """No chunk is sent that has not been begun; returns at once."""
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
        """Everything that is here; waits for something, but not longer than until a chunk is due."""
        try:
            items = [self.inbox.get(timeout=self._gather.wait_s())]
            while not self.inbox.empty():  # nobody else takes
                items.append(self.inbox.get())
        except queue.Empty:
            return []
        return items

    def _reply_safely(self, chunk: TokenChunk) -> None:
        try:
            self._reply(chunk)
        except Exception:  # one stream's failure must not end the lane of many
            _log.exception("a chunk could not be replied", extra={"is_of_request": True})
