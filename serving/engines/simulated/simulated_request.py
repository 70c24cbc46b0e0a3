# SPDX-License-Identifier: Apache-2.0
"""A request of the engine without a model, and what it has made so far."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from serving.engines.seam.base import GenerationRequest, PerfMetrics, SamplingParams, TokenChunk
from serving.engines.seam.paged_batch import Sequence
from serving.engines.seam.request_times import RequestTimes
from serving.engines.simulated.fake_beams import BeamSearch
from serving.engines.simulated.fake_output import FakeOutput


@dataclass(slots=True)
class SimulatedRequest:
    """A request with its place in the batch, `sequence`; drafts are part of the prefill until verified at its end."""

    request: GenerationRequest
    sequence: Sequence
    output: FakeOutput | None = None  # for a request that asks for more than tokens
    beams: BeamSearch | None = None
    draft_ids: tuple[int, ...] = ()  # not verified yet
    num_reused_tokens: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)
    output_ids: list[int] = field(default_factory=list)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def next_tokens(self, num_tokens: int) -> Iterator[int]:
        """Return the tokens of a step, behind the drafts that it accepts; fewer where all are banned.

        `num_tokens` of the sequence is the caller's to count.
        """
        if self.draft_ids:
            yield from self._accepted_drafts()
        yield from itertools.islice(self.sequence.tokens, num_tokens)

    def _accepted_drafts(self) -> Iterator[int]:
        assert self.output is not None, "drafts are verified by the toy's logits"
        sequence, draft_ids = self.sequence, self.draft_ids
        self.draft_ids = ()
        sequence.num_tokens -= len(draft_ids)
        sequence.num_free_slots += len(draft_ids)
        for token_id in self.output.accepted(draft_ids):
            sequence.num_free_slots -= 1  # the token is in the KV cache
            self.num_accepted_tokens += 1
            yield token_id

    def note_tokens(self, chunk: TokenChunk) -> None:
        """Count a chunk's tokens."""
        num_guesses = _num_guesses(self.request.sampling)
        if num_guesses and self.output_ids:  # the first token comes from the prefill
            self.num_draft_tokens += num_guesses
            self.num_accepted_tokens += len(chunk.token_ids) - 1
        self.output_ids += chunk.token_ids

    def perf(self, block_tokens: int) -> PerfMetrics | None:
        """Return the metrics of the request at its end."""
        num_blocks, num_reused = self.sequence.num_allocated_blocks, self.num_reused_tokens // block_tokens
        return self.times.perf(
            kv_cache_alloc_new_blocks=num_blocks - num_reused,
            kv_cache_reused_blocks=num_reused,
            kv_cache_alloc_total_blocks=num_blocks,
            total_accepted_draft_tokens=self.num_accepted_tokens,
            total_draft_tokens=self.num_draft_tokens,
            num_preemptions=self.sequence.num_preemptions,
        )


def _num_guesses(sampling: SamplingParams) -> int:
    """Return the tokens that lookahead tries in a step beside the certain one: its window and the n-grams to verify."""
    if sampling.lookahead_ngram_size is None:
        return 0
    sizes = (sampling.lookahead_window_size, sampling.lookahead_verification_set_size)
    return (sampling.lookahead_ngram_size - 1) * sum(size or 0 for size in sizes)
