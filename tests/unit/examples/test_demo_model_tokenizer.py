# SPDX-License-Identifier: Apache-2.0
"""The committed tokenizer and files of the demo model; needs no torch."""

import json
import sys
from itertools import islice

import jinja2
import pytest
import tokenizers

from trireme.base.project_files import CODE_ROOT

DEMO_MODEL = CODE_ROOT / "examples" / "demo_model"
sys.path.insert(0, str(DEMO_MODEL))

from corpus import training_documents  # noqa: E402
from document import SPECIAL_TOKENS, SYSTEM_PROMPT, chat_prompt  # noqa: E402
from languages import LANGUAGES, LanguageTable, held_out_sentences  # noqa: E402

MAX_COMMITTED_BYTES = 24_000_000
TOKENIZER = tokenizers.Tokenizer.from_file(str(DEMO_MODEL / "target" / "tokenizer.json"))
CONFIG = json.loads((DEMO_MODEL / "target" / "tokenizer_config.json").read_text())


def _ids(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def test_the_vocabulary_has_4096_tokens_and_the_special_ones_come_first() -> None:
    assert TOKENIZER.get_vocab_size() == 4096
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


@pytest.mark.parametrize("table", LANGUAGES, ids=lambda table: table.code)
def test_held_out_sentences_survive_the_round_trip(table: LanguageTable) -> None:
    for sentence in held_out_sentences(table):
        assert TOKENIZER.decode(_ids(sentence)) == sentence


def test_training_documents_survive_the_round_trip() -> None:
    for document in islice(training_documents(5), 3_000):
        text = document.prompt + document.completion
        assert TOKENIZER.decode(_ids(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["\x00\x7f", "ᚠᛇᚻ ქართული", "tab\tnew\nline  two  spaces ", "é e\u0301 ﷽"])
def test_text_unlike_the_corpus_survives_too(text: str) -> None:
    assert TOKENIZER.decode(_ids(text)) == text


@pytest.mark.parametrize("code", ["zh", "ja", "ar", "hi", "emoji"])
def test_characters_span_tokens(code: str) -> None:
    table = next(table for table in LANGUAGES if table.code == code)
    characters = {c for sentence in held_out_sentences(table) for c in sentence if ord(c) >= 0x250}
    most = max(len(_ids(character)) for character in characters)
    # An Arabic letter has two bytes; of a Devanagari one's three, the first two are always the same and merged.
    assert most >= {"ar": 2, "hi": 2}.get(code, 3)


def test_one_emoji_of_several_code_points_spans_many_tokens() -> None:
    assert len(_ids("👨‍👩‍👧‍👦")) >= 16


def test_bos_is_added_only_when_special_tokens_are_asked_for() -> None:
    assert TOKENIZER.encode("Hello").ids == [TOKENIZER.token_to_id("<|bos|>"), *_ids("Hello")]


def test_digits_are_single_tokens() -> None:
    assert [
        token for token in TOKENIZER.encode("23 + 45 =", add_special_tokens=False).tokens if token.isdigit()
    ] == list("2345")


def test_the_chat_template_renders_what_training_saw() -> None:
    template = jinja2.Environment(autoescape=False).from_string(CONFIG["chat_template"])
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "What is 2 + 3?"},
    ]
    rendered = template.render(
        messages=messages,
        add_generation_prompt=True,
        bos_token=CONFIG["bos_token"],
        eos_token=CONFIG["eos_token"],
    )
    first = "<|bos|>" + chat_prompt("Hi!", system=SYSTEM_PROMPT)
    assert rendered == first + "Hello.<|eos|>" + chat_prompt("What is 2 + 3?")


def test_target_and_draft_share_the_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (DEMO_MODEL / "target" / name).read_bytes() == (DEMO_MODEL / "draft" / name).read_bytes()


def test_target_and_draft_differ_in_width_and_depth_and_divide_by_128() -> None:
    target, draft = (json.loads((DEMO_MODEL / name / "config.json").read_text()) for name in ("target", "draft"))
    assert target["hidden_size"] > draft["hidden_size"]
    assert target["num_hidden_layers"] > draft["num_hidden_layers"]
    for config in (target, draft):
        assert all(config[name] % 128 == 0 for name in ("hidden_size", "intermediate_size", "vocab_size"))
        assert config["tie_word_embeddings"]
        assert config["dtype"] == "bfloat16"


@pytest.mark.parametrize(("name", "millions"), [("target", 5), ("draft", 1)])
def test_the_checkpoint_holds_the_tied_embedding_once_and_in_bf16(name: str, millions: int) -> None:
    with (DEMO_MODEL / name / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    assert "model.embed_tokens.weight" in header
    assert "lm_head.weight" not in header
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}
    num_bytes = max(tensor["data_offsets"][1] for tensor in header.values())
    assert round(num_bytes / 2 / 1e6) == millions


def test_weights_and_exports_together_stay_under_24_mb() -> None:
    folders = [DEMO_MODEL / name for name in ("target", "draft", "openvino")]
    num_bytes = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    assert 15_000_000 < num_bytes < MAX_COMMITTED_BYTES
