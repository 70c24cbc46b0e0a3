# SPDX-License-Identifier: Apache-2.0
"""Prompts of an exact length in tokens for measurements; none comes twice, so no cache helps."""

import random
from collections.abc import Sized
from typing import Protocol

WORDS = (
    "the",
    "fox",
    "ran",
    "over",
    "a",
    "hill",
    "and",
    "saw",
    "one",
    "small",
    "red",
    "house",
    "near",
    "an",
    "old",
    "tree",
    "while",
    "it",
    "was",
    "still",
    "dark",
)


class Tokenizer(Protocol):
    """What counts."""

    def encode(self, text: str) -> Sized:
        """A prompt's tokens, special ones included."""


class PromptMaker:
    """Seeded prompts of `input_tokens` tokens, special tokens included."""

    def __init__(self, tokenizer: Tokenizer, *, input_tokens: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._input_tokens = input_tokens
        self._rng = random.Random(seed)

    def prompts(self, count: int) -> list[str]:
        """New prompts."""
        return [self._prompt() for _ in range(count)]

    def _prompt(self) -> str:
        while True:
            words = self._rng.choices(WORDS, k=self._input_tokens)
            while (extra := len(self._tokenizer.encode(" ".join(words))) - self._input_tokens) > 0:
                del words[-max(1, extra // 4) :]  # a word has up to four tokens: none too many at a time
            if extra == 0:
                return " ".join(words)
