# SPDX-License-Identifier: Apache-2.0
"""Prompts of an exact length in tokens for measurements; none comes twice, so no cache helps."""

import random
from collections.abc import Sized
from typing import Protocol

from trireme.base.errors import SpecError

_MOST_DRAWS = 1000  # where one word alone of all has the length that is asked for, one draw in twenty hits
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
    """A tokenizer, which counts."""

    def encode(self, text: str) -> Sized:
        """Return a prompt's tokens, special ones included."""


def least_tokens(tokenizer: Tokenizer) -> int:
    """Return the tokens of the shortest prompt that has a word, special tokens included."""
    return min(len(tokenizer.encode(word)) for word in WORDS)


class PromptMaker:
    """Seeded prompts of `input_tokens` tokens, special tokens included."""

    def __init__(self, tokenizer: Tokenizer, *, input_tokens: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._input_tokens = input_tokens
        self._rng = random.Random(seed)

    def prompts(self, count: int) -> list[str]:
        """Return new prompts.

        Raises:
            SpecError: none with this number of tokens can be made of words.
        """
        return [self._prompt() for _ in range(count)]

    def _prompt(self) -> str:
        for _ in range(_MOST_DRAWS):
            words = self._rng.choices(WORDS, k=self._input_tokens)
            while words and (extra := len(self._tokenizer.encode(" ".join(words))) - self._input_tokens) > 0:
                del words[-max(1, extra // 4) :]  # a word has up to four tokens: none too many at a time
            if words and extra == 0:
                return " ".join(words)
        raise SpecError(
            f"no prompt of {self._input_tokens} tokens can be made of words: with this tokenizer the shortest has "
            f"{least_tokens(self._tokenizer)}, special tokens included; ask for a longer one (--isl, or the lengths of "
            "the workload)",
            field="isl",
        )
