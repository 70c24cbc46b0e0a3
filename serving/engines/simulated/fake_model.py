# SPDX-License-Identifier: Apache-2.0
"""The output of the engine without a model: the prompt over and over, or tokens that hash the prompt and its seed."""

import hashlib
import itertools
import random
from array import array
from collections.abc import Iterator

import msgspec

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import GenerationRequest, SamplingParams

# Tokenizers keep their special tokens here; the hash never yields one, so that every output has a text.
NUM_RESERVED_IDS = 16
_PRIME = 2_654_435_761  # Knuth's multiplicative hash


class FakeModel:
    """The fake model of one spec. Deterministic, but for requests that are sampled and bring no seed."""

    def __init__(self, spec: SimulatedEngineSpec) -> None:
        self._spec = spec
        self._vocab = range(NUM_RESERVED_IDS, spec.vocab_size)
        self._seeds = random.Random(spec.seed)  # for requests that bring none

    def tokens_of(self, request: GenerationRequest) -> Iterator[int]:
        """Return the tokens behind those that the request brings, without end."""
        prompt = request.input_ids[: len(request.input_ids) - request.num_output_ids]
        tokens = itertools.cycle(prompt) if self._spec.mode == "echo" else self._hashed(prompt, request.sampling)
        rate = self._spec.error_rate
        tokens = _with_errors(tokens, rate, self._vocab) if rate else tokens
        return itertools.islice(tokens, request.num_output_ids, None)

    def _hashed(self, prompt: list[int], sampling: SamplingParams) -> Iterator[int]:
        how: tuple[object, ...] = (self._spec.seed,)
        if not sampling.is_greedy:
            seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed
            how += (seed, sampling.temperature, sampling.top_k, sampling.top_p)
        state = hashlib.blake2b(msgspec.msgpack.encode(how), digest_size=8)
        state.update(array("q", prompt))
        return hash_tokens(int.from_bytes(state.digest(), "little"), self._spec.vocab_size)


def hash_tokens(state: int, vocab_size: int) -> Iterator[int]:
    """Yield endless token ids in [NUM_RESERVED_IDS, vocab_size), always equal ones for one 64-bit `state`.

    Source: Knuth's MMIX generator, the upper bits.
    """
    num_ids = vocab_size - NUM_RESERVED_IDS
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        yield NUM_RESERVED_IDS + (state >> 33) % num_ids


def _with_errors(tokens: Iterator[int], error_rate: float, vocab: range) -> Iterator[int]:
    """Yield the tokens of a smaller model: `tokens` but for about `error_rate` of them, always the same ones."""
    for index, token_id in enumerate(tokens):
        draw = (token_id + index) * _PRIME % 2**32 / 2**32
        is_wrong = draw < error_rate
        yield vocab[(token_id + 1 - vocab.start) % len(vocab)] if is_wrong else token_id
