# SPDX-License-Identifier: Apache-2.0
"""Lists of words of token ids in the contract's form: flat ids in one row, the ends of the words in the other row.

The form is ``[2, n] int32``: the ids of all words, padded with 0; the cumulative ends of the words, padded with -1.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from serving.requests.number_ranges import out_of_range
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError

MAX_BAD_WORDS = 4096
MAX_WORD_CHARS = 1000
MAX_LISTED_IDS = 65_536
_MAX_CHARACTER_BYTES = 4
_MAX_SHOWN = 32  # of the values that are wrong, in a message
Ids = npt.NDArray[np.int32]


def texts_of(strings: Sequence[bytes], field: str) -> list[str]:
    """Return a client's strings as text in their order, empty strings included.

    Raises:
        RequestError: a string is not UTF-8.
    """
    texts = []
    for index, string in enumerate(strings):
        try:
            texts.append(string.decode("utf-8"))
        except UnicodeDecodeError as exc:
            raise RequestError(f"{field}[{index}] is not UTF-8; send UTF-8", field=field, index=index) from exc
    return texts


def words_of(strings: Sequence[bytes], field: str) -> list[str]:
    """Return a client's words as text, as `texts_of` does; a banned or biased word may have 1,000 characters.

    Raises:
        RequestError: a word is not UTF-8, or too long.
    """
    for index, string in enumerate(strings):
        if len(string) > MAX_WORD_CHARS * _MAX_CHARACTER_BYTES:
            raise _too_long(field, index, f"{len(string)} bytes", len(string))
    words = texts_of(strings, field)
    for index, word in enumerate(words):
        if len(word) > MAX_WORD_CHARS:
            raise _too_long(field, index, f"{len(word)} characters", len(word))
    return words


def _too_long(field: str, index: int, size: str, value: int) -> RequestError:
    message = f"{field}[{index}] has {size}; send at most {MAX_WORD_CHARS} characters"
    return RequestError(message, field=field, value=value, max=MAX_WORD_CHARS)


def bad_words_of(strings: Sequence[bytes], tokenizer: PromptTokenizer) -> list[Ids]:
    """Return the token sequences that must not be generated.

    Raises:
        RequestError: a word is not UTF-8 or too long, has no ids and so cannot be banned, or there are too many words.
    """
    num_words = sum(1 for string in strings if string)
    if num_words > MAX_BAD_WORDS:
        raise RequestError(
            f"bad_words has {num_words} words; send at most {MAX_BAD_WORDS}",
            field="bad_words",
            value=num_words,
            max=MAX_BAD_WORDS,
        )
    texts = [text for text in words_of(strings, "bad_words") if text]
    words = tokenizer.encode_words(texts)
    for text, word in zip(texts, words, strict=True):
        if not word.size:
            raise RequestError(
                f"bad_words has {text!r}, for which the tokenizer has no token; leave it out", field="bad_words"
            )
    return words


def pack_words(words: Sequence[Ids]) -> Ids:
    """Return words as ``[1, 2, n] int32``; n is the number of ids, because no word is empty."""
    ids = np.concatenate(words)
    flat = np.zeros((1, 2, len(ids)), dtype=np.int32)
    flat[0, 0] = ids
    flat[0, 1] = -1
    flat[0, 1, : len(words)] = np.cumsum([len(word) for word in words])
    return flat


def unpack_words(words: npt.NDArray[np.generic], field: str, *, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Return the words of ``[2, n]``.

    Raises:
        RequestError: there are too many words, ends do not ascend or lie beyond the ids, or an id is outside the
            vocabulary.
    """
    ids, ends = words.tolist()
    bounds = [0, *itertools.takewhile(lambda end: end >= 0, ends)]
    num_words = len(bounds) - 1
    if num_words > MAX_BAD_WORDS:
        message = f"{field} has {num_words} words; send at most {MAX_BAD_WORDS}"
        raise RequestError(message, field=field, value=num_words, max=MAX_BAD_WORDS)
    found = tuple(tuple(ids[start:end]) for start, end in itertools.pairwise(bounds))
    if bounds[-1] > len(ids) or not all(found):
        raise RequestError(
            f"the second row of {field} must hold the ascending ends of its words in the first, then -1; got "
            f"{_shortened(ends)}",
            field=field,
        )
    for token_id in itertools.chain.from_iterable(found):
        if not 0 <= token_id < vocab_size:
            raise out_of_range(field, token_id, f"0 to {vocab_size - 1}, the model's vocabulary")
    return found


def _shortened(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:_MAX_SHOWN]))
    return f"[{shown}]" if len(values) <= _MAX_SHOWN else f"[{shown}, ...]"
