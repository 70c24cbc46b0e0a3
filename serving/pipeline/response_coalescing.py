# SPDX-License-Identifier: Apache-2.0
"""The coalescing of a stream's tokens into fewer, larger chunks: a response costs as much with one token as with ten.

Tokens of one stream that are here at the same time always leave together, so a receiver that falls behind catches up.
With a delay, tokens also wait for their successors; the first and the last chunk of a stream never wait.
"""

import time
from collections.abc import Callable, Iterable

from serving.engines.seam.base import TokenChunk
from serving.requests.extra_outputs import merged


class ResponseCoalescer:
    """The chunks of some streams on their way out; for one thread.

    Args:
        delay_s: returns the seconds between two chunks of a stream. It is called each time, because the delay may
            depend on the number of streams; the delay is always zero or never zero.
    """

    def __init__(self, delay_s: Callable[[], float], *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._delay_s = delay_s
        self._now_s = now_s
        self._waiting: dict[int, TokenChunk] = {}
        self._last_sent_s: dict[int, float] = {}

    def due(self, chunks: Iterable[TokenChunk] = ()) -> list[TokenChunk]:
        """Take `chunks`; return the chunks to send now, at most one for each stream, with all its tokens up to now."""
        waiting = self._waiting
        for chunk in chunks:
            earlier = waiting.setdefault(chunk.key, chunk)
            if earlier is not chunk and not is_last(earlier):
                _append(earlier, chunk)
        delay_s = self._delay_s()
        if not delay_s:
            self._waiting = {}
            return list(waiting.values())
        now_s = self._now_s()
        due = [chunk for chunk in waiting.values() if self._is_due(chunk, now_s - delay_s)]
        for chunk in due:
            del waiting[chunk.key]
            self._note_sent(chunk, now_s)
        return due

    def wait_s(self) -> float | None:
        """Return the seconds until the next chunk is due; None: no chunk waits."""
        if not self._waiting:
            return None
        oldest_s = min(self._last_sent_s[key] for key in self._waiting)  # a first chunk never waits
        return max(0.0, oldest_s + self._delay_s() - self._now_s())

    def clear(self) -> None:
        """Drop all chunks and streams: the engine is gone."""
        self._waiting.clear()
        self._last_sent_s.clear()

    def _is_due(self, chunk: TokenChunk, sent_before_s: float) -> bool:
        return is_last(chunk) or self._last_sent_s.get(chunk.key, float("-inf")) <= sent_before_s

    def _note_sent(self, chunk: TokenChunk, now_s: float) -> None:
        if is_last(chunk):
            self._last_sent_s.pop(chunk.key, None)
        else:
            self._last_sent_s[chunk.key] = now_s


def _append(earlier: TokenChunk, chunk: TokenChunk) -> None:
    earlier.token_ids += chunk.token_ids
    earlier.finish_reason, earlier.error = chunk.finish_reason, chunk.error
    earlier.perf, earlier.work = chunk.perf, chunk.work
    if chunk.log_probs is not None:
        earlier.log_probs = [*(earlier.log_probs or ()), *chunk.log_probs]
    if chunk.extras is not None:
        earlier.extras = merged(earlier.extras, chunk.extras)


def is_last(chunk: TokenChunk) -> bool:
    """Return whether a chunk is the last of its stream."""
    return chunk.finish_reason is not None or chunk.error is not None
