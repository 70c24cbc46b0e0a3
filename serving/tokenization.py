# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids, by the `tokenizers` library alone; the way back is `serving.detokenization`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ensemble_configs.errors import RequestError
from ensemble_configs.release_spec import TokenizerSpec
from serving.tokenizer_files import find_token_id, load_tokenizer

_FIELD = "text_input"


class PromptTokenizer:
    """Shared by all requests and threads; encoding runs without the GIL.

    The text of a special token in a prompt ("<|eos|>") becomes that token, as it does upstream: clients that apply a
    chat template themselves depend on it. Whoever puts a stranger's text into a template must take such text out first.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, add_special_tokens: bool, end_id: int | None = None, pad_id: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._add_special_tokens = add_special_tokens
        self.end_id = end_id
        self.pad_id = pad_id

    @classmethod
    def from_spec(cls, spec: TokenizerSpec) -> "PromptTokenizer":
        """Load the tokenizer of a deployment; `end_id` and `pad_id` stay None where its folder does not define them.

        Raises:
            SpecError: a file is missing, broken or contradicts another one.
        """
        tokenizer = load_tokenizer(spec.dir)
        return cls(
            tokenizer,
            add_special_tokens=spec.add_special_tokens,
            end_id=find_token_id(spec.dir, tokenizer, "eos_token"),
            pad_id=find_token_id(spec.dir, tokenizer, "pad_token"),
        )

    @property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows, added ones included; a model's vocabulary may be padded beyond it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool | None = None) -> NDArray[np.int32]:
        """``[num_tokens] int32``; `add_special_tokens` overrides the deployment's choice.

        Raises:
            RequestError: the text is empty, gives no tokens, or holds half a surrogate pair.
        """
        _check(text)
        add = self._add_special_tokens if add_special_tokens is None else add_special_tokens
        return _to_array(self._tokenizer.encode(text, add_special_tokens=add).ids)

    def encode_bytes(self, raw: bytes) -> NDArray[np.int32]:
        """The same from UTF-8, as Triton hands a string over.

        Raises:
            RequestError: as `encode`, or the bytes are not UTF-8.
        """
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise RequestError(
                f"{_FIELD} is not UTF-8 at byte {exc.start} ({exc.reason}); send UTF-8", field=_FIELD, byte=exc.start
            ) from exc
        return self.encode(text)

    def encode_piece(self, text: str) -> list[int]:
        """Return the ids of a part of a prompt, nothing put around them; none for empty text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def special_texts(self) -> dict[str, list[int]]:
        """Return the text of each special token and the ids of that text as mere text, spelled out.

        Call before other threads use the tokenizer: the library has one switch for all of them.
        """
        texts = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._tokenizer.encode_special_tokens = True
        try:
            return {text: self.encode_piece(text) for text in texts if text}
        finally:
            self._tokenizer.encode_special_tokens = False

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Several texts at once, on all cores.

        Raises:
            RequestError: as `encode`, for the first text that is wrong.
        """
        for text in texts:
            _check(text)
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=self._add_special_tokens)
        return [_to_array(encoding.ids) for encoding in encodings]


def _check(text: str) -> None:
    if not text:
        raise RequestError(f"{_FIELD} is empty; send at least one character", field=_FIELD)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise RequestError(
            f"{_FIELD} has half a surrogate pair at character {exc.start}; send valid Unicode", field=_FIELD
        ) from exc


def _to_array(ids: list[int]) -> NDArray[np.int32]:
    if not ids:
        raise RequestError(f"{_FIELD} gives no tokens; send more than white space", field=_FIELD)
    return np.array(ids, dtype=np.int32)
