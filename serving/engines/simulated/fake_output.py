# SPDX-License-Identifier: Apache-2.0
"""The outputs beside tokens of a request of the engine without a model, and the drafts that it brings."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from serving.engines.seam.base import ExtraOutputs, SamplingParams, TokenChunk
from serving.engines.seam.packed_array import PackedArray
from serving.engines.simulated.fake_beams import BeamSearch
from serving.engines.simulated.fake_logits import FakeTokens, logits_of


class FakeOutput:
    """An iterator over token ids that remembers what was asked for, until it is told with a chunk.

    Args:
        tokens: the fake model's.
        prompt_candidates: what stands out after each token of the prompt, for context logits.
    """

    def __init__(
        self, tokens: FakeTokens, sampling: SamplingParams, vocab_size: int, prompt_candidates: Iterable[int]
    ) -> None:
        self._tokens = tokens
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._prompt_candidates: Iterable[int] | None = prompt_candidates if sampling.return_context_logits else None
        self._log_probs: list[float] = []
        self._candidates: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """Return the next token.

        Raises:
            StopIteration: every token is banned.
        """
        token_id = next(self._tokens)
        self._note()
        return token_id

    def accepted(self, draft_ids: Sequence[int]) -> Iterator[int]:
        """Return the accepted drafts, from the first on; `draft_ids` are the first of the request's."""
        probs = _draft_probs(self._sampling)
        threshold = self._sampling.draft_acceptance_threshold
        for index, draft_id in enumerate(draft_ids):
            prob = None if probs is None else float(probs[index])
            if not self._tokens.accept(draft_id, prob, 1.0 if threshold is None else threshold):
                return
            self._note()
            yield draft_id

    def begin_search(self, end_ids: frozenset[int]) -> BeamSearch:
        """Begin a beam search here; beams keep themselves what was asked for."""
        return BeamSearch(self._tokens, self._sampling, end_ids)

    def tell(self, chunk: TokenChunk) -> None:
        """Add what was asked for to a chunk with the tokens since the last one."""
        sampling = self._sampling
        if sampling.return_log_probs:
            chunk.log_probs = self._log_probs
        if sampling.return_generation_logits or self._prompt_candidates is not None:
            chunk.extras = ExtraOutputs()
            if sampling.return_generation_logits:
                chunk.extras.generation_logits = logits_of(self._candidates, self._vocab_size)
            chunk.extras.context_logits = self.take_context_logits()
        self._log_probs, self._candidates = [], []

    def take_context_logits(self) -> PackedArray | None:
        """Return ``[prompt tokens, vocab] float32``, once; None: not asked for, or told."""
        candidates, self._prompt_candidates = self._prompt_candidates, None
        return None if candidates is None else logits_of(candidates, self._vocab_size)

    def _note(self) -> None:
        self._log_probs.append(self._tokens.log_prob)
        self._candidates.append(self._tokens.candidate)


def _draft_probs(sampling: SamplingParams) -> npt.NDArray[np.float64] | None:
    """Return the probability of each draft in the model that made it; None: the request has no draft logits."""
    if sampling.draft_logits is None:
        return None
    logits = sampling.draft_logits.array().astype(np.float64)
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    chosen = exps[np.arange(len(exps)), list(sampling.draft_input_ids)]
    probs: npt.NDArray[np.float64] = chosen / exps.sum(axis=1)
    return probs
