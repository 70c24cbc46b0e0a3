# SPDX-License-Identifier: Apache-2.0
"""The stop strings of any engine: a wrapper that ends a generation with the token that completes a stop string.

Engines match token ids, and a stop string can be tokenized in many ways. So the text is followed here, in the engine's
process, where a match stops the very next step. `postprocessing` follows an equal text and cuts it at an equal place.
"""

from serving.engines.seam.base import Beam, Engine, FinishReason, GenerationRequest, TokenChunk
from serving.engines.seam.wrapped_engine import WrappedEngine
from serving.requests.extra_outputs import cut, cut_beam
from serving.text.detokenization import StopStringWatch, TextDecoder


class StoppingEngine(WrappedEngine):
    """An engine with stop strings; it passes every call through, at no cost for requests without stop strings."""

    def __init__(self, engine: Engine, decoder: TextDecoder) -> None:
        super().__init__(engine)
        self._decoder = decoder
        self._watches: dict[int, StopStringWatch] = {}

    def add(self, request: GenerationRequest) -> None:
        """Queue a request and, if it has stop strings, follow its text."""
        self._engine.add(request)
        if request.stop_strings:
            watch = self._watches[request.key] = StopStringWatch(self._decoder, request.stop_strings)
            if request.num_output_ids:  # it goes on: a string may have begun before
                watch.tokens_until_stop(request.input_ids[-request.num_output_ids :])

    def cancel(self, key: int) -> None:
        """Stop a request, and stop following its text."""
        self._watches.pop(key, None)
        self._engine.cancel(key)

    def step(self) -> list[TokenChunk]:
        """Run one iteration, and return chunks that end with the token that completes a stop string."""
        chunks = self._engine.step()
        return [self._cut(chunk) for chunk in chunks] if self._watches else chunks

    def _cut(self, chunk: TokenChunk) -> TokenChunk:
        watch = self._watches.get(chunk.key)
        if watch is None:
            return chunk
        if chunk.extras is not None and chunk.extras.beams is not None:
            return self._cut_beams(chunk, chunk.extras.beams)
        num_tokens = watch.tokens_until_stop(chunk.token_ids)
        if num_tokens is not None:
            perf = chunk.perf
            if chunk.finish_reason is None:
                perf = self._engine.perf_of(chunk.key)
                self._engine.cancel(chunk.key)
            log_probs = None if chunk.log_probs is None else chunk.log_probs[:num_tokens]
            token_ids, extras = chunk.token_ids[:num_tokens], cut(chunk.extras, num_tokens)
            chunk = TokenChunk(
                chunk.key, token_ids, FinishReason.STOP_STRING, log_probs=log_probs, perf=perf, extras=extras
            )
        if chunk.finish_reason is not None or chunk.error is not None:
            del self._watches[chunk.key]
        return chunk

    def _cut_beams(self, chunk: TokenChunk, beams: list[Beam]) -> TokenChunk:
        """Cut every beam by itself; the search ignores stop strings, and the best beam gives the finish reason."""
        strings = self._watches.pop(chunk.key).strings
        ends = [StopStringWatch(self._decoder, strings).tokens_until_stop(beam.token_ids) for beam in beams]
        kept = [beam if end is None else cut_beam(beam, end) for beam, end in zip(beams, ends, strict=True)]
        assert chunk.extras is not None, "its beams are there"
        chunk.extras.beams = kept
        if ends[0] is not None:
            chunk.token_ids, chunk.log_probs = kept[0].token_ids, kept[0].log_probs
            chunk.finish_reason = FinishReason.STOP_STRING
        return chunk
