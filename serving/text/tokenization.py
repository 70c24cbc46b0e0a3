# SPDX-License-Identifier: Apache-2.0
"""The token ids of prompts, by the `tokenizers` library alone; `serving.text.detokenization` makes text of ids."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.process.returned_memory import return_freed
from serving.text.text_limits import TextLimit
from serving.text.token_bytes import token_bytes
from serving.text.tokenizer_files import find_token_id, load_tokenizer
from trireme.base.errors import RequestError

_FIELD = "text_input"
# `Tokenizer.encode` holds the GIL: up to this, 10 ms. `encode_batch_fast` frees it, and runs one text on its caller's
# thread; `tests/unit/serving/text/test_long_texts.py` shows both.
LONG_TEXT_BYTES = 16_384
# Of a text that may have too many tokens the beginning is tokenized first, so many bytes for each token that it may
# have (most languages have 3 to 5), and then 4 times as much, until it is too much or all.
_FIRST_PART_BYTES = 8
_NEXT_PART = 4
# Words before the end of a part that may be others in the whole text. A pre-tokenizer goes from left to right and
# looks a character ahead; added tokens have a few words.
_UNCERTAIN_WORDS = 64


class PromptTokenizer:
    """The tokenizer of one release, shared by all requests and threads; it tokenizes long text without the GIL.

    The text of a special token in a prompt ("<|eos|>") becomes that token, as it does upstream: clients that apply a
    chat template themselves depend on it. A caller that puts a client's text into a template must take such text out
    first.

    Attributes:
        vocab_size: number of tokens, added tokens included; a model's vocabulary may be padded beyond it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        add_special_tokens: bool,
        end_id: int | None = None,
        pad_id: int | None = None,
        max_seq_len: int | None = None,
    ) -> None:
        """Set the tokenizer and its limits.

        Args:
            tokenizer: tokenizer of the release.
            add_special_tokens: whether prompts get the tokenizer's special tokens.
            end_id: id of the end token; None: not known.
            pad_id: id of the padding token; None: not known.
            max_seq_len: tokens that a sequence of the engine may have; None: text may be of any length.
        """
        self._tokenizer = tokenizer
        self._add_special_tokens = add_special_tokens
        self.end_id = end_id
        self.pad_id = pad_id
        # Once: the library walks through its whole vocabulary, 0.3 ms for 4,096 tokens and 7 for 32,000.
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.limit = None if max_seq_len is None else TextLimit(max_seq_len, token_bytes(tokenizer))

    @classmethod
    def from_spec(cls, spec: TokenizerSpec, *, max_seq_len: int | None = None) -> "PromptTokenizer":
        """Load the tokenizer of a deployment; `end_id` and `pad_id` stay None where its folder does not define them.

        Raises:
            SpecError: a file is missing, broken or contradicts another file.
        """
        tokenizer = load_tokenizer(spec.dir)
        return cls(
            tokenizer,
            add_special_tokens=spec.add_special_tokens,
            end_id=find_token_id(spec.dir, tokenizer, "eos_token"),
            pad_id=find_token_id(spec.dir, tokenizer, "pad_token"),
            max_seq_len=max_seq_len,
        )

    def encode(self, text: str, *, field: str = _FIELD, add_special_tokens: bool | None = None) -> NDArray[np.int32]:
        """Return the token ids of a text, ``[num_tokens] int32``.

        Args:
            text: prompt.
            field: input with the text, for errors.
            add_special_tokens: whether to add special tokens; None: the deployment's choice.

        Raises:
            RequestError: the text is empty, gives no tokens, holds half a surrogate pair, or is more than the engine
                takes, as far as that is known before the whole text is tokenized.
        """
        if not text:
            raise RequestError(f"{field} is empty; send at least one character", field=field)
        add = self._add_special_tokens if add_special_tokens is None else add_special_tokens
        ids = self._ids(text, field, add_special_tokens=add)
        if not ids:
            raise RequestError(f"{field} gives no tokens; send more than white space", field=field)
        return np.array(ids, dtype=np.int32)

    def encode_bytes(self, raw: bytes, *, field: str = _FIELD) -> NDArray[np.int32]:
        """Return the token ids of a text in UTF-8, the form of Triton's strings, ``[num_tokens] int32``.

        Raises:
            RequestError: `encode` refuses the text, or the bytes are not UTF-8.
        """
        self.check_bytes(len(raw), field)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise RequestError(
                f"{field} is not UTF-8 at byte {exc.start} ({exc.reason}); send UTF-8", field=field, byte=exc.start
            ) from exc
        return self.encode(text, field=field)

    def encode_piece(self, text: str, *, field: str = _FIELD) -> list[int]:
        """Return the ids of a part of a prompt without special tokens around them; empty for empty text.

        Raises:
            RequestError: the text holds half a surrogate pair, or is more than the engine takes.
        """
        return self._ids(text, field, add_special_tokens=False)

    def encode_words(self, words: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each word, without the GIL where the words are long; a word may have no ids."""
        if sum(map(len, words)) <= LONG_TEXT_BYTES // 4:
            return [np.array(self._tokenizer.encode(word, add_special_tokens=False).ids, np.int32) for word in words]
        encodings = self._tokenizer.encode_batch_fast(words, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def check_bytes(self, num_bytes: int, field: str) -> None:
        """Refuse text of `num_bytes` bytes where it surely has more tokens than the engine takes.

        Raises:
            RequestError: the text cannot fit.
        """
        if self.limit is not None:
            self.limit.check_bytes(num_bytes, field)

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

    def _ids(self, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
        num_bytes = _num_bytes(text, field)
        self.check_bytes(num_bytes, field)
        if num_bytes <= LONG_TEXT_BYTES:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        try:
            return self._long_ids(text, field, add_special_tokens=add_special_tokens)
        finally:
            return_freed()

    def _long_ids(self, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
        if self.limit is not None:
            self._check_parts(text, field, self.limit)
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        num_tokens = len(encoding)
        if self.limit is not None and num_tokens > self.limit.max_tokens:
            del encoding  # the refusal's traceback would keep all of it
            self.limit.refuse_tokens(num_tokens, field)
        return list(encoding.ids)

    def _check_parts(self, text: str, field: str, limit: TextLimit) -> None:
        """Refuse a text whose beginning has too many tokens; for it, a text that fits takes a third longer."""
        size = max(LONG_TEXT_BYTES, _FIRST_PART_BYTES * limit.max_seq_len)
        while size < len(text):
            num_tokens = self._num_certain(text[:size])
            if not num_tokens:
                return
            if num_tokens > limit.max_tokens:
                limit.refuse_tokens(num_tokens, field)
            size *= _NEXT_PART

    def _num_certain(self, part: str) -> int:
        """Return the fewest tokens that this beginning has in its whole text; 0: the text is not split into words."""
        [encoding] = self._tokenizer.encode_batch([part], add_special_tokens=False)  # the fast method reports no words
        last_word = encoding.token_to_word(len(encoding) - 1) if len(encoding) else None
        if last_word is None or last_word < _UNCERTAIN_WORDS:
            return 0
        tokens = encoding.word_to_tokens(last_word - _UNCERTAIN_WORDS)
        return 0 if tokens is None else int(tokens[1])


def _num_bytes(text: str, field: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as exc:
        raise RequestError(
            f"{field} has half a surrogate pair at character {exc.start}; send valid Unicode", field=field
        ) from exc
