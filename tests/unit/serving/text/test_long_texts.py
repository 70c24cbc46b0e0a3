# SPDX-License-Identifier: Apache-2.0
"""Long text becomes ids while others go on, and text that cannot fit is refused before all of it is tokenized."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from simulated_release import TOKENIZER
from tokenizers import Tokenizer, models, pre_tokenizers

from ensemble_configs.chat.chat_template import ChatTemplate
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.pipeline.prompt_step import PromptStep
from serving.text.chat_prompt import ChatPrompt
from serving.text.tokenization import LONG_TEXT_BYTES, PromptTokenizer
from trireme.base.errors import RequestError

SPEC = TokenizerSpec(dir=TOKENIZER)
MAX_SEQ_LEN = 1000
LONGEST_TOKEN = "都はストックホルムです"  # the demo's
LONGEST = 33  # of its bytes
MAX_BYTES = (MAX_SEQ_LEN - 1) * LONGEST
SENTENCE = "Once upon a time the king of France had 23 horses, 45 dogs and <|eos|> no 猫. "
LENGTH: dict[str, npt.NDArray[np.generic]] = {"REQUEST_OUTPUT_LEN": np.array([[1]], dtype=np.int32)}


@pytest.fixture(scope="module")
def limited() -> PromptTokenizer:
    return PromptTokenizer.from_spec(SPEC, max_seq_len=MAX_SEQ_LEN)


@pytest.fixture(scope="module")
def chat(limited: PromptTokenizer) -> ChatPrompt:
    source = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return ChatPrompt(ChatTemplate(source, {}, file=Path("chat.jinja")), limited)


def strings(*texts: bytes) -> npt.NDArray[np.generic]:
    return np.array([texts], dtype=np.object_)


def test_long_text_has_the_ids_of_short_text() -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    for text in (SENTENCE * 1000, "a" * 50_000, "猫🙂" * 10_000):
        assert len(text.encode()) > LONG_TEXT_BYTES
        expected = tokenizer.encode(text).ids
        assert PromptTokenizer.from_spec(SPEC).encode(text).tolist() == expected
        assert PromptTokenizer.from_spec(SPEC, max_seq_len=200_000).encode(text).tolist() == expected


def test_other_threads_go_on_while_long_text_is_tokenized() -> None:
    tokenizer = PromptTokenizer.from_spec(SPEC)
    num_turns, is_over = 0, threading.Event()

    def take_turns() -> None:
        nonlocal num_turns
        while not is_over.wait(0.001):
            num_turns += 1

    other = threading.Thread(target=take_turns)
    other.start()
    tokenizer.encode(SENTENCE * 20_000)  # 0.7 s; `Tokenizer.encode` lets the other thread have 1 turn or 2
    is_over.set()
    other.join()
    assert num_turns > 20


def test_text_of_as_many_bytes_as_may_fit_is_tokenized_and_one_more_is_refused(limited: PromptTokenizer) -> None:
    assert limited.limit is not None
    assert limited.limit.max_bytes == MAX_BYTES
    fits = LONGEST_TOKEN * (MAX_SEQ_LEN - 1)
    assert len(fits.encode()) == MAX_BYTES
    assert limited.encode(fits, add_special_tokens=False).size == MAX_SEQ_LEN - 1
    with pytest.raises(RequestError) as caught:
        limited.encode_bytes(b"\xff" * (MAX_BYTES + 1))  # not even decoded
    assert caught.value.facts == {"field": "text_input", "value": MAX_BYTES + 1, "max": MAX_BYTES}
    assert caught.value.message == (
        f"text_input has {MAX_BYTES + 1} bytes; send at most {MAX_BYTES}: prompt and output together may have "
        f"{MAX_SEQ_LEN} tokens, and a token of this model stands for {LONGEST} bytes at most"
    )


def test_a_limit_that_is_assumed_says_so() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, "?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PromptTokenizer(words, add_special_tokens=False, max_seq_len=11)
    assert tokenizer.encode("x" * 2560).tolist() == [1]
    with pytest.raises(RequestError, match="is taken to stand for 256 bytes at most, for its tokenizer sets no bound"):
        tokenizer.encode("x" * 2561)


def test_text_with_too_many_tokens_is_refused_by_its_beginning() -> None:
    parts: list[int] = []

    class Watched:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self._tokenizer = tokenizer

        def __getattr__(self, name: str) -> object:
            return getattr(self._tokenizer, name)

        def encode_batch(self, texts: list[str], **more: object) -> object:
            parts.extend(map(len, texts))
            return self._tokenizer.encode_batch(texts, **more)

        def encode_batch_fast(self, texts: list[str], **_: object) -> object:
            raise AssertionError(f"all of it was tokenized: {len(texts[0])}")

    tokenizer = PromptTokenizer(
        Tokenizer.from_file(str(TOKENIZER / "tokenizer.json")), add_special_tokens=True, max_seq_len=3000
    )
    tokenizer._tokenizer = Watched(tokenizer._tokenizer)
    with pytest.raises(RequestError) as caught:
        tokenizer.encode(SENTENCE * 1000)
    assert parts == [8 * 3000]
    assert caught.value.facts["field"] == "text_input"
    assert caught.value.facts["max"] == 2999
    assert "or more, but prompt and output together may have 3000; shorten it" in caught.value.message


@pytest.mark.parametrize("num_sentences", range(700, 760, 7))
def test_a_long_text_is_refused_only_where_it_has_too_many_tokens(num_sentences: int) -> None:
    text = SENTENCE * num_sentences
    num_tokens = PromptTokenizer.from_spec(SPEC).encode(text).size
    assert PromptTokenizer.from_spec(SPEC, max_seq_len=num_tokens + 1).encode(text).size == num_tokens
    with pytest.raises(RequestError, match=f"text_input has {num_tokens} tokens or more"):
        PromptTokenizer.from_spec(SPEC, max_seq_len=num_tokens).encode(text)


@pytest.mark.parametrize(
    ("tensors", "field"),
    [
        pytest.param({"QUERY": strings(b"a" * (MAX_BYTES + 1))}, "text_input", id="prompt"),
        pytest.param({"DECODER_QUERY": strings(b"a" * (MAX_BYTES + 1))}, "decoder_text_input", id="decoder"),
        pytest.param({"BAD_WORDS_DICT": strings(b"a" * 5000)}, "bad_words", id="bad word"),
        pytest.param({"BAD_WORDS_DICT": strings(b"fine", b"a" * 1001)}, "bad_words", id="bad word of some characters"),
        pytest.param({"STOP_WORDS_DICT": strings(b"a" * 5000)}, "stop_words", id="stop word"),
        pytest.param(
            {"EMBEDDING_BIAS_WORDS": strings(b"a" * 5000), "EMBEDDING_BIAS_WEIGHTS": np.ones((1, 1), np.float32)},
            "embedding_bias_words",
            id="biased word",
        ),
        pytest.param(
            {
                "EMBEDDING_BIAS_WORDS": strings(*[b"a"] * 5000),
                "EMBEDDING_BIAS_WEIGHTS": np.ones((1, 5000), np.float32),
            },
            "embedding_bias_words",
            id="more biased words than tokens",
        ),
    ],
)
def test_each_text_that_is_tokenized_has_its_limit(
    limited: PromptTokenizer, tensors: dict[str, npt.NDArray[np.generic]], field: str
) -> None:
    with pytest.raises(RequestError, match="send at most") as caught:
        PromptStep(limited).prepare({"QUERY": strings(b"hello"), **LENGTH, **tensors})
    assert caught.value.facts["field"] == field
    assert "max" in caught.value.facts


def test_one_prompt_of_a_batch_that_is_too_long_is_named(limited: PromptTokenizer) -> None:
    texts = np.array([[b"hello"], [b"a" * (MAX_BYTES + 1)]], dtype=np.object_)
    lengths = np.array([[1], [1]], dtype=np.int32)
    with pytest.raises(RequestError, match="text_input has") as caught:
        PromptStep(limited).prepare({"QUERY": texts, "REQUEST_OUTPUT_LEN": lengths})
    assert caught.value.facts["batch_index"] == 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(
            lambda: json.dumps([{"role": "user", "content": "a" * (MAX_BYTES + 1)}]),
            "bytes; send at most",
            id="content",
        ),
        pytest.param(
            lambda: json.dumps([{"role": "user", "content": ""}] * MAX_SEQ_LEN), "are 1000; send at", id="many"
        ),
        pytest.param(lambda: "[" + " " * 20 * MAX_BYTES + "]", "bytes of JSON; send at most", id="white space"),
        pytest.param(
            lambda: json.dumps([{"role": "user", "content": "<|eos|>" * MAX_SEQ_LEN}]),
            "or more, but",
            id="tokens' texts",
        ),
        pytest.param(lambda: json.dumps([{"role": "user", "content": SENTENCE * 300}]), "or more, but", id="tokens"),
    ],
)
def test_messages_that_cannot_fit_are_refused_before_they_are_rendered(
    chat: ChatPrompt, raw: Callable[[], str], words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        chat.encode(raw().encode())
    assert caught.value.facts["field"] == "messages"
    assert "max" in caught.value.facts


def test_a_key_within_a_message_is_no_message(chat: ChatPrompt) -> None:
    content = '"role"' * 100
    assert chat.encode(json.dumps([{"role": "user", "content": content}]).encode()).size > 100
