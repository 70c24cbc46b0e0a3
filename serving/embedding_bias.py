# SPDX-License-Identifier: Apache-2.0
"""A bias on the logits: from words and weights, through the contract's dense tensor, to weights by token id."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ensemble_configs.errors import RequestError
from serving.tokenization import PromptTokenizer
from serving.word_lists import ids_of, texts_of

_WORDS, _WEIGHTS = "embedding_bias_words", "embedding_bias_weights"


def dense_bias(
    strings: Sequence[bytes], weights: Sequence[float], tokenizer: PromptTokenizer
) -> npt.NDArray[np.float32] | None:
    """``[1, vocab]``: each token of each word has the word's weight, those of several words the sum; None: no words.

    Raises:
        RequestError: not as many weights as words, a weight that is not finite, or text that is not UTF-8.
    """
    texts = texts_of(strings, _WORDS)
    if len(weights) != len(texts) and (weights or any(texts)):
        raise RequestError(
            f"{_WORDS} has {len(texts)} words and {_WEIGHTS} has {len(weights)}; send one weight for each word",
            field=_WEIGHTS,
            value=len(weights),
        )
    if not any(texts):
        return None
    _check_finite(weights, _WEIGHTS)
    bias = np.zeros((1, tokenizer.vocab_size), dtype=np.float32)
    for text, weight in zip(texts, weights, strict=True):
        if text:
            np.add.at(bias[0], ids_of(text, tokenizer), weight)
    return bias


def sparse_bias(dense: npt.NDArray[np.generic], *, vocab_size: int) -> dict[int, float]:
    """The weights of ``[n]`` that are not zero, by token id.

    Raises:
        RequestError: more weights than the model has tokens, or one that is not finite.
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
