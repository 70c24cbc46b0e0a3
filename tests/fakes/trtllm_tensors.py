# SPDX-License-Identifier: Apache-2.0
"""The tokens, log probabilities and logits that the fake makes up: a hash of all that would change a model's output."""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

_NUM_SPECIAL_IDS = 16  # tokenizers keep special tokens there: no output without a text
_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, 2**64 - 1  # Knuth's MMIX generator


class Logprob:
    """Upstream's log probability of one token."""

    def __init__(self, logprob: float, rank: int) -> None:
        self.logprob, self.rank = logprob, rank


def tokens_after(
    prompt: list[int], params: Any, vocab_size: int, *, unseeded: int = 0, adapter: bytes = b""
) -> Iterator[int]:
    """Yield the output of a request: always the same after the same prompt, sampled in the same way.

    Args:
        prompt: token ids.
        params: the sampling parameters.
        vocab_size: of the model.
        unseeded: the seed of a request that names none. It is one for every request, but where there is one sampler
            only: a generator that goes on.
        adapter: the weights that are added to the model's.
    """
    how: tuple[object, ...] = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    is_greedy = params.top_k in (None, 1) and params.top_p in (None, 0.0)
    if params.bad_token_ids or params.embedding_bias is not None:
        how += (params.bad_token_ids, getattr(params.embedding_bias, "data", None))
    if not is_greedy:
        how += (params.seed or unseeded, params.temperature, params.top_k, params.top_p)
    if adapter:
        how += (adapter,)
    state = int.from_bytes(hashlib.blake2b(repr((how, prompt)).encode(), digest_size=8).digest(), "little")
    while True:
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
        yield _NUM_SPECIAL_IDS + (state >> 33) % (vocab_size - _NUM_SPECIAL_IDS)


def log_probs_of(token_ids: list[int]) -> list[dict[int, Logprob]]:
    """Return what is told with `logprobs=1`: the likeliest token, and the one that was chosen."""
    return [{token: Logprob(-token / 1000, 2), token + 1: Logprob(-0.001, 1)} for token in token_ids]


def logits_of(token_ids: list[int], torch: Any, *, vocab_size: int, padded_size: int, dtype: str, device: str) -> Any:
    """Return ``[tokens, padded vocab]``: one where the token is, nonsense in the padding."""
    rows = [[float(i == token) for i in range(vocab_size)] for token in token_ids]
    padding = [math.inf] * (padded_size - vocab_size)
    return torch.Tensor([row + padding for row in rows], dtype, device)
