# SPDX-License-Identifier: Apache-2.0
"""The rules for what may begin beside what in OpenVINO's pipeline, which does not survive every state.

OpenVINO 2026.4 runs more than `max_num_seqs` at once, and drops everything that runs when nothing can go on in a step;
it loses what it preempts while drafting, and with prefix caching spoils answers (`openvino_shared_blocks`).
"""

from collections.abc import Collection

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.openvino.openvino_drafting import num_drafts_of
from serving.engines.openvino.openvino_generation import Generation
from serving.engines.openvino.openvino_pipeline import KV_BLOCK_TOKENS
from serving.engines.openvino.openvino_shared_blocks import EarlierPrompts
from serving.engines.seam.base import GenerationRequest
from trireme.base.errors import RequestError


class Admission:
    """The rules of one engine, and the prompts that are remembered for them."""

    def __init__(self, spec: OpenVinoEngineSpec) -> None:
        self._spec = spec
        self._earlier = EarlierPrompts(spec.num_kv_blocks + spec.max_num_seqs)

    def refuse_unfitting(self, request: GenerationRequest) -> None:
        """Check that a request with drafts or beams fits the KV cache to its end: it is not preempted.

        Raises:
            RequestError: the request does not fit.
        """
        num_drafts, num_beams = num_drafts_of(request.sampling, self._spec), request.sampling.beam_width
        num_kv_blocks = self._spec.num_kv_blocks
        if (num_drafts or num_beams > 1) and self._max_num_blocks(request) > num_kv_blocks:
            max_tokens = request.sampling.max_tokens
            more = f"+ {num_drafts} drafts" if num_drafts else f"in each of {num_beams} beams"
            raise RequestError(
                f"{len(request.input_ids)} prompt tokens + max_tokens {max_tokens} {more} cannot fit "
                f"the KV cache of {num_kv_blocks} blocks; ask for less or raise engine.num_kv_blocks",
                field="max_tokens",
                value=max_tokens,
                num_kv_blocks=num_kv_blocks,
            )

    def may_begin(
        self,
        generation: Generation,
        *,
        beside: Collection[Generation],
        leaving: Collection[Generation],
        num_used_blocks: int,
    ) -> bool:
        """Return whether a waiting request may be given to the pipeline now.

        Args:
            generation: the waiting request.
            beside: requests that run.
            leaving: cancelled requests that may still take part in a step, or hold blocks.
            num_used_blocks: of the KV cache, after the last step.
        """
        sampled = [generation, *beside]
        if self._spec.num_draft_tokens or any(one.request.sampling.beam_width > 1 for one in sampled):
            has_room = self._has_room_to_the_end(generation, beside, leaving)
        else:
            has_room = self._has_room_for_prefill(generation, beside, num_used_blocks)
        return has_room and not self._shares_a_block(generation, [*beside, *leaving])

    def note(self, generation: Generation) -> None:
        """Note a request that was given to the pipeline or has just ended: its last block may be in the cache."""
        if generation.lineage is not None:
            self._earlier.note(generation.lineage)

    def _has_room_for_prefill(
        self, generation: Generation, beside: Collection[Generation], num_used_blocks: int
    ) -> bool:
        """Return whether a prefill fits the KV cache beside all that has begun, with one more block for each of those.

        Prefills that wait for each other's blocks would never end: OpenVINO preempts for decoding only, and prefix
        caching gives a request the blocks that it shares as soon as it is added.
        """
        if not beside:
            return True
        if len(beside) == self._spec.max_num_seqs:
            return False
        num_promised = sum(running.num_prefill_blocks + 1 for running in beside)
        return num_used_blocks + num_promised + generation.num_blocks <= self._spec.num_kv_blocks

    def _has_room_to_the_end(
        self, generation: Generation, beside: Collection[Generation], leaving: Collection[Generation]
    ) -> bool:
        """Return whether all that has begun can run to its end beside a request: drafting loses what is preempted."""
        num_blocks = sum(self._max_num_blocks(one.request) for one in (generation, *beside, *leaving))
        is_there_a_seat = len(beside) < self._spec.max_num_seqs and num_blocks <= self._spec.num_kv_blocks
        return is_there_a_seat and (self._spec.draft_dir is None or self._has_room_in_a_step(generation, beside))

    def _has_room_in_a_step(self, generation: Generation, beside: Collection[Generation]) -> bool:
        """Return whether a whole prefill goes into the step that all others take part in, or the request is alone.

        With a draft model, OpenVINO 2026.4 gives wrong tokens where a prefill in company takes several steps.
        """
        num_tokens = len(generation.request.input_ids)
        for running in beside:
            request = running.request
            is_in_prefill = running.num_prefill_blocks > 0
            num_tokens += len(request.input_ids) if is_in_prefill else 1 + num_drafts_of(request.sampling, self._spec)
        return not beside or num_tokens <= self._spec.max_num_batched_tokens

    def _shares_a_block(self, generation: Generation, others: Collection[Generation]) -> bool:
        """Return whether another request, in its prefill, goes on from an earlier prompt that this one goes on from.

        `openvino_shared_blocks` says what would happen.
        """
        if not self._spec.is_prefix_caching:
            return False
        if generation.lineage is None:
            generation.lineage = self._earlier.lineage_of(generation.token_ids)
        return any(
            other.num_prefill_blocks and other.lineage and other.lineage.continued & generation.lineage.continued
            for other in others
        )

    def _max_num_blocks(self, request: GenerationRequest) -> int:
        """Return the KV blocks that a request may take until its end, with drafts behind it.

        Its last token is never fed back. Beams are counted as if they shared nothing.
        """
        sampling = request.sampling
        num_tokens = len(request.input_ids) + sampling.max_tokens - 1 + num_drafts_of(sampling, self._spec)
        return sampling.beam_width * -(-num_tokens // KV_BLOCK_TOKENS)
