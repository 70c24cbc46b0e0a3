# SPDX-License-Identifier: Apache-2.0
"""The prompts of a benchmark run: of an exact length in tokens, and never the same twice, so that no cache helps."""

import random

import msgspec

from serving.tokenization import PromptTokenizer

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


class Ask(msgspec.Struct, frozen=True):
    """What every side of a benchmark is asked, at one time."""

    prompts: list[str]
    output_tokens: int


class Run(msgspec.Struct, frozen=True):
    """What one side did with one `Ask`."""

    tokens_per_s: float  # all output tokens over the time from the first request to the last token
    ttft_ms: float  # median over the requests


class PromptMaker:
    """Seeded prompts of `input_tokens` tokens, special tokens included."""

    def __init__(self, tokenizer: PromptTokenizer, *, input_tokens: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._input_tokens = input_tokens
        self._rng = random.Random(seed)

    def prompts(self, count: int) -> list[str]:
        """New prompts."""
        return [self._prompt() for _ in range(count)]

    def _prompt(self) -> str:
        while True:
            text = " ".join(self._rng.choices(WORDS, k=self._input_tokens))
            while (extra := len(self._tokenizer.encode(text)) - self._input_tokens) > 0:
                # A word has one to three tokens: taking more at a time would overshoot in a long prompt.
                text = " ".join(text.split(" ")[: -max(1, extra // 3)])
            if extra == 0:
                return text
