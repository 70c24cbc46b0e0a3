# SPDX-License-Identifier: Apache-2.0
"""Streamed text is the text that the library decodes at once, for every kind of tokenizer, any ids and any chunking."""

import random
from codecs import utf_8_decode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_stop_strings import cut as cut_before_stop_string
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.text import detokenization, token_pieces
from serving.text.detokenization import StopStringWatch, StreamText, TextDecoder
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO_TOKENIZER = CODE_ROOT / "examples" / "demo_model" / "target"
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

CHARACTER_OF = {byte: character for character, byte in token_pieces._BYTE_OF_CHARACTER.items()}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁▁", "▁the", "▁cat", "s", "▁a▁b", ".", "▁.", "你", "▁好", REPLACEMENT, "<0x", "'s", "##ing", "[UNK]"]


def make_tokenizer(tokens: Sequence[str], decoder: object) -> Tokenizer:
    """Return a tokenizer that only decodes, with a gap in its ids, two special tokens and all sorts of added tokens."""
    # Because of the hole the first added token gets the id of the last model token, and hides it.
    vocab = {token: token_id + (token_id > 5) for token_id, token in enumerate([*dict.fromkeys(tokens), "hidden"])}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback="<0x00>" in vocab))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<|bos|>", AddedToken("<|end|>", normalized=False, special=True)])
    tokenizer.add_tokens(["<tool>", " two words ", "你好", "é", "##added", "▁added"])
    return tokenizer


def byte_level() -> Tokenizer:
    """Return a tokenizer with tokens of one byte, of a piece of a character, of a character and a half, of a word."""
    parts = [b" the", "é".encode(), "🙂".encode(), "你".encode()[:2], "你好".encode()[2:4], b"\xf0\x9f", b"\xed\xa0"]
    tokens = ["".join(CHARACTER_OF[byte] for byte in part) for part in parts]
    return make_tokenizer([*ALPHABET, *tokens], decoders.ByteLevel())


LLAMA_STEPS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
# "<0x+5>" is a byte to the library, too.
FALLBACK_TOKENIZERS = {
    "llama 2": make_tokenizer(
        [*BYTE_TOKENS, *WORDS, "<0x+5>"], decoders.Sequence([*LLAMA_STEPS, decoders.Strip(" ", 1, 0)])
    ),
    "gemma": make_tokenizer([*BYTE_TOKENS, *WORDS, ""], decoders.Sequence(LLAMA_STEPS)),
    "byte fallback, two spaces stripped": make_tokenizer(
        [*BYTE_TOKENS, *WORDS], decoders.Sequence([*LLAMA_STEPS, decoders.Strip(" ", 2, 0)])
    ),
    "metaspace with byte fallback": make_tokenizer(
        [*BYTE_TOKENS, *WORDS], decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    ),
}
TOKENIZERS = FALLBACK_TOKENIZERS | {
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
DECODERS = {
    (name, skip): TextDecoder(tokenizer, skip_special_tokens=skip)
    for name, tokenizer in TOKENIZERS.items()
    for skip in (True, False)
}

BYTE_LEVEL_TOKENIZERS = ("byte level", "byte level in a sequence")


def spelled(name: str, data: bytes) -> list[str]:
    """Return a token for each byte; empty where the tokenizer has no such tokens."""
    if name in BYTE_LEVEL_TOKENIZERS:
        return [CHARACTER_OF[byte] for byte in data]
    return [BYTE_TOKENS[byte] for byte in data] if name in FALLBACK_TOKENIZERS else []


# The hole at 6 and ids beyond every vocabulary are among them.
ANY_IDS = st.lists(st.integers(0, 300), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


@st.composite
def texts_in_ids(draw: st.DrawFn, name: str) -> list[int]:
    """Draw any ids, and characters in bytes, whole, begun and broken, between words and tokens that are no text."""
    if draw(st.booleans()):
        return draw(ANY_IDS)
    run = st.one_of(st.text("你é🙂 \n", max_size=3).map(str.encode), st.binary(max_size=4))
    others = st.lists(st.sampled_from([*WORDS, "<|end|>", "<tool>", "é", "", None]), max_size=2)
    tokens: list[str | None] = []
    for data, words in draw(st.lists(st.tuples(run, others), max_size=6)):
        tokens += [*spelled(name, data), *words]
    # None of the tokenizer's: an id that it does not know.
    ids = [None if token is None else TOKENIZERS[name].token_to_id(str(token)) for token in tokens]
    return [999 if token_id is None else token_id for token_id in ids]


def chunks(ids: Sequence[int], cuts: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start:end] for start, end in pairwise([0, *sorted(cuts), len(ids)]) if start <= end)


def streamed(decoder: TextDecoder, ids: Sequence[int], cuts: Sequence[int]) -> str:
    stream = decoder.new_stream()
    return "".join(map(stream.push, chunks(ids, [cut for cut in cuts if cut <= len(ids)]))) + stream.flush()


@pytest.mark.parametrize("skip", [True, False], ids=["special tokens skipped", "special tokens shown"])
@pytest.mark.parametrize("name", TOKENIZERS)
@given(cuts=CUTS, data=st.data())
def test_any_tokens_in_any_chunks_give_the_text_of_the_full_decode(
    name: str, skip: bool, cuts: list[int], data: st.DataObject
) -> None:
    ids = data.draw(texts_in_ids(name))
    for end in range(len(ids) + 1):  # wherever it ends: at a length limit, a cancel, an end token
        expected = TOKENIZERS[name].decode(ids[:end], skip_special_tokens=skip)
        assert streamed(DECODERS[name, skip], ids[:end], cuts) == expected
    assert DECODERS[name, skip].decode(ids) == expected


@pytest.mark.parametrize("name", FALLBACK_TOKENIZERS)
@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        pytest.param(["s", "<0xE4>", "<0xBD>", "<0xA0>", "<0xE5>"], "s" + REPLACEMENT * 4, id="cut in a character"),
        pytest.param(["s", "<0xE4>", "<0xBD>", "<0xA0>"], "s你", id="cut behind a character"),
        pytest.param(["s", "<0xF0>", "<0x9F>"], "s" + REPLACEMENT * 2, id="cut in the only character"),
        pytest.param(["s", "<0x0A>", "<0xFF>", "<0x41>", "."], "s" + REPLACEMENT * 3 + ".", id="broken in the middle"),
        pytest.param(["s", "<0x0A>", "<|end|>", "<0xFF>"], "s" + REPLACEMENT * 2, id="broken behind a skipped token"),
        pytest.param(["s", "<0x0A>", ".", "<0xFF>"], "s\n." + REPLACEMENT, id="broken in the next run"),
    ],
)
def test_of_a_run_of_byte_tokens_each_is_a_replacement_character_if_one_is_invalid(
    name: str, tokens: list[str], text: str
) -> None:
    tokenizer, decoder = TOKENIZERS[name], DECODERS[name, True]
    ids = [tokenizer.token_to_id(token) for token in tokens]
    assert tokenizer.decode(ids) == text
    assert streamed(decoder, ids, range(len(ids))) == streamed(decoder, ids, []) == text


def uncertain(name: str, ids: Sequence[int]) -> str:
    """Return the text that may still change: a run of byte tokens that is valid so far, and an incomplete character."""
    if name.startswith("byte level"):
        shown = [TOKENIZERS[name].id_to_token(token_id) for token_id in ids]
        data = b"".join(map(token_pieces._bytes_of, (t for t in shown if t is not None and not t.startswith("<|"))))
        _, num_used = utf_8_decode(data, "replace", False)
        assert len(data) - num_used <= 3
        return data[num_used:].decode("utf-8", "replace")
    data = b""
    for token_id in reversed(ids):
        token = TOKENIZERS[name].id_to_token(token_id)
        if token is None or token in {"<|bos|>", "<|end|>"}:
            continue
        if name not in FALLBACK_TOKENIZERS or token not in {*BYTE_TOKENS, "<0x+5>"}:
            break
        data = bytes.fromhex(token[3:5].replace("+", "0")) + data
    try:
        text, num_used = utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return ""
    return text if num_used == len(data) else REPLACEMENT * len(data)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_only_an_incomplete_character_or_run_of_bytes_is_ever_held_back(name: str, data: st.DataObject) -> None:
    ids = data.draw(texts_in_ids(name))
    stream, shown = DECODERS[name, True].new_stream(), ""
    for number, token_id in enumerate(ids, start=1):
        shown += stream.push([token_id])
        held = TOKENIZERS[name].decode(ids[:number]).removeprefix(shown)
        expected = uncertain(name, ids[:number])
        # Of the very first text up to two spaces are stripped.
        stripped = {expected, expected.removeprefix(" "), expected.removeprefix("  ")}
        assert held == expected if shown else held in stripped


ANY_TEXT = st.one_of(st.text(max_size=12), st.lists(st.sampled_from(MULTILINGUAL), max_size=3).map("".join))


@pytest.mark.parametrize("name", BYTE_LEVEL_TOKENIZERS)
@given(text=ANY_TEXT)
@example(text="".join(MULTILINGUAL))
def test_text_spelled_in_bytes_comes_character_by_character_and_never_late(name: str, text: str) -> None:
    tokenizer, stream = TOKENIZERS[name], DECODERS[name, True].new_stream()
    shown = ""
    for number, token in enumerate(spelled(name, text.encode()), start=1):
        shown += stream.push([tokenizer.token_to_id(token)])
        assert shown == text.encode()[:number].decode(errors="ignore")
    assert shown == text
    assert stream.flush() == ""


@pytest.mark.parametrize("name", FALLBACK_TOKENIZERS)
@given(text=ANY_TEXT, is_end=st.booleans())
@example(text="".join(MULTILINGUAL), is_end=False)
def test_text_spelled_in_byte_tokens_comes_whole_with_the_first_token_of_another_kind_or_the_end(
    name: str, text: str, is_end: bool
) -> None:
    tokenizer, stream = TOKENIZERS[name], DECODERS[name, True].new_stream()
    # A word first: the space at the very beginning is llama 2's to strip.
    assert stream.push([tokenizer.token_to_id("s")]) == "s"
    assert stream.push([tokenizer.token_to_id(token) for token in spelled(name, text.encode())]) == ""
    assert (stream.flush() if is_end else stream.push([tokenizer.token_to_id(".")])) == text + "." * (not is_end)


LANGUAGE_WORDS = sorted(
    {*"".join(MULTILINGUAL).replace(" ", ""), *("▁" + word for word in " ".join(MULTILINGUAL).split())}
)
LANGUAGE_TOKENIZERS = {
    "metaspace": make_tokenizer(LANGUAGE_WORDS, decoders.Metaspace(prepend_scheme="always")),
    "word piece": make_tokenizer(LANGUAGE_WORDS, decoders.WordPiece(cleanup=True)),
}


@pytest.mark.parametrize("name", LANGUAGE_TOKENIZERS)
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
    assert DECODERS["llama 2", True].decode(ids) == REPLACEMENT * 4 + last.replace("▁", " ")


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


def settled(name: str, ids: Sequence[int]) -> str:
    """Return the full decode without the end that may still become another character."""
    rest = uncertain(name, ids)
    return (
        DECODERS[name, True].decode(ids).removesuffix(rest) if REPLACEMENT in rest else DECODERS[name, True].decode(ids)
    )


@pytest.mark.parametrize("name", TOKENIZERS)
@given(cuts=CUTS, data=st.data())
def test_any_tokens_are_cut_before_the_first_stop_string_in_their_text(
    name: str, cuts: list[int], data: st.DataObject
) -> None:
    decoder, ids = DECODERS[name, True], data.draw(texts_in_ids(name))
    whole = decoder.decode(ids)
    inside = st.tuples(st.integers(0, len(whole)), st.integers(1, 6)).map(lambda at: whole[at[0] : sum(at)] or "x")
    characters = st.text("你é🙂 \n" + REPLACEMENT, min_size=1, max_size=2)
    strings = data.draw(st.lists(st.one_of(inside, characters), min_size=1, max_size=3, unique=True))
    # Generation ends with the first token behind which the full decode of all tokens has a stop string.
    lengths = (n for n in range(len(ids) + 1) if any(string in settled(name, ids[:n]) for string in strings))
    num_kept = next(lengths, None)
    expected = cut_before_stop_string(decoder.decode(ids[:num_kept]), strings)

    assert StopStringWatch(decoder, strings).tokens_until_stop(ids) == num_kept
    text, shown = StreamText(decoder, strings), ""
    for chunk in chunks(ids, [cut for cut in cuts if cut <= len(ids)]):
        shown += text.push(chunk)
        assert not any(string in shown for string in strings)
    assert text.stopped == (num_kept is not None)
    assert shown + text.finish() == expected
    assert text.stopped == any(string in decoder.decode(ids[:num_kept]) for string in strings)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_beside_a_run_of_bytes_only_the_beginning_of_a_stop_string_is_held_back(name: str, data: st.DataObject) -> None:
    decoder, ids = DECODERS[name, True], data.draw(texts_in_ids(name))
    strings = data.draw(st.lists(st.text(" the你é.", min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    beginnings = [string[:size] for string in strings for size in range(len(string))]
    text, stream, shown, certain = StreamText(decoder, strings), decoder.new_stream(), "", ""
    for token_id in ids:
        shown, certain = shown + text.push([token_id]), certain + stream.push([token_id])
        if text.stopped:
            return
        assert len(certain) - len(shown) == max(len(start) for start in beginnings if certain.endswith(start))


@pytest.mark.parametrize("name", FALLBACK_TOKENIZERS)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_stop_string_in_byte_tokens_ends_generation_with_its_own_last_token(name: str, is_at_once: bool) -> None:
    tokenizer, decoder = TOKENIZERS[name], DECODERS[name, True]
    tokens = ["s", "<0x0A>", "<0x41>", "<0x0A>", "<0x0A>", "<0xFF>"]  # the newline of Llama 2 is a byte
    ids = [tokenizer.token_to_id(token) for token in tokens]
    watch = StopStringWatch(decoder, ["\n\n"])
    assert watch.tokens_until_stop(ids) == 5
    text = StreamText(decoder, ["\n\n"])
    shown = text.push(ids) if is_at_once else "".join(text.push([token_id]) for token_id in ids)
    assert shown == "s\nA"
    assert text.stopped
    assert text.finish() == ""


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


@pytest.mark.parametrize("name", [*FALLBACK_TOKENIZERS, "metaspace", "metaspace, space kept", "strip twice"])
@pytest.mark.parametrize("prompt", [["▁the"], ["<|bos|>"], ["<|bos|>", "▁the"], []], ids=" ".join)
@pytest.mark.parametrize(
    "answer",
    [["▁", "▁cat", "s"], ["<0x20>", "<0xC3>", "<0xA9>", "s"], ["▁", "▁", "▁", "s"], ["▁"], ["<0x20>"]],
    ids=" ".join,
)
@pytest.mark.parametrize("strings", [[], ["zzz"]], ids=["", "stop string"])
def test_an_echoed_prompt_and_its_answer_read_as_one_text(
    name: str, prompt: list[str], answer: list[str], strings: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]
    prompt_ids = [tokenizer.token_to_id(token) for token in prompt]
    answer_ids = [tokenizer.token_to_id(token) for token in answer if token in tokenizer.get_vocab()]
    text = StreamText(DECODERS[name, True], strings)
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
