# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding without a model: drafts that are right now and then, and what the target makes of them."""

from collections.abc import Iterator

_PRIME = 2_654_435_761  # Knuth's multiplicative hash


def with_errors(tokens: Iterator[int], error_rate: float, vocab: range) -> Iterator[int]:
    """The tokens of a smaller model: as those given, but for about `error_rate` of them, always the same ones."""
    for index, token_id in enumerate(tokens):
        draw = (token_id + index) * _PRIME % 2**32 / 2**32
        is_wrong = draw < error_rate
        yield vocab[(token_id + 1 - vocab.start) % len(vocab)] if is_wrong else token_id


def verified(tokens: Iterator[int], draft_ids: tuple[int, ...]) -> Iterator[int]:
    """The tokens of one step: the drafts that `tokens` agree with, then the next of these; none where they end."""
    for draft_id in (*draft_ids, None):
        token_id = next(tokens, None)
        if token_id is None:
            return
        yield token_id
        if token_id != draft_id:
            return
