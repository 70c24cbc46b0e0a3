# SPDX-License-Identifier: Apache-2.0
"""One request that is generated in rounds of drafts: what a round asks for, and what all of them made."""

from dataclasses import dataclass, field

import msgspec

from serving.engines.seam.base import GenerationRequest, PerfMetrics, TokenChunk
from serving.engines.seam.packed_array import PackedArray, join_rows

_SUMMED = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "num_preemptions")


@dataclass(slots=True, eq=False)
class Speculation:
    """One request over all its rounds."""

    request: GenerationRequest
    round_key: int = 0
    draft_ids: list[int] = field(default_factory=list)  # of this round
    draft_logits: list[PackedArray] = field(default_factory=list)  # theirs, in parts of some rows ``[drafts, vocab]``
    output_ids: list[int] = field(default_factory=list)
    num_accepted: int = 0
    num_drafted: int = 0
    perf: PerfMetrics | None = None  # of the rounds that are over, where the target tells

    @property
    def num_wanted_drafts(self) -> int:
        """For the next round, which adds one token of the target's own to them."""
        num_missing = self.request.sampling.max_tokens - len(self.output_ids)
        return min(self.request.sampling.num_draft_tokens, num_missing - 1)

    @property
    def is_weighing(self) -> bool:
        """Whether drafts are verified by their probabilities. To a greedy request one token is all that may come."""
        sampling = self.request.sampling
        return sampling.use_draft_logits and not sampling.is_greedy

    def begin_round(self, key: int) -> None:
        """Forget the drafts of the last one."""
        self.round_key, self.draft_ids, self.draft_logits = key, [], []

    def draft_request(self) -> GenerationRequest:
        """For the draft engine, which need tell nothing but its drafts and what they are weighed by."""
        return self._rest(
            max_tokens=self.num_wanted_drafts,
            return_log_probs=False,
            return_context_logits=False,
            return_generation_logits=self.is_weighing,
            draft_acceptance_threshold=None,
        )

    def note_drafts(self, chunk: TokenChunk) -> None:
        """Collect what the draft engine has made."""
        self.draft_ids += chunk.token_ids
        if self.is_weighing and chunk.extras is not None and chunk.extras.generation_logits is not None:
            self.draft_logits.append(chunk.extras.generation_logits)

    def target_request(self) -> GenerationRequest:
        """For the target: the drafts so far, to be verified, and the rest."""
        logits = join_rows(self.draft_logits) if self.draft_logits else None
        return self._rest(draft_input_ids=tuple(self.draft_ids), draft_logits=logits)

    def _rest(self, **sampling: object) -> GenerationRequest:
        """The rest of the request as one of its own, sampled as the request but for what is given."""
        num_output_ids, asked = len(self.output_ids), self.request.sampling
        rest = {
            "num_draft_tokens": 0,
            "use_draft_logits": False,
            "max_tokens": asked.max_tokens - num_output_ids,
            "min_tokens": max(0, asked.min_tokens - num_output_ids),
            "return_context_logits": asked.return_context_logits and not num_output_ids,
        }
        return msgspec.structs.replace(
            self.request,
            key=self.round_key,
            input_ids=self.request.input_ids + self.output_ids,
            num_output_ids=num_output_ids,
            sampling=msgspec.structs.replace(asked, **rest | sampling),
        )

    def note_round(self, token_ids: list[int], perf: PerfMetrics | None) -> None:
        """Count what the target made of the drafts: its own token where it refuses one is never that one."""
        self.num_accepted += sum(made == draft for made, draft in zip(token_ids, self.draft_ids, strict=False))
        self.num_drafted += len(self.draft_ids)
        self.output_ids += token_ids
        if perf is not None:
            self.perf = msgspec.structs.replace(
                joined_perf(self.perf, perf),
                total_accepted_draft_tokens=self.num_accepted,
                total_draft_tokens=self.num_drafted,
            )


def joined_perf(earlier: PerfMetrics | None, later: PerfMetrics) -> PerfMetrics:
    """One request's, over several rounds."""
    if earlier is None:
        return later
    sums = {name: _sum(getattr(earlier, name), getattr(later, name)) for name in _SUMMED}
    first = earlier.kv_cache_reused_blocks if earlier.first_reused_blocks is None else earlier.first_reused_blocks
    return msgspec.structs.replace(
        earlier, last_token_time_ns=later.last_token_time_ns, first_reused_blocks=first, **sums
    )


def _sum(earlier: int | None, later: int | None) -> int | None:
    return None if earlier is None or later is None else earlier + later
