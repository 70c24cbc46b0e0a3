# SPDX-License-Identifier: Apache-2.0
"""Streamed text is the text that the library decodes at once, for every kind of tokenizer, any ids and any chunking."""

import random
from codecs import utf_8_decode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_stop_strings import cut as cut_before_stop_string
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from ensemble_configs.errors import SpecError
from ensemble_configs.release_spec import TokenizerSpec
from serving import detokenization, token_pieces
from serving.detokenization import StopStringWatch, StreamText, TextDecoder

DEMO_TOKENIZER = Path(__file__).parents[2] / "examples" / "demo_model" / "target"
REPLACEMENT = "\ufffd"
MULTILINGUAL = (
    "今天天气很好，我们去公园散步吧。",
    "吾輩は猫である。名前はまだ無い。",
    "مرحبا بالعالم، كيف حالك اليوم؟",
    "नमस्ते दुनिया, क्षत्रिय",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 🇮🇳🇯🇵 regions, 👍🏽 tone",
    "e\u0301 \u0915\u094d\u0937 Z\u0351\u036b\u0343 combining",
    "tabs\tand\r\nlines  and   spaces ",
)

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁▁", "▁the", "▁cat", "s", "▁a▁b", ".", "▁.", "你", "▁好", REPLACEMENT, "<0x", "'s", "##ing", "[UNK]"]


def make_tokenizer(tokens: Sequence[str], decoder: object) -> Tokenizer:
    """A tokenizer that only decodes, with a hole in its ids, two special tokens and added tokens of every sort."""
    # Because of the hole the first added token gets the id of the last model token, and hides it.
    vocab = {token: token_id + (token_id > 5) for token_id, token in enumerate([*dict.fromkeys(tokens), "hidden"])}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback="<0x00>" in vocab))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<|bos|>", AddedToken("<|end|>", normalized=False, special=True)])
    tokenizer.add_tokens(["<tool>", " two words ", "你好", "é", "##added", "▁added"])
    return tokenizer


def byte_level() -> Tokenizer:
    """Tokens of one byte, of a piece of a character, of a character and a half, of a word."""
    character_of = {byte: character for character, byte in token_pieces._BYTE_OF_CHARACTER.items()}
    parts = [b" the", "é".encode(), "🙂".encode(), "你".encode()[:2], "你好".encode()[2:4], b"\xf0\x9f", b"\xed\xa0"]
    tokens = ["".join(character_of[byte] for byte in part) for part in parts]
    return make_tokenizer([*ALPHABET, *tokens], decoders.ByteLevel())


LLAMA_STEPS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
FALLBACK_TOKENIZERS = {
    "llama 2": make_tokenizer([*BYTE_TOKENS, *WORDS], decoders.Sequence([*LLAMA_STEPS, decoders.Strip(" ", 1, 0)])),
    "gemma": make_tokenizer([*BYTE_TOKENS, *WORDS], decoders.Sequence(LLAMA_STEPS)),
}
EXACT_TOKENIZERS = {
    "byte level": byte_level(),
    "byte level in a sequence": make_tokenizer(ALPHABET, decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])),
    "metaspace": make_tokenizer(WORDS, decoders.Metaspace(prepend_scheme="always")),
    "metaspace, space kept": make_tokenizer(WORDS, decoders.Metaspace(prepend_scheme="never")),
    "word piece": make_tokenizer(WORDS, decoders.WordPiece(cleanup=True)),
    "word piece, not cleaned": make_tokenizer(WORDS, decoders.WordPiece(cleanup=False)),
    "strip twice": make_tokenizer(
        WORDS, decoders.Sequence([LLAMA_STEPS[0], decoders.Fuse(), decoders.Strip(" ", 2, 0)])
    ),
    "strip each": make_tokenizer(WORDS, decoders.Sequence([LLAMA_STEPS[0], decoders.Strip(" ", 1, 0)])),
}
TOKENIZERS = EXACT_TOKENIZERS | FALLBACK_TOKENIZERS
DECODERS = {
    (name, skip): TextDecoder(tokenizer, skip_special_tokens=skip)
    for name, tokenizer in TOKENIZERS.items()
    for skip in (True, False)
}

# The hole at 6 and ids beyond every vocabulary are among them.
IDS = st.lists(st.integers(0, 300), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


def chunks(ids: Sequence[int], cuts: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start:end] for start, end in pairwise([0, *sorted(cuts), len(ids)]) if start <= end)


def streamed(decoder: TextDecoder, ids: Sequence[int], cuts: Sequence[int]) -> str:
    stream = decoder.new_stream()
    return "".join(map(stream.push, chunks(ids, [cut for cut in cuts if cut <= len(ids)]))) + stream.flush()


@pytest.mark.parametrize("skip", [True, False], ids=["special tokens skipped", "special tokens shown"])
@pytest.mark.parametrize("name", EXACT_TOKENIZERS)
@settings(deadline=None)
@given(ids=IDS, cuts=CUTS)
def test_any_tokens_in_any_chunks_give_the_text_of_the_full_decode(
    name: str, skip: bool, ids: list[int], cuts: list[int]
) -> None:
    expected = TOKENIZERS[name].decode(ids, skip_special_tokens=skip)
    assert streamed(DECODERS[name, skip], ids, cuts) == expected
    assert DECODERS[name, skip].decode(ids) == expected


# Runs of byte tokens that are valid to their end, or invalid from their start, with a word after each.
RUNS = st.one_of(
    st.text(min_size=1, max_size=5).map(str.encode), st.binary(max_size=5).map(lambda data: b"\x80" + data)
)
WORD_IDS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4)


@pytest.mark.parametrize("name", FALLBACK_TOKENIZERS)
@settings(deadline=None)
@given(parts=st.lists(st.tuples(RUNS, WORD_IDS), max_size=8), begins_with_word=st.booleans(), cuts=CUTS)
def test_characters_in_byte_tokens_give_the_text_of_the_full_decode(
    name: str, parts: list[tuple[bytes, list[str]]], begins_with_word: bool, cuts: list[int]
) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = ["▁the"] if begins_with_word else []
    for run, words in parts:
        tokens += [*(BYTE_TOKENS[byte] for byte in run), *words]
    ids = [tokenizer.token_to_id(token) for token in tokens]
    assert streamed(DECODERS[name, True], ids, cuts) == tokenizer.decode(ids)


def _with_shown_characters_kept(tokenizer: Tokenizer, ids: list[int], skip: bool) -> str:
    """The library's decode, but of each run of bytes the valid beginning stays; the rest is written as U+FFFD."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in ids]
    shown = [token for token in tokens if token is not None and not (skip and token.startswith("<|"))]
    kept: list[str] = []
    for is_run, run in groupby(shown, key=lambda token: token in BYTE_TOKENS):
        group = list(run)
        if is_run:
            data = bytes(int(token[3:5], 16) for token in group)
            num_valid = next(size for size in range(len(data), -1, -1) if _is_valid(data[:size]))
            group[num_valid:] = [REPLACEMENT] * (len(data) - num_valid)
        kept += group
    return str(tokenizer.decode([tokenizer.token_to_id(token) for token in kept], skip_special_tokens=skip))


def _is_valid(data: bytes) -> bool:
    try:
        return bool(data.decode("utf-8")) or True
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("skip", [True, False], ids=["special tokens skipped", "special tokens shown"])
@pytest.mark.parametrize("name", FALLBACK_TOKENIZERS)
@settings(deadline=None)
@given(ids=IDS, cuts=CUTS)
def test_of_an_invalid_run_of_byte_tokens_the_characters_already_shown_stay(
    name: str, skip: bool, ids: list[int], cuts: list[int]
) -> None:
    text = streamed(DECODERS[name, skip], ids, cuts)
    assert text == _with_shown_characters_kept(TOKENIZERS[name], ids, skip)
    assert text.count(REPLACEMENT) <= TOKENIZERS[name].decode(ids, skip_special_tokens=skip).count(REPLACEMENT)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(ids=IDS)
def test_only_an_incomplete_character_is_ever_held_back(name: str, ids: list[int]) -> None:
    tokenizer, stream = TOKENIZERS[name], DECODERS[name, True].new_stream()
    shown = ""
    for number, token_id in enumerate(ids, start=1):
        shown += stream.push([token_id])
        complete = _with_shown_characters_kept(tokenizer, ids[:number], skip=True)
        held = complete.removeprefix(shown)
        assert complete == shown + held
        # At most three bytes, each one U+FFFD while it is incomplete, and nothing of a tokenizer without bytes.
        assert held == REPLACEMENT * len(held)
        assert len(held) <= (3 if name in SPELLED else 0)


def in_byte_level(text: str) -> list[str]:
    return [byte for piece, _ in pre_tokenizers.ByteLevel(False).pre_tokenize_str(text) for byte in piece]


def in_byte_tokens(text: str) -> list[str]:
    return [BYTE_TOKENS[byte] for byte in text.encode()]


# Whose tokens can spell any text, byte by byte.
SPELLED = {
    "byte level": in_byte_level,
    "byte level in a sequence": in_byte_level,
    "llama 2": in_byte_tokens,
    "gemma": in_byte_tokens,
}
ANY_TEXT = st.one_of(st.text(max_size=12), st.lists(st.sampled_from(MULTILINGUAL), max_size=3).map("".join))


@pytest.mark.parametrize("name", SPELLED)
@settings(deadline=None)
@given(text=ANY_TEXT)
@example(text="".join(MULTILINGUAL))
def test_text_spelled_in_bytes_comes_character_by_character_and_never_late(name: str, text: str) -> None:
    tokenizer, stream = TOKENIZERS[name], DECODERS[name, True].new_stream()
    # A word first: the space at the very beginning is llama 2's to strip.
    shown = stream.push([tokenizer.token_to_id("." if name.startswith("byte") else "s")])[1:]
    for number, token in enumerate(SPELLED[name](text), start=1):
        shown += stream.push([tokenizer.token_to_id(token)])
        assert shown == text.encode()[:number].decode(errors="ignore")
    assert shown == text
    assert stream.flush() == ""


LANGUAGE_WORDS = sorted(
    {*"".join(MULTILINGUAL).replace(" ", ""), *("▁" + word for word in " ".join(MULTILINGUAL).split())}
)
LANGUAGE_TOKENIZERS = {
    "metaspace": make_tokenizer(LANGUAGE_WORDS, decoders.Metaspace(prepend_scheme="always")),
    "word piece": make_tokenizer(LANGUAGE_WORDS, decoders.WordPiece(cleanup=True)),
}


@pytest.mark.parametrize("name", LANGUAGE_TOKENIZERS)
@settings(deadline=None)
@given(tokens=st.lists(st.sampled_from([*LANGUAGE_WORDS, "<|end|>", "<tool>"]), max_size=20))
def test_words_and_characters_of_every_script_are_shown_with_their_token(name: str, tokens: list[str]) -> None:
    tokenizer = LANGUAGE_TOKENIZERS[name]
    stream = TextDecoder(tokenizer).new_stream()
    ids, shown = [tokenizer.token_to_id(token) for token in tokens], ""
    for number, token_id in enumerate(ids, start=1):
        shown += stream.push([token_id])
        assert shown == tokenizer.decode(ids[:number])
    assert stream.flush() == ""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_byte_is_decoded_once_however_long_no_character_completes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_decoded = 0

    def counting_decode(data: bytes, errors: str, final: bool) -> tuple[str, int]:
        nonlocal num_decoded
        num_decoded += len(data)
        return utf_8_decode(data, errors, final)

    monkeypatch.setattr(detokenization, "utf_8_decode", counting_decode)
    stream = DECODERS[name, True].new_stream()
    for token_id in [200] * 4000:
        stream.push([token_id])
    assert num_decoded <= 4 * 4000


@pytest.mark.parametrize("last", ["s", "▁the"])
def test_where_the_librarys_own_stream_fails_the_text_goes_on(last: str) -> None:
    """The traps that keep `DecodeStream` out; when this test fails, the library has mended them."""
    tokenizer = TOKENIZERS["llama 2"]
    ids = [tokenizer.token_to_id(token) for token in ["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", last]]
    library = DecodeStream(skip_special_tokens=True)
    assert [library.step(tokenizer, token_id) for token_id in ids[:4]] == [None, None, "你", None]
    with pytest.raises(Exception, match="Invalid prefix"):
        library.step(tokenizer, ids[4])
    assert DECODERS["llama 2", True].decode(ids) == "你" + REPLACEMENT + last.replace("▁", " ")


def test_the_end_of_a_text_cut_inside_a_character_comes_out_as_one_replacement_character() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = [tokenizer.token_to_id(character) for character in ("A", "ð", "Ł", "ĺ")]  # A, then three bytes of an emoji
    stream = DECODERS["byte level", True].new_stream()
    assert stream.push(ids) == "A"
    assert stream.flush() == REPLACEMENT
    assert stream.flush() == ""


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        pytest.param(None, "missing", id="none: words would be joined by spaces"),
        pytest.param(decoders.CTC(), "CTC", id="CTC"),
        pytest.param(decoders.BPEDecoder(), "BPEDecoder", id="BPEDecoder, which must know the last token"),
        pytest.param(
            decoders.Sequence([*LLAMA_STEPS, decoders.Replace("a", "b")]), "Fuse Replace", id="replaced after"
        ),
        pytest.param(
            decoders.Sequence([*LLAMA_STEPS, decoders.Strip(" ", 0, 1)]), "Fuse Strip", id="stripped at the end"
        ),
        pytest.param(
            decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]), "ByteLevel Metaspace", id="after bytes"
        ),
    ],
)
def test_a_decoder_that_cannot_be_streamed_exactly_is_refused_by_name(decoder: object, name: str) -> None:
    with pytest.raises(SpecError, match=name):
        TextDecoder(make_tokenizer(WORDS, decoder))


def test_a_library_that_decodes_otherwise_than_expected_is_noticed_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_pieces, "_bytes_of", lambda token: token.encode("utf-16-le"))
    with pytest.raises(SpecError, match="in another way"):
        TextDecoder(TOKENIZERS["byte level"])


def test_many_streams_in_many_threads_do_not_disturb_each_other() -> None:
    seeded = random.Random(20)
    cases = [(key, [seeded.randrange(300) for _ in range(300)]) for key in list(DECODERS) * 10]

    def run_interleaved(mine: list[tuple[tuple[str, bool], list[int]]]) -> list[str]:
        streams = [DECODERS[key].new_stream() for key, _ in mine]
        texts = [""] * len(mine)
        for start in range(0, 300, 3):
            for number, (_, ids) in enumerate(mine):
                texts[number] += streams[number].push(ids[start : start + 3])
        return [text + stream.flush() for text, stream in zip(texts, streams, strict=True)]

    num_threads = 8
    with ThreadPoolExecutor(num_threads) as pool:
        results = list(pool.map(run_interleaved, (cases[number::num_threads] for number in range(num_threads))))
    for number, texts in enumerate(results):
        assert texts == [DECODERS[key].decode(ids) for key, ids in cases[number::num_threads]]


@pytest.mark.parametrize("text", MULTILINGUAL)
def test_the_demo_tokenizer_streams_every_script_exactly(text: str) -> None:
    decoder = TextDecoder.from_spec(TokenizerSpec(dir=DEMO_TOKENIZER))
    ids = Tokenizer.from_file(str(DEMO_TOKENIZER / "tokenizer.json")).encode(text).ids
    stream = decoder.new_stream()
    deltas = [stream.push([token_id]) for token_id in ids]
    assert "".join(deltas) == text
    assert stream.flush() == ""
    assert not any(REPLACEMENT in delta for delta in deltas)


# One stream's text with stop strings.

STOP_STRINGS = st.lists(st.text("AB\u00e9\u4f60\ufffd", min_size=1, max_size=3), max_size=3, unique=True)
TOKEN_OF = {token: TOKENIZERS["byte level"].token_to_id(token) for token in ("A", "B", "Ã", "©", "ä", "½", "ł")}
ANSWER_IDS = st.lists(st.sampled_from(list(TOKEN_OF.values())), max_size=25)


@settings(deadline=None)
@given(ids=ANSWER_IDS, cuts=CUTS, other_cuts=CUTS, strings=STOP_STRINGS)
def test_the_engines_process_and_postprocessing_agree_on_every_text(
    ids: list[int], cuts: list[int], other_cuts: list[int], strings: list[str]
) -> None:
    decoder = DECODERS["byte level", True]
    watch = StopStringWatch(decoder, strings)
    kept: list[int] = []
    is_stopped = False
    for chunk in chunks(ids, [cut for cut in cuts if cut <= len(ids)]):
        num_tokens = watch.tokens_until_stop(chunk)
        kept += chunk[:num_tokens]
        if num_tokens is not None:
            is_stopped = True
            break
    text = StreamText(decoder, strings)
    answer = "".join(map(text.push, chunks(kept, [cut for cut in other_cuts if cut <= len(kept)])))
    assert text.stopped == is_stopped
    whole = StreamText(decoder, strings)
    assert answer + text.finish() == whole.push(kept) + whole.finish()
    assert is_stopped or kept == ids
    # One token less, and it would not have stopped.
    shorter = StreamText(decoder, strings)
    shorter.push(kept[:-1])
    assert not shorter.stopped


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None)
@given(ids=IDS, cuts=CUTS, data=st.data())
def test_any_tokens_are_cut_before_the_first_stop_string_in_their_text(
    name: str, ids: list[int], cuts: list[int], data: st.DataObject
) -> None:
    decoder = DECODERS[name, True]
    whole = decoder.decode(ids)
    inside = st.tuples(st.integers(0, len(whole)), st.integers(1, 6)).map(lambda at: whole[at[0] : sum(at)] or "x")
    strings = data.draw(st.lists(inside, min_size=1, max_size=3, unique=True))
    text, shown, num_pushed = StreamText(decoder, strings), "", 0
    for chunk in chunks(ids, [cut for cut in cuts if cut <= len(ids)]):
        shown, num_pushed = shown + text.push(chunk), num_pushed + len(chunk)
        assert not any(string in shown for string in strings)
        if not text.stopped:
            stream = decoder.new_stream()
            certain = stream.push(ids[:num_pushed])
            beginnings = [string[:size] for string in strings for size in range(len(string))]
            assert len(certain) - len(shown) == max(len(start) for start in beginnings if certain.endswith(start))
    assert shown + text.finish() == cut_before_stop_string(whole, strings)
    assert text.stopped == any(string in whole for string in strings)


def test_text_is_cut_before_a_stop_string_and_nothing_follows() -> None:
    tokenizer = TOKENIZERS["llama 2"]
    text = StreamText(DECODERS["llama 2", True], ["cat."])
    deltas = [text.push([tokenizer.token_to_id(token)]) for token in ("▁the", "▁cat", "s", "▁cat", ".", "▁the")]
    assert deltas == ["the", " ", "cats", " ", "", ""]
    assert text.stopped
    assert text.finish() == ""


def test_a_stop_string_may_end_inside_a_token() -> None:
    tokenizer = TOKENIZERS["llama 2"]
    ids = [tokenizer.token_to_id(token) for token in ("▁the", "▁cat", "▁the")]
    assert StopStringWatch(DECODERS["llama 2", True], ["e c"]).tokens_until_stop(ids) == 2
    assert StreamText(DECODERS["llama 2", True], ["e c"]).push(ids) == "th"


def test_the_end_of_the_text_brings_out_what_was_held_back() -> None:
    tokenizer = TOKENIZERS["byte level"]
    text = StreamText(DECODERS["byte level", True], ["AB!", REPLACEMENT + "A"])
    assert text.push([tokenizer.token_to_id(token) for token in ("B", "A", "B", "ä")]) == "B"
    assert text.finish() == "AB" + REPLACEMENT
    assert not text.stopped


def test_a_stop_string_completed_by_the_flush_counts() -> None:
    text = StreamText(DECODERS["byte level", True], [REPLACEMENT])
    assert text.push([TOKEN_OF["A"], TOKEN_OF["ä"]]) == "A"
    assert text.finish() == ""
    assert text.stopped


@pytest.mark.parametrize("name", ["llama 2", "gemma", "metaspace", "metaspace, space kept"])
@pytest.mark.parametrize("prompt", [["▁the"], ["<|bos|>"], ["<|bos|>", "▁the"], []], ids=" ".join)
def test_an_echoed_prompt_and_its_answer_read_as_one_text(name: str, prompt: list[str]) -> None:
    tokenizer = TOKENIZERS[name]
    prompt_ids = [tokenizer.token_to_id(token) for token in prompt]
    answer_ids = [tokenizer.token_to_id(token) for token in ("▁", "▁cat", "s")]
    text = StreamText(DECODERS[name, True])
    deltas = [text.push_prompt(prompt_ids), text.push([]), *(text.push([token_id]) for token_id in answer_ids)]
    assert "".join(deltas) + text.finish() == tokenizer.decode(prompt_ids + answer_ids)


def test_no_stop_string_is_looked_for_in_the_prompt_nor_across_its_end() -> None:
    tokenizer = TOKENIZERS["llama 2"]
    the, cat = (tokenizer.token_to_id(token) for token in ("▁the", "▁cat"))
    text = StreamText(DECODERS["llama 2", True], ["he", "e c", " cat"])
    assert text.push_prompt([the]) == "the"
    assert text.push([cat]) == " cat"  # the engine's process sees "cat" only: the space belongs to neither
    assert not text.stopped
    assert text.push([cat]) == ""
    assert text.stopped
