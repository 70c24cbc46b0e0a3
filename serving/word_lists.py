# SPDX-License-Identifier: Apache-2.0
"""Lists of words of token ids, as the contract sends them: flat ids in one row, where each word ends in the other.

``[2, n] int32``: the ids of all words, padded with 0; the cumulative ends of the words, padded with -1.
"""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ensemble_configs.errors import RequestError
from serving.tokenization import PromptTokenizer

MAX_BAD_WORDS = 4096
Ids = npt.NDArray[np.int32]


def texts_of(strings: Iterable[bytes], field: str) -> list[str]:
    """A client's strings as text, in their order; an empty one asks for nothing, and is still here.

    Raises:
        RequestError: one is not UTF-8.
    """
    texts = []
    for index, string in enumerate(strings):
        try:
            texts.append(string.decode("utf-8"))
        except UnicodeDecodeError as exc:
            raise RequestError(f"{field}[{index}] is not UTF-8; send UTF-8", field=field, index=index) from exc
    return texts


def ids_of(text: str, tokenizer: PromptTokenizer) -> Ids:
    """The ids of a word as it stands, no special tokens around it; none for white space in some vocabularies."""
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except RequestError:
        return np.empty(0, dtype=np.int32)


def bad_words_of(strings: Iterable[bytes], tokenizer: PromptTokenizer) -> list[Ids]:
    """The token sequences that must not be generated.

    Raises:
        RequestError: text that is not UTF-8, a word that has no ids and so cannot be kept out, or too many words.
    """
    texts = [text for text in texts_of(strings, "bad_words") if text]
    if len(texts) > MAX_BAD_WORDS:
        raise RequestError(
            f"bad_words has {len(texts)} words; send at most {MAX_BAD_WORDS}",
            field="bad_words",
            value=len(texts),
            max=MAX_BAD_WORDS,
        )
    words = [ids_of(text, tokenizer) for text in texts]
    for text, word in zip(texts, words, strict=True):
        if not word.size:
            raise RequestError(
                f"bad_words has {text!r}, for which the tokenizer has no token; leave it out", field="bad_words"
            )
    return words


def pack_words(words: Sequence[Ids]) -> Ids:
    """Words as ``[1, 2, n]``; n is the number of ids, for no word is empty."""
    ids = np.concatenate(words)
    flat = np.zeros((1, 2, len(ids)), dtype=np.int32)
    flat[0, 0] = ids
    flat[0, 1] = -1
    flat[0, 1, : len(words)] = np.cumsum([len(word) for word in words])
    return flat


def unpack_words(rows: Sequence[Sequence[int]], field: str, *, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The words of ``[2, n]``.

    Raises:
        RequestError: ends that do not ascend, or lie beyond the ids; an id outside the vocabulary.
    """
    ids, ends = rows
    bounds = [0, *itertools.takewhile(lambda end: end >= 0, ends)]
    words = tuple(tuple(ids[start:end]) for start, end in itertools.pairwise(bounds))
    if bounds[-1] > len(ids) or not all(words):
        raise RequestError(
            f"the second row of {field} must hold the ascending ends of its words in the first, then -1; got {ends}",
            field=field,
        )
    for token_id in itertools.chain.from_iterable(words):
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{field} must be 0 to {vocab_size - 1}, the model's vocabulary; got {token_id}",
                field=field,
                value=token_id,
            )
    return words
