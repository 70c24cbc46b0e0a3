# SPDX-License-Identifier: Apache-2.0
"""The bias on the logits: from words and weights, through the contract's dense tensor, to weights by token id."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from serving.requests.word_lists import words_of
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError

_WORDS, _WEIGHTS = "embedding_bias_words", "embedding_bias_weights"


def dense_bias(
    strings: Sequence[bytes], weights: Sequence[float], tokenizer: PromptTokenizer
) -> npt.NDArray[np.float32] | None:
    """Return the bias ``[1, vocab]``; None: there are no words.

    Each token of each word gets the word's weight; a token of several words gets the sum of their weights.

    Raises:
        RequestError: there are not as many weights as words, a weight is not finite, text is not UTF-8 or too long, or
            there are more words than the tokenizer has tokens.
    """
    if len(weights) != len(strings) and (weights or any(strings)):
        raise RequestError(
            f"{_WORDS} has {len(strings)} words and {_WEIGHTS} has {len(weights)}; send one weight for each word",
            field=_WEIGHTS,
            value=len(weights),
        )
    size = tokenizer.vocab_size
    if len(strings) > size:
        raise RequestError(
            f"{_WORDS} has {len(strings)} words; send at most {size}, the tokens of the model",
            field=_WORDS,
            value=len(strings),
            max=size,
        )
    if not any(strings):
        return None
    _check_finite(weights, _WEIGHTS)
    bias = np.zeros((1, size), dtype=np.float32)
    ids = tokenizer.encode_words(words_of(strings, _WORDS))
    np.add.at(bias[0], np.concatenate(ids), np.repeat(np.array(weights, np.float32), [len(word) for word in ids]))
    return bias


def sparse_bias(dense: npt.NDArray[np.generic], *, vocab_size: int) -> dict[int, float]:
    """Return the weights of ``[n]`` that are not zero, by token id.

    Raises:
        RequestError: there are more weights than the model has tokens, or a weight is not finite.
    """
    if len(dense) > vocab_size:
        raise RequestError(
            f"embedding_bias has {len(dense)} weights; the model has {vocab_size} tokens", field="embedding_bias"
        )
    _check_finite(dense, "embedding_bias")
    return {int(token_id): float(dense[token_id]) for token_id in np.flatnonzero(dense)}


def _check_finite(weights: npt.ArrayLike, field: str) -> None:
    if not np.isfinite(weights).all():
        raise RequestError(f"{field} must be finite numbers", field=field)
