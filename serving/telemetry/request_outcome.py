# SPDX-License-Identifier: Apache-2.0
"""The recorder of how one request ended, for the comparison of releases: times, counts and work, never text."""

import time

import msgspec

from ensemble_configs.split.outcome import Outcome
from serving.engines.seam.base import FinishReason, TokenChunk
from serving.telemetry.sequence_life import SequenceLife

_PER_MS = 1e6  # nanoseconds
_MAX_WORD_CHARS = 64


class OutcomeRecorder:
    """The recorder of one request on one release, from its construction on.

    Of a request with several sequences the times are of the sequence that made the most tokens, and tokens are summed.

    Args:
        outcome: what is known of the request before it begins; its times and counts are filled in.
    """

    __slots__ = ("_arrival_s", "_chunk", "_known", "_life", "_num_tokens")

    def __init__(self, outcome: Outcome) -> None:
        self._known = outcome
        self._arrival_s = time.monotonic()
        self._chunk: TokenChunk | None = None
        self._life: SequenceLife | None = None
        self._num_tokens = 0

    def note_end(self, chunk: TokenChunk, life: SequenceLife) -> None:
        """Note that a sequence of the request has had its last chunk."""
        self._num_tokens += life.num_tokens
        if self._life is None or life.num_tokens > self._life.num_tokens:
            self._chunk, self._life = chunk, life

    @property
    def is_cancelled(self) -> bool:
        """Return whether somebody stopped the request, with what it had."""
        return self._chunk is not None and self._chunk.finish_reason is FinishReason.CANCELLED

    def outcome(self, *, error: str = "", is_empty: bool = False, is_looping: bool = False) -> Outcome:
        """Return the outcome of the request, which ends now.

        Args:
            error: the code of the error that ended it; "": it was answered.
            is_empty: it has no text.
            is_looping: its text ends in repetition.
        """
        found: dict[str, object] = {"error": error[:_MAX_WORD_CHARS], "num_tokens": self._num_tokens}
        if not error:
            found |= {"is_empty": is_empty, "is_looping": is_looping}
            found["e2e_ms"] = 1000 * (time.monotonic() - self._arrival_s)
        if self._life is not None and self._chunk is not None:
            found |= _times(self._life, self._arrival_s) | _engine_account(self._chunk, self._life)
        return msgspec.structs.replace(self._known, **found)


def _times(life: SequenceLife, arrival_s: float) -> dict[str, object]:
    found: dict[str, object] = {"num_prompt_tokens": life.num_prompt_tokens}
    if life.first_s:
        found["ttft_ms"] = 1000 * (life.first_s - arrival_s)
    if life.num_tokens > 1:
        found["tpot_ms"] = 1000 * (life.last_s - life.first_s) / (life.num_tokens - 1)
    return found


def _engine_account(chunk: TokenChunk, life: SequenceLife) -> dict[str, object]:
    found: dict[str, object] = {}
    if chunk.finish_reason is not None:
        found["finish_reason"] = str(chunk.finish_reason)
    perf, work = chunk.perf, chunk.work
    if perf is not None:
        found["num_cached_tokens"] = life.num_cached_tokens(perf)
        if perf.first_scheduled_time_ns:
            found["queue_ms"] = max(0, perf.first_scheduled_time_ns - life.arrival_ns) / _PER_MS
            if perf.first_token_time_ns:
                found["prefill_ms"] = max(0, perf.first_token_time_ns - perf.first_scheduled_time_ns) / _PER_MS
        if life.num_tokens > 1 and perf.last_token_time_ns:  # of the engine's steps: responses are coalesced
            decode_ns = max(0, perf.last_token_time_ns - perf.first_token_time_ns)
            found["tpot_ms"] = decode_ns / _PER_MS / (life.num_tokens - 1)
    if work is not None:
        found |= {
            "prefill_seqs": work.prefill_seqs,
            "step_seqs": work.num_seqs,
            "step_prompt_tokens": work.num_prompt_tokens,
            "step_kv_tokens": work.num_kv_read_tokens,
        }
    return found
