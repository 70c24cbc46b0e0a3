# SPDX-License-Identifier: Apache-2.0
"""Texts of a wanted length in tokens: exact with the model's tokenizer at hand, else by what the server counts."""

import random
from pathlib import Path
from typing import Protocol

from clients.access import Access
from clients.exact_prompts import WORDS, PromptMaker, Tokenizer, least_tokens
from clients.infer_messages import GenerateRequest
from trireme.base.errors import SpecError

_PROBE_WORDS = 64


class Writer(Protocol):
    """A writer of texts; no text comes twice."""

    how: str  # lengths come out, for the report
    least_tokens: int  # of a text that has a word

    def write(self, num_tokens: int) -> str:
        """Return a text of a number of tokens.

        Raises:
            SpecError: so short a text would have no word.
        """


class ExactWriter:
    """A writer by the model's own `tokenizer.json`."""

    how = "exact, by the model's tokenizer"

    def __init__(self, folder: Path, *, seed: int) -> None:
        """Read a tokenizer.

        Args:
            folder: holds `tokenizer.json`.

        Raises:
            SpecError: the file is missing, or is no tokenizer.
        """
        path = folder / "tokenizer.json" if folder.is_dir() else folder
        self._tokenizer = _read(path)
        self.least_tokens = least_tokens(self._tokenizer)
        self._seed = seed
        self._makers: dict[int, PromptMaker] = {}

    def write(self, num_tokens: int) -> str:
        """Return a text of exactly this number of tokens, special tokens included."""
        if num_tokens not in self._makers:
            maker = PromptMaker(self._tokenizer, input_tokens=num_tokens, seed=hash((self._seed, num_tokens)))
            self._makers[num_tokens] = maker
        [prompt] = self._makers[num_tokens].prompts(1)
        return prompt


class ProportionalWriter:
    """A writer by the tokens of a word, which the server counted; lengths are a few in a hundred off."""

    how = "about, by the tokens of a word that the server counted"
    least_tokens = 1  # special tokens are in the tokens of a word

    def __init__(self, tokens_per_word: float, *, seed: int) -> None:
        self.tokens_per_word = tokens_per_word
        self._rng = random.Random(seed)

    @classmethod
    def ask(cls, url: str, model: str, *, access: Access, seed: int) -> "ProportionalWriter":
        """Return a writer, after the server has counted the tokens of some words.

        Raises:
            ServingError: it does not answer, or does not say how many tokens it counted.
        """
        from clients.streaming import TritonClient  # noqa: PLC0415  gRPC and numpy, which OpenAI's API needs not

        words = random.Random(0).choices(WORDS, k=_PROBE_WORDS)
        probe = GenerateRequest(text_input=" ".join(words), max_tokens=1, stream=True, return_num_input_tokens=True)
        with TritonClient(url, access=access) as client:
            chunks = list(client.generate(probe, model=model, timeout_s=60.0))
        counted = next((chunk.num_input_tokens for chunk in chunks if chunk.num_input_tokens), None)
        if counted is None:
            raise SpecError(
                f"model {model!r} does not say how many tokens a prompt has (num_input_tokens); give --tokenizer DIR",
                field="tokenizer",
            )
        return cls(counted / len(words), seed=seed)

    def write(self, num_tokens: int) -> str:
        """Return a text of about this number of tokens."""
        return " ".join(self._rng.choices(WORDS, k=max(1, round(num_tokens / self.tokens_per_word))))


def _read(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Read  # noqa: PLC0415  only where exact lengths are asked for

    if not path.is_file():
        raise SpecError(
            f"{path} is not there; --tokenizer names the folder that holds the model's tokenizer.json",
            field="tokenizer",
        )
    try:
        found: Tokenizer = Read.from_file(str(path))
    except Exception as exc:  # the library raises nothing narrower
        raise SpecError(f"{path} is not a tokenizer.json: {exc}", field="tokenizer") from exc
    return found
