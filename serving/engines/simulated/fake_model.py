# SPDX-License-Identifier: Apache-2.0
"""The output of the engine without a model: tokens by a rule, and fake logits where asked for."""

import itertools
import random
from collections.abc import Iterator

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.simulated.fake_hash import (
    NUM_RESERVED_IDS,
    digest,
    hash_tokens,
    how_sampled,
    prefix_digests,
    with_errors,
)
from serving.engines.simulated.fake_logits import FakeTokens, SharedCandidates
from serving.engines.simulated.fake_output import FakeOutput

# What acts on the logits of `fake_logits`, or is told of them.
_TOY = (
    "return_log_probs", "bad_words", "embedding_bias", "return_context_logits", "return_generation_logits",
    "draft_input_ids",
)  # fmt: skip


class FakeModel:
    """The fake model of one spec. Deterministic, but for requests that are sampled and bring no seed."""

    def __init__(self, spec: SimulatedEngineSpec) -> None:
        self._spec = spec
        self._vocab = range(NUM_RESERVED_IDS, spec.vocab_size)
        self._seeds = random.Random(spec.seed)  # for requests that bring none

    def output_of(self, request: GenerationRequest) -> Iterator[int]:
        """Return the tokens behind those that the request brings; a `FakeOutput` where it is about more than tokens."""
        sampling = request.sampling
        how = self._how(sampling)
        prompt = request.input_ids[: len(request.input_ids) - request.num_output_ids]
        candidates = self._candidates(prompt, how)
        if sampling.beam_width == 1 and not any(getattr(sampling, name) for name in _TOY):
            return _without_first(candidates, request.num_output_ids)
        toy = FakeTokens(
            SharedCandidates(candidates),
            vocab=self._vocab,
            vocab_size=self._spec.vocab_size,
            bias=sampling.embedding_bias or {},
            bad_words=sampling.bad_words,
            prompt=prompt,
        )
        _without_first(toy, request.num_output_ids)
        return FakeOutput(toy, sampling, self._spec.vocab_size, self._prompt_candidates(request.input_ids, how))

    def _how(self, sampling: SamplingParams) -> tuple[object, ...]:
        seed = sampling.seed
        if seed is None and not sampling.is_greedy:
            seed = self._seeds.getrandbits(64)
        return how_sampled(sampling, engine_seed=self._spec.seed, seed=seed or 0)

    def _candidates(self, prompt: list[int], how: tuple[object, ...]) -> Iterator[int]:
        """Return the tokens that stand out behind the prompt, without end."""
        if self._spec.mode == "echo":
            return self._erring(itertools.cycle([self._real_id(token_id) for token_id in prompt]))
        return self._erring(hash_tokens(digest(how, prompt), self._spec.vocab_size))

    def _prompt_candidates(self, prompt: list[int], how: tuple[object, ...]) -> Iterator[int]:
        """Return the tokens that stand out after the first token of the prompt, after the second, and so on."""
        if self._spec.mode == "echo":
            after = ([self._real_id(token_id)] for token_id in [*prompt[1:], prompt[0]])
            return (next(self._erring(iter(one))) for one in after)
        states = prefix_digests(how, prompt)
        return (next(self._erring(hash_tokens(state, self._spec.vocab_size))) for state in states)

    def _erring(self, tokens: Iterator[int]) -> Iterator[int]:
        rate = self._spec.error_rate
        return with_errors(tokens, rate, self._vocab) if rate else tokens

    def _real_id(self, token_id: int) -> int:
        """Return the token, or for a virtual one of a prompt table, which has no text, the last real one."""
        return min(token_id, self._spec.vocab_size - 1)


def _without_first(tokens: Iterator[int], count: int) -> Iterator[int]:
    for _ in range(count):
        next(tokens, None)
    return tokens
