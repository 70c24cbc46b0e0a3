# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of models as they are read: a second's work for a large one, so by whoever is the first to ask."""

import functools
import logging

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.text.detokenization import TextDecoder
from serving.text.token_texts import TokenTexts
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.gateway")
_MAX_TOKENIZERS = 16


@functools.lru_cache(_MAX_TOKENIZERS)
def token_texts(spec: TokenizerSpec) -> TokenTexts:
    """Return the texts of a tokenizer's tokens.

    Raises:
        SpecError: they cannot be read.
    """
    return TokenTexts(spec)


@functools.lru_cache(_MAX_TOKENIZERS)
def text_decoder(spec: TokenizerSpec) -> TextDecoder | None:
    """Return the decoder of a tokenizer; None: it cannot be read here.

    An answer is right without it, and does not tell which of several stop strings ended it.
    """
    try:
        return TextDecoder.from_spec(spec)
    except ServingError as exc:
        _log.warning("which stop string ends an answer is not told: %s", exc.message)
        return None
