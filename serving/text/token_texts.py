# SPDX-License-Identifier: Apache-2.0
"""The bytes that single tokens add to a text, for what tells of tokens one by one."""

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.text.token_pieces import load_pieces
from serving.text.tokenizer_files import load_tokenizer


class TokenTexts:
    """The texts of a tokenizer's tokens, each behind another one.

    Raises:
        SpecError: a file is missing or broken, or the tokenizer's decoder cannot be streamed exactly.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        pieces = load_pieces(load_tokenizer(spec.dir), skip_special_tokens=spec.skip_special_tokens)
        self._pieces = pieces if isinstance(pieces, dict) else pieces.later

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token, maybe a part of a character; none: a token that adds no text."""
        piece = self._pieces.get(token_id, b"")
        return piece.encode() if isinstance(piece, str) else piece
