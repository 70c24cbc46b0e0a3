# SPDX-License-Identifier: Apache-2.0
"""The text that each token adds, taken once from the `tokenizers` library's own decoder, when the tokenizer is loaded.

A decoder whose tokens do not add up to the text one after the other is refused by name: it cannot be streamed exactly.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders

from trireme.base.errors import SpecError

# A str is text, a bytes object is one byte of a character.
Piece = str | bytes

# Rust's from_str_radix, by which the library reads the number, takes a sign, too.
_BYTE_TOKEN = re.compile(r"<0x(\+[0-9A-Fa-f]|[0-9A-Fa-f]{2})>")
# One step after the other, as in "Replace ByteFallback Fuse Strip " (Llama 2): steps that see one token at a time and
# whether it is the first; bytes to characters; one step that sees the beginning of the whole text.
_STREAMABLE = re.compile(r"((?:(?:Replace|Metaspace|WordPiece|Strip) )*)(ByteFallback )?((?:Fuse )+(Strip )?)?")
_FIRST = "a"  # any text will do: it is in front of a token to see what the token adds behind another one


class BytePieces(dict[int, bytes]):
    """The bytes of each token of a byte-level tokenizer; ids that add nothing (unknown, skipped) are absent."""

    def __missing__(self, token_id: int) -> bytes:
        return b""


@dataclass(frozen=True, kw_only=True)
class TextPieces:
    """The pieces of every other tokenizer.

    Attributes:
        later: text that each token adds behind another token; ids that add nothing are absent.
        first: the tokens themselves, for `first_piece`.
        strip_character: character that is removed at the beginning of the text.
        max_stripped: number of characters that are removed at most.
    """

    later: dict[int, Piece]
    tokens: dict[int, str]
    decoder: decoders.Decoder
    has_byte_tokens: bool
    strip_character: str
    max_stripped: int

    def first_piece(self, token_id: int) -> Piece:
        """Return the text that a token adds at the beginning of a text."""
        return _as_piece(self.decoder.decode([self.tokens[token_id]]), self.has_byte_tokens)


def load_pieces(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> BytePieces | TextPieces:
    """Return the table of one tokenizer's tokens.

    Raises:
        SpecError: the tokenizer's decoder cannot be streamed exactly.
    """
    steps = _decoder_steps(tokenizer)
    tokens = dict(_tokens_in_text(tokenizer, skip_special_tokens))
    if [step["type"] for step in steps if step["type"] != "Fuse"] == ["ByteLevel"] and steps[0]["type"] == "ByteLevel":
        return BytePieces((token_id, _bytes_of(token)) for token_id, token in tokens.items())
    return _text_pieces(steps, tokens)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, object]]:
    """Return the steps of the decoder in `tokenizer.json`, with nested sequences flattened."""
    if tokenizer.decoder is None:
        return []

    def flatten(step: dict[str, object]) -> list[dict[str, object]]:
        inner = step.get("decoders")
        return [leaf for part in inner for leaf in flatten(part)] if isinstance(inner, list) else [step]

    return flatten(json.loads(tokenizer.decoder.__getstate__()))


def _tokens_in_text(tokenizer: Tokenizer, skip_special_tokens: bool) -> Iterator[tuple[int, str]]:
    added = tokenizer.get_added_tokens_decoder()
    # The library skips by content, not by id.
    skipped = {token.content for token in added.values() if token.special} if skip_special_tokens else set()
    last_id = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *added])
    for token_id in range(last_id + 1):
        token = tokenizer.id_to_token(token_id)
        if token is not None and token not in skipped:
            yield token_id, token


def _text_pieces(steps: list[dict[str, object]], tokens: dict[int, str]) -> TextPieces:
    names = "".join(f"{step['type']} " for step in steps)
    match = _STREAMABLE.fullmatch(names)
    strip = steps[-1] if match and match[4] else {"content": " ", "start": 0, "stop": 0}
    if not names or match is None or strip["stop"]:
        raise SpecError(
            f"the decoder of tokenizer.json is {names.strip() or 'missing'}, which cannot be streamed exactly; take "
            "one whose decoder is ByteLevel, Metaspace, WordPiece, or Replace ByteFallback Fuse Strip (start only)",
            field="tokenizer.dir",
            decoder=names.strip() or "none",
        )
    decoder = decoders.Fuse()
    per_token = steps[: len(match[1].split())]
    decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": per_token}).encode())
    begin = len(decoder.decode([_FIRST]))
    has_byte_tokens = match[2] is not None
    return TextPieces(
        later={
            token_id: _as_piece(decoder.decode([_FIRST, token])[begin:], has_byte_tokens)
            for token_id, token in tokens.items()
        },
        tokens=tokens,
        decoder=decoder,
        has_byte_tokens=has_byte_tokens,
        strip_character=str(strip["content"]),
        max_stripped=int(str(strip["start"])),
    )


def _as_piece(text: str, has_byte_tokens: bool) -> Piece:
    match = _BYTE_TOKEN.fullmatch(text) if has_byte_tokens else None
    return bytes([int(match[1], 16)]) if match else text


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's alphabet: printable Latin-1 stands for itself, every other byte for a character from U+0100 on.

    Source: tokenizers, pre_tokenizers/byte_level.rs, bytes_char.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_CHARACTER.__getitem__, token))
    except KeyError:  # an added token with a space or a character outside the alphabet stands for its own text
        return token.encode("utf-8")
