# SPDX-License-Identifier: Apache-2.0
"""A simulated engine that takes every parameter, and tells what a request asks for in numbers that say where they are.

It is for the ways of outputs through the pipeline: which token, beam or prompt a number came with can be read from it.
"""

import msgspec
import numpy as np

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import Beam, ExtraOutputs, GenerationRequest, SamplingParams, TokenChunk
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.packed_array import PackedArray
from serving.engines.seam.wrapped_engine import WrappedEngine
from serving.engines.simulated.simulated_engine import CAPABILITIES, SimulatedEngine


class TellingEngine(WrappedEngine):
    """An engine whose tokens are the simulated engine's; beam n has each of them n ids higher."""

    def __init__(self, spec: SimulatedEngineSpec, clock: VirtualClock) -> None:
        engine = SimulatedEngine(spec, clock)
        everything = frozenset(SamplingParams.__struct_fields__)
        super().__init__(engine, msgspec.structs.replace(engine.info, supported=everything, why_not={}))
        self._asked: dict[int, GenerationRequest] = {}
        self._made: dict[int, list[int]] = {}

    def add(self, request: GenerationRequest) -> None:
        """Queue a request without what the simulated engine refuses; a prefill alone makes one token."""
        known = {name: getattr(request.sampling, name) for name in CAPABILITIES.supported}
        if request.sampling.is_context_only:
            known["max_tokens"] = 1
        self._engine.add(msgspec.structs.replace(request, sampling=SamplingParams(**known)))
        self._asked[request.key], self._made[request.key] = request, []

    def step(self) -> list[TokenChunk]:
        """Run a step; a beam search has its one chunk at its end."""
        chunks = [self._told(chunk, self._asked[chunk.key]) for chunk in self._engine.step()]
        return [chunk for chunk in chunks if chunk is not None]

    def _told(self, chunk: TokenChunk, request: GenerationRequest) -> TokenChunk | None:
        made, sampling = self._made[chunk.key], request.sampling
        is_first = not made
        made += chunk.token_ids
        extras = ExtraOutputs()
        if sampling.beam_width > 1:
            if chunk.finish_reason is None:
                return None
            is_first = True
            chunk.token_ids = made
            extras.beams = [
                self._beam([one + number for one in made], sampling) for number in range(sampling.beam_width)
            ]
        told = self._beam(chunk.token_ids, sampling)
        chunk.log_probs = told.log_probs
        extras.generation_logits = None if extras.beams else told.generation_logits
        if sampling.return_context_logits and is_first:
            extras.context_logits = self._logits(request.input_ids)
        chunk.extras = None if extras == ExtraOutputs() else extras
        return chunk

    def _beam(self, token_ids: list[int], sampling: SamplingParams) -> Beam:
        log_probs = [-token_id / self.info.vocab_size for token_id in token_ids]
        logits = self._logits(token_ids) if sampling.return_generation_logits else None
        return Beam(token_ids, sum(log_probs), log_probs if sampling.return_log_probs else None, logits)

    def _logits(self, token_ids: list[int]) -> PackedArray:
        """Return ``[tokens, vocab]`` with a one where the token is."""
        return PackedArray.of(np.eye(self.info.vocab_size, dtype=np.float32)[token_ids])
