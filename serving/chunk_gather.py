# SPDX-License-Identifier: Apache-2.0
"""Fewer, larger chunks: a response costs the same with one token or with ten.

Tokens of one stream that are here at the same time always leave together, so a receiver that falls behind catches up.
With a delay they also wait for their successors, but the first of a stream and the last never do. The delay grows with
the number of streams, so that few streams are prompt and many do not spend the machine on responses.
"""

import time
from collections.abc import Callable, Iterable

from serving.engines.base import TokenChunk
from serving.extra_outputs import merged


class ChunkGather:
    """The chunks of all streams on their way out; for one thread. What waits is looked at whenever the engine steps.

    Args:
        max_delay_s: no chunk waits longer for its successors.
        target_per_s: of all streams together; the delay is what keeps `n` streams at it. Zero: always the longest.
    """

    def __init__(
        self, *, max_delay_s: float, target_per_s: float = 0.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_delay_s = max_delay_s
        self._target_per_s = target_per_s
        self._now_s = now_s
        self._waiting: dict[int, TokenChunk] = {}
        self._last_sent_s: dict[int, float] = {}

    def due(self, chunks: Iterable[TokenChunk]) -> list[TokenChunk]:
        """What is to be sent now: at most one chunk for each stream, with all its tokens up to now."""
        waiting = self._waiting
        for chunk in chunks:
            earlier = waiting.setdefault(chunk.key, chunk)
            if earlier is not chunk and not _is_last(earlier):
                _append(earlier, chunk)
        if not self._max_delay_s:
            self._waiting = {}
            return list(waiting.values())
        now_s = self._now_s()
        sent_before_s = now_s - self._delay_s()
        due = [chunk for chunk in waiting.values() if self._is_due(chunk, sent_before_s)]
        for chunk in due:
            del waiting[chunk.key]
            self._note_sent(chunk, now_s)
        return due

    def clear(self) -> None:
        """Forget everything: the engine is gone."""
        self._waiting.clear()
        self._last_sent_s.clear()

    def _delay_s(self) -> float:
        if not self._target_per_s:
            return self._max_delay_s
        return min(self._max_delay_s, len(self._last_sent_s) / self._target_per_s)

    def _is_due(self, chunk: TokenChunk, sent_before_s: float) -> bool:
        return _is_last(chunk) or self._last_sent_s.get(chunk.key, float("-inf")) <= sent_before_s

    def _note_sent(self, chunk: TokenChunk, now_s: float) -> None:
        if _is_last(chunk):
            self._last_sent_s.pop(chunk.key, None)
        else:
            self._last_sent_s[chunk.key] = now_s


def _append(earlier: TokenChunk, chunk: TokenChunk) -> None:
    earlier.token_ids += chunk.token_ids
    earlier.finish_reason, earlier.error, earlier.perf = chunk.finish_reason, chunk.error, chunk.perf
    if chunk.log_probs is not None:
        earlier.log_probs = [*(earlier.log_probs or ()), *chunk.log_probs]
    if chunk.extras is not None:
        earlier.extras = merged(earlier.extras, chunk.extras)


def _is_last(chunk: TokenChunk) -> bool:
    return chunk.finish_reason is not None or chunk.error is not None
