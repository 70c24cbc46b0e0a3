# SPDX-License-Identifier: Apache-2.0
"""How much text a token can stand for: derived where each step of the tokenizer has a bound, and else assumed."""

import sys
import unicodedata
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from serving.text.token_bytes import ASSUMED_BYTES, TokenBytes, token_bytes

BYTES = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)}


def byte_level(*tokens: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(BYTES | {token: 256 + index for index, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def with_fallback(*tokens: str, missing: str = "") -> Tokenizer:
    vocabulary = FALLBACK | {token: 256 + index for index, token in enumerate(tokens)}
    vocabulary.pop(missing, None)
    return Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))


def normalized(tokenizer: Tokenizer, *steps: normalizers.Normalizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Sequence(list(steps))
    return tokenizer


def with_added(tokenizer: Tokenizer, token: AddedToken) -> Tokenizer:
    tokenizer.add_special_tokens([token])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "most"),
    [
        pytest.param(byte_level(), 4, id="bytes"),
        pytest.param(byte_level("ĠĠĠĠĠĠ"), 6, id="six spaces, whose letters have two bytes each"),
        pytest.param(with_added(byte_level(), AddedToken("<|endoftext|>")), 13, id="an added token"),
        pytest.param(with_fallback("▁▁▁▁"), 12, id="byte fallback"),
        pytest.param(normalized(byte_level("Ġhello"), normalizers.NFC()), 18, id="NFC: 3 to 1"),
        pytest.param(normalized(byte_level("Ġhello"), normalizers.NFKC()), 24, id="NFKC: 4 to 1"),
        pytest.param(normalized(with_fallback("ab"), normalizers.Replace("abcdefgh", "ab")), 16, id="4 to 1 by name"),
        pytest.param(normalized(with_fallback("▁▁"), normalizers.Replace(" ", "▁")), 6, id="a longer letter"),
    ],
)
def test_the_longest_token_sets_the_bound(tokenizer: Tokenizer, most: int) -> None:
    assert token_bytes(tokenizer) == TokenBytes(most, is_derived=True)


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(normalized(byte_level(), normalizers.Strip()), id="white space at the ends"),
        pytest.param(normalized(byte_level(), normalizers.StripAccents()), id="accents"),
        pytest.param(normalized(byte_level(), normalizers.BertNormalizer()), id="control characters"),
        pytest.param(normalized(byte_level(), normalizers.Replace(Regex(" {2,}"), " ")), id="runs of spaces"),
        pytest.param(normalized(byte_level(), normalizers.Replace("x", "")), id="a letter"),
        pytest.param(with_added(byte_level(), AddedToken("<mask>", lstrip=True)), id="beside an added token"),
        pytest.param(Tokenizer(models.WordLevel({"a": 0, "?": 1}, "?")), id="unknown words"),
        pytest.param(Tokenizer(models.WordPiece({"a": 0, "?": 1}, unk_token="?")), id="unknown long words"),
        pytest.param(Tokenizer(models.Unigram([("?", 0.0), ("a", -1.0)], 0)), id="runs of unknown characters"),
        pytest.param(Tokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True)), id="fused"),
        pytest.param(Tokenizer(models.BPE({"a": 0}, [])), id="unknown characters without a token"),
        pytest.param(with_fallback(missing="<0x41>"), id="a byte that is missing"),
    ],
)
def test_where_a_token_may_swallow_any_amount_of_text_a_large_bound_is_assumed(tokenizer: Tokenizer) -> None:
    assert token_bytes(tokenizer) == TokenBytes(ASSUMED_BYTES, is_derived=False)


def test_what_is_assumed_is_not_less_than_a_token_that_is_there() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a" * 500: 0, "?": 1}, "?"))
    assert token_bytes(tokenizer) == TokenBytes(500, is_derived=False)


@pytest.mark.parametrize(
    "split",
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Split(" ", "removed")],
    ids=lambda split: type(split).__name__,
)
def test_a_split_that_leaves_text_out_sets_no_bound(split: pre_tokenizers.PreTokenizer) -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    assert not token_bytes(tokenizer).is_derived


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((form, lambda text, form=form: unicodedata.normalize(form, text)) for form in ("NFC", "NFKC", "NFD", "NFKD")),
        ("Lowercase", str.lower),
    ],
)
def test_no_character_becomes_shorter_than_is_said(name: str, change: Callable[[str], str]) -> None:
    tokenizer = normalized(byte_level("ĠĠĠĠ"), getattr(normalizers, name)())
    factor = token_bytes(tokenizer).most // 4
    characters = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    worst = max(len(one.encode()) / max(1, len(change(one).encode())) for one in characters)
    composed = ["\u1100\u1161\u11a8", "\u03b1\u0313\u0300\u0345", "\U0001d400\u030a\u0301", "\uff21\u0302\u0301"]
    worst = max(worst, *(len(text.encode()) / len(change(text).encode()) for text in composed))
    assert worst <= factor
