# SPDX-License-Identifier: Apache-2.0
"""The most bytes of UTF-8 that one token can stand for, read from a tokenizer's own description once.

Normalizers shrink text, unknown tokens swallow runs of it, and some tokenizers leave white space out. Where a step of
a tokenizer sets no bound, none is derived, and a large one is assumed.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

ASSUMED_BYTES = 256
_CHARACTER = 4  # a character outside the vocabulary is a token of its own
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_BYTE_LETTERS = frozenset(ByteLevel.alphabet())

# Factors by which text may get shorter in bytes. Longest of all: the Kelvin sign is `k` (3 to 1), three jamo of 3 bytes
# are one syllable of 3, and a letter of mathematics is plain (4 to 1), with its accents, too.
_SHRINKING = {"NFC": 3, "NFKC": 4, "NFD": 3, "NFKD": 4, "Lowercase": 3, "Prepend": 1, "ByteLevel": 1}
_KEEPING_SPLITS = frozenset({"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"})


class TokenBytes(NamedTuple):
    """The most bytes of text that one token can stand for."""

    most: int
    is_derived: bool  # no text whatever has more; else it is assumed


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """Return the bound of a tokenizer; at least `ASSUMED_BYTES` where its description sets none."""
    data = json.loads(tokenizer.to_str())
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    normalizers = list(_steps(data["normalizer"], "normalizers"))
    splits = list(_steps(data["pre_tokenizer"], "pretokenizers"))
    is_byte_level = any(step["type"] == "ByteLevel" for step in normalizers + splits)
    added = [token["content"] for token in data["added_tokens"]]
    longest = max(
        _CHARACTER, _longest(vocabulary, is_byte_level=is_byte_level), *(len(text.encode()) for text in added)
    )
    shrinking = [_shrinking(step) for step in normalizers]
    # rstrip and lstrip: such a token takes the white space beside it.
    is_keeping = all(map(_is_keeping, splits)) and not any(t["lstrip"] or t["rstrip"] for t in data["added_tokens"])
    if not is_keeping or None in shrinking or not _is_unknown_short(data["model"], vocabulary, is_byte_level):
        return TokenBytes(max(ASSUMED_BYTES, longest), is_derived=False)
    for factor in shrinking:
        longest *= factor or 1
    return TokenBytes(longest, is_derived=True)


def _steps(step: dict[str, Any] | None, parts: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, with nested sequences flattened."""
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for part in step[parts]:
        yield from _steps(part, parts)


def _longest(vocabulary: dict[str, int], *, is_byte_level: bool) -> int:
    """Return the bytes of the model's longest own token; a byte-level token has a letter for each byte."""
    sizes = (
        len(token) if is_byte_level and _BYTE_LETTERS.issuperset(token) else len(token.encode())
        for token in vocabulary
        if not _BYTE_TOKEN.fullmatch(token)  # a single byte
    )
    return max(sizes, default=1)


def _shrinking(normalizer: dict[str, Any]) -> int | None:
    """Return the factor by which a normalizer may shorten text; None: it may remove any amount of text."""
    if normalizer["type"] != "Replace":
        return _SHRINKING.get(normalizer["type"])
    old, new = normalizer["pattern"].get("String"), normalizer["content"]
    if not old or not new:  # an expression, or a deletion
        return None
    return max(1, -(-len(old.encode()) // len(new.encode())))


def _is_keeping(split: dict[str, Any]) -> bool:
    """Return whether a pre-tokenizer keeps all of the text that it splits."""
    if split["type"] in ("Split", "Punctuation"):
        return str(split["behavior"]).lower() != "removed"
    return split["type"] in _KEEPING_SPLITS


def _is_unknown_short(model: dict[str, Any], vocabulary: dict[str, int], is_byte_level: bool) -> bool:
    """Return whether text outside the vocabulary gives at least a token for each of its characters."""
    if is_byte_level and _BYTE_LETTERS.issubset(vocabulary):
        return bool(model["type"] == "BPE")  # nothing is unknown
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return model["type"] in ("BPE", "Unigram")
    return bool(model["type"] == "BPE" and model.get("unk_token") is not None and not model.get("fuse_unk"))
