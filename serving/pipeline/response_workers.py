# SPDX-License-Identifier: Apache-2.0
"""The threads that reply, the response workers: each owns some streams, so the replies of a stream keep their order.

Refusals have a worker of their own: behind the tokens of running streams they would wait too long.

Triton takes a response by a handshake between two processes, some six switches of a thread in a row. One thread alone
waits for each switch in turn, and everything on the way falls asleep between two responses; with several responses on
the way, threads find work without being woken (docs/performance.md).

Where responses go past Triton (`serving.pipeline.direct`), no handshake is needed, and several threads would
only wait for each other: one thread has those streams, and hands the last chunk of each to a thread that asks Triton.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable

from serving.engines.seam.base import TokenChunk
from serving.pipeline.response_coalescing import ResponseCoalescer, is_last

_log = logging.getLogger("trireme.response_workers")

# Half of the threads that Triton's Python backend has for a model's messages (`thread-pool-size`, 8): with 8 workers a
# benchmark once stood still, with 4 never.
NUM_WORKERS = 4


class ResponseWorkers:
    """The response workers of one service; the key of a stream picks its worker.

    Args:
        reply: called on a worker's thread with each chunk to send.
        delay_s: returns the seconds that chunks may wait to be joined (`ResponseCoalescer`).
        is_direct: returns whether the replies of a stream, by its key, go past Triton, but for the last.
        flush: called on a worker's thread after `reply` was called with all chunks that were there.
    """

    def __init__(
        self,
        reply: Callable[[TokenChunk], None],
        *,
        delay_s: Callable[[], float],
        is_direct: Callable[[int], bool] = lambda _: False,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._reply = reply
        self._is_direct = is_direct
        self._workers = [_Worker(reply, flush, ResponseCoalescer(delay_s)) for _ in range(NUM_WORKERS)]
        self._refusals = _Worker(reply, flush, ResponseCoalescer(lambda: 0.0))
        self._direct = _Worker(self._reply_directly, flush, ResponseCoalescer(delay_s))
        self._all = (*self._workers, self._refusals, self._direct)
        self._begun: set[int] = set()  # streams with a chunk put, but not their last chunk

    def put(self, chunks: Iterable[TokenChunk]) -> None:
        """Queue chunks to be sent, each stream's chunks in the order given here; for one thread."""
        parts: dict[_Worker, list[TokenChunk]] = {}
        for chunk in chunks:
            parts.setdefault(self._worker_of(chunk), []).append(chunk)
        for worker, part in parts.items():
            worker.inbox.put(part)

    def _worker_of(self, chunk: TokenChunk) -> "_Worker":
        worker = self._workers[chunk.key % NUM_WORKERS]
        if self._is_direct(chunk.key) and (not is_last(chunk) or chunk.key in self._begun):
            worker = self._direct  # else all of the answer is in this chunk, which Triton gets
        if not is_last(chunk):
            self._begun.add(chunk.key)
        elif chunk.key in self._begun:
            self._begun.discard(chunk.key)
        elif chunk.error is not None:
            return self._refusals
        return worker

    def clear(self) -> None:
        """Drop the waiting chunks: the engine is gone. Only the thread that calls `put` may call this."""
        self._begun.clear()
        for worker in self._all:
            worker.inbox.put(_CLEAR)

    def close(self) -> None:
        """Stop sending and return at once; only a chunk whose sending has begun is still sent."""
        for worker in self._all:
            worker.inbox.put(_CLOSE)

    def _reply_directly(self, chunk: TokenChunk) -> None:
        if is_last(chunk):  # with what was joined to it, and behind all chunks before it
            self._workers[chunk.key % NUM_WORKERS].inbox.put([chunk])
        else:
            self._reply(chunk)


_CLEAR, _CLOSE = "clear", "close"


class _Worker:
    def __init__(
        self, reply: Callable[[TokenChunk], None], flush: Callable[[], None], coalescer: ResponseCoalescer
    ) -> None:
        self.inbox: queue.SimpleQueue[list[TokenChunk] | str] = queue.SimpleQueue()
        self._reply = reply
        self._flush = flush
        self._coalescer = coalescer
        threading.Thread(target=self._run, name="reply-worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            chunks: list[TokenChunk] = []
            for item in self._arrived():
                if item == _CLOSE:
                    return
                if isinstance(item, str):
                    self._coalescer.clear()
                    chunks.clear()
                else:
                    chunks += item
            for chunk in self._coalescer.due(chunks):
                self._reply_safely(chunk)
            self._flush()

    def _arrived(self) -> list[list[TokenChunk] | str]:
        """Return everything in the inbox; wait for a first item, at the longest until a chunk is due."""
        try:
            items = [self.inbox.get(timeout=self._coalescer.wait_s())]
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
