# SPDX-License-Identifier: Apache-2.0
"""The limit of a prompt's text: text that surely exceeds the engine's limit is refused before it is tokenized."""

from dataclasses import dataclass
from typing import NoReturn

from serving.text.token_bytes import TokenBytes
from trireme.base.errors import RequestError


@dataclass(frozen=True)
class TextLimit:
    """The limit of one release: `max_seq_len` tokens of prompt and output together, with the most bytes of a token."""

    max_seq_len: int
    token_bytes: TokenBytes

    @property
    def max_tokens(self) -> int:
        """Return the most tokens of a prompt: at least one token is generated."""
        return self.max_seq_len - 1

    @property
    def max_bytes(self) -> int:
        """Return the most bytes of a prompt: text of more bytes has more tokens than `max_tokens`."""
        return self.max_tokens * self.token_bytes.most

    def check_bytes(self, num_bytes: int, field: str) -> None:
        """Refuse text of too many bytes.

        Args:
            num_bytes: bytes of the text in UTF-8.
            field: input with the text, for the error.

        Raises:
            RequestError: text of this size cannot fit.
        """
        if num_bytes <= self.max_bytes:
            return
        most, is_derived = self.token_bytes
        why = f"a token of this model stands for {most} bytes at most"
        if not is_derived:
            why = f"a token of this model is taken to stand for {most} bytes at most, for its tokenizer sets no bound"
        raise RequestError(
            f"{field} has {num_bytes} bytes; send at most {self.max_bytes}: prompt and output together may have "
            f"{self.max_seq_len} tokens, and {why}",
            field=field,
            value=num_bytes,
            max=self.max_bytes,
        )

    def refuse_tokens(self, num_tokens: int, field: str) -> NoReturn:
        """Refuse text that has `num_tokens` tokens, or more.

        Raises:
            RequestError: always.
        """
        raise RequestError(
            f"{field} has {num_tokens} tokens or more, but prompt and output together may have {self.max_seq_len}; "
            "shorten it",
            field=field,
            value=num_tokens,
            max=self.max_tokens,
        )
