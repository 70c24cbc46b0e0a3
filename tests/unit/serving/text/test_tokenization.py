# SPDX-License-Identifier: Apache-2.0
"""The token ids of prompts, and the errors for wrong prompts and tokenizer folders."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError, SpecError

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BOS, EOS, PAD = 256, 257, 258


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a byte-level tokenizer with its 256 bytes and three special tokens as ids; `<|bos|>` comes in front."""
    tokenizer = Tokenizer(models.BPE({character: token_id for token_id, character in enumerate(ALPHABET)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|pad|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def load(folder: Path, *, add_special_tokens: bool = True) -> PromptTokenizer:
    return PromptTokenizer.from_spec(TokenizerSpec(dir=folder, add_special_tokens=add_special_tokens))


def write_json(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def test_a_prompt_becomes_int32_ids_behind_the_begin_token(folder: Path) -> None:
    ids = load(folder).encode("Hi")
    assert ids.dtype == np.int32
    assert ids.tolist() == [BOS, ALPHABET.index("H"), ALPHABET.index("i")]


def test_the_begin_token_is_left_out_where_the_deployment_or_the_call_says_so(folder: Path) -> None:
    assert BOS not in load(folder, add_special_tokens=False).encode("Hi")
    assert BOS not in load(folder).encode("Hi", add_special_tokens=False)
    assert BOS in load(folder, add_special_tokens=False).encode("Hi", add_special_tokens=True)


def test_bytes_and_words_give_the_ids_of_the_text(folder: Path) -> None:
    tokenizer = load(folder)
    texts = ["你好 🙂", "a", "e\u0301"]
    for copies in (1, 5000):  # few are tokenized one after the other, many together
        for text, ids in zip(texts * copies, tokenizer.encode_words(texts * copies), strict=True):
            assert ids.dtype == np.int32
            assert [BOS, *ids.tolist()] == tokenizer.encode_bytes(text.encode()).tolist()


def test_a_special_token_typed_into_a_prompt_becomes_that_token_as_upstream(folder: Path) -> None:
    assert load(folder, add_special_tokens=False).encode("<|eos|>").tolist() == [EOS]


def test_truncation_and_padding_saved_with_the_tokenizer_do_not_touch_prompts(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16, pad_id=PAD, pad_token="<|pad|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    prompts = load(folder)
    assert len(prompts.encode("ten chars.")) == 11
    assert [len(ids) for ids in prompts.encode_words(["a", "ten chars."])] == [1, 10]


def test_many_threads_share_one_tokenizer(folder: Path) -> None:
    tokenizer = load(folder)
    texts = [f"text {number} 🙂" * number for number in range(1, 200)]
    expected = [tokenizer.encode(text).tolist() for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert [ids.tolist() for ids in pool.map(tokenizer.encode, texts)] == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda tokenizer: tokenizer.encode(""), "text_input is empty", id="empty"),
        pytest.param(lambda tokenizer: tokenizer.encode_bytes(b""), "text_input is empty", id="no bytes"),
        pytest.param(lambda tokenizer: tokenizer.encode_bytes(b"ab\xffc"), "not UTF-8 at byte 2", id="not UTF-8"),
        pytest.param(lambda tokenizer: tokenizer.encode("a\ud800"), "half a surrogate pair at character 1", id="half"),
    ],
)
def test_a_bad_prompt_is_refused_by_name(folder: Path, call: Callable[[PromptTokenizer], object], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        call(load(folder))
    assert caught.value.facts["field"] == "text_input"


def test_a_prompt_without_a_single_token_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"word": 0}, "word"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RequestError, match="text_input gives no tokens"):
        load(tmp_path).encode("   ")


def test_end_and_padding_ids_come_from_the_tokenizer_config_first(folder: Path) -> None:
    write_json(folder, "tokenizer_config.json", {"eos_token": {"content": "<|eos|>"}, "pad_token": "<|pad|>"})
    write_json(folder, "generation_config.json", {"eos_token_id": 7, "pad_token_id": 8})
    assert (load(folder).end_id, load(folder).pad_id) == (EOS, PAD)


def test_end_and_padding_ids_come_from_the_models_files_where_the_tokenizer_has_none(folder: Path) -> None:
    write_json(folder, "tokenizer_config.json", {"eos_token": None})
    write_json(folder, "generation_config.json", {"eos_token_id": [7, 9]})
    write_json(folder, "config.json", {"eos_token_id": 5, "pad_token_id": 8})
    assert (load(folder).end_id, load(folder).pad_id) == (7, 8)


def test_end_and_padding_ids_are_none_where_no_file_defines_them(folder: Path) -> None:
    assert (load(folder).end_id, load(folder).pad_id) == (None, None)


def test_the_vocabulary_counts_added_tokens(folder: Path) -> None:
    assert load(folder).vocab_size == 259


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("tokenizer.json", "{", "is no tokenizer", id="broken tokenizer"),
        pytest.param("tokenizer.json", '{"version": "1.0"}', "is no tokenizer", id="JSON, but no tokenizer"),
        pytest.param("tokenizer.json", b"\xff", "is no tokenizer", id="no text at all"),
        pytest.param("tokenizer_config.json", "{", "tokenizer_config.json is not JSON", id="broken configuration"),
        pytest.param("config.json", "[]", "config.json must hold a JSON object", id="another kind of JSON"),
        pytest.param(
            "tokenizer_config.json", '{"eos_token": "</s>"}', "eos_token '</s>' is not in", id="unknown token"
        ),
    ],
)
def test_a_broken_file_is_refused_by_name(folder: Path, name: str, content: str | bytes, words: str) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecError, match=words) as caught:
        load(folder)
    assert "save_pretrained" in caught.value.message


def test_a_missing_folder_or_file_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no tokenizer.json; save the model's tokenizer there"):
        load(tmp_path)
    with pytest.raises(SpecError, match=r"nowhere does not exist; save the model's tokenizer there"):
        load(tmp_path / "nowhere")
