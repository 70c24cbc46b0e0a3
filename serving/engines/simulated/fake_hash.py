# SPDX-License-Identifier: Apache-2.0
"""The tokens that stand out after a prompt, for the engine without a model: a hash of all that could change them.

Every parameter of a request that on a real engine changes hidden numbers, from penalties to embedding tables, enters
the hash with its content, so the output is another one, and always the same other one.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator

import msgspec

from serving.engines.seam.base import SamplingParams

# Tokenizers keep their special tokens here; the hash never yields one, so that every output has a text.
NUM_RESERVED_IDS = 16

# What changes greedy output too.
HASHED = (
    "repetition_penalty", "presence_penalty", "frequency_penalty",
    "prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_ids",
    "lora_task_id", "lora_name", "lora_weights", "lora_config",
    "decoder_input_ids", "decoder_input_lengths", "encoder_input_features", "encoder_output_lengths",
    "cross_attention_mask", "skip_cross_attn_blocks", "mrope_rotary_cos_sin", "mrope_position_deltas",
    "guide_type", "guide",
)  # fmt: skip
HASHED_SAMPLED = ("top_p_min", "top_p_decay", "top_p_reset_id")
_DEFAULTS = SamplingParams(max_tokens=1)
_PRIME = 2_654_435_761  # Knuth's multiplicative hash


def hash_tokens(state: int, vocab_size: int) -> Iterator[int]:
    """Yield endless token ids in [NUM_RESERVED_IDS, vocab_size), always equal ones for one 64-bit `state`.

    Source: Knuth's MMIX generator, the upper bits.
    """
    num_ids = vocab_size - NUM_RESERVED_IDS
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        yield NUM_RESERVED_IDS + (state >> 33) % num_ids


def with_errors(tokens: Iterator[int], error_rate: float, vocab: range) -> Iterator[int]:
    """Yield the tokens of a smaller model: `tokens` but for about `error_rate` of them, always the same ones."""
    for index, token_id in enumerate(tokens):
        draw = (token_id + index) * _PRIME % 2**32 / 2**32
        is_wrong = draw < error_rate
        yield vocab[(token_id + 1 - vocab.start) % len(vocab)] if is_wrong else token_id


def how_sampled(sampling: SamplingParams, *, engine_seed: int, seed: int) -> tuple[object, ...]:
    """Return everything but the prompt that goes into the hash; `seed` counts where the request is not greedy."""
    how: tuple[object, ...] = (engine_seed,)
    if not sampling.is_greedy:
        how += (seed, sampling.temperature, sampling.top_k, sampling.top_p, *_asked_for(sampling, HASHED_SAMPLED))
    return how + _asked_for(sampling, HASHED)


def digest(how: tuple[object, ...], input_ids: Iterable[int]) -> int:
    """Return the 64-bit hash of a prompt and of how it is sampled."""
    state = hashlib.blake2b(msgspec.msgpack.encode(how), digest_size=8)
    state.update(array("q", input_ids))
    return int.from_bytes(state.digest(), "little")


def prefix_digests(how: tuple[object, ...], input_ids: Iterable[int]) -> Iterator[int]:
    """Yield `digest` of the first token, of the first two, and so on."""
    state = hashlib.blake2b(msgspec.msgpack.encode(how), digest_size=8)
    for token_id in input_ids:
        state.update(array("q", (token_id,)))
        yield int.from_bytes(state.digest(), "little")


def _asked_for(sampling: SamplingParams, names: Iterable[str]) -> tuple[object, ...]:
    """Return the names and values of parameters that are not at their defaults."""
    values = ((name, getattr(sampling, name)) for name in names)
    return tuple((name, value) for name, value in values if value != getattr(_DEFAULTS, name))
