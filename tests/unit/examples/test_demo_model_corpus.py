# SPDX-License-Identifier: Apache-2.0
"""The demo model's corpus: deterministic, and nothing that is evaluated is ever trained on."""

import re
import sys
from functools import cache
from itertools import islice

import pytest

from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

DEMO_MODEL = CODE_ROOT / "examples" / "demo_model"
sys.path.insert(0, str(DEMO_MODEL))

from corpus import CHAT_FRACTION, FIRST_MIX, training_documents  # noqa: E402
from document import USER, Document  # noqa: E402
from facts import held_out_facts, training_facts  # noqa: E402
from languages import LANGUAGES, held_out_sentences  # noqa: E402
from sums import HELD_OUT_PAIRS, TWO_DIGIT_PAIRS, WORDINGS, is_held_out  # noqa: E402

SEED = 2026

NUMBER = re.compile(r"\d+")


@cache
def sample() -> list[Document]:
    return list(islice(training_documents(SEED), 30_000))


@cache
def everything() -> list[Document]:
    return sample() + list(islice(training_documents(SEED + 1, FIRST_MIX), 20_000))


def test_the_same_seed_gives_the_same_documents() -> None:
    assert list(islice(training_documents(SEED), 2_000)) == sample()[:2_000]


def test_another_seed_gives_other_documents() -> None:
    assert list(islice(training_documents(SEED + 1), 2_000)) != sample()[:2_000]


def test_a_tenth_of_the_two_digit_pairs_is_held_out() -> None:
    assert len(TWO_DIGIT_PAIRS) == 8_100
    assert len(HELD_OUT_PAIRS) == 781  # those of the committed model


def test_a_pair_and_its_mirror_share_one_fate() -> None:
    assert all(is_held_out(a, b) == is_held_out(b, a) for a, b in TWO_DIGIT_PAIRS)


def test_no_held_out_pair_is_in_the_training_text_in_any_wording() -> None:
    held_out = set(HELD_OUT_PAIRS)
    num_sums = 0
    for document in everything():
        numbers = [int(found) for found in NUMBER.findall(document.prompt + document.completion)]
        if document.kind == "sum":
            # The operands once (bare) or twice (asked), then the total.
            assert len(numbers) in (3, 5), document
            assert not {(numbers[0], numbers[1]), (numbers[-3], numbers[-2])} & held_out, document
            num_sums += 1
        else:
            assert max(numbers, default=0) < 10, document
    assert num_sums > 10_000


def test_every_sum_is_right() -> None:
    for document in everything():
        if document.kind == "sum":
            *operands, total = (int(found) for found in NUMBER.findall(document.prompt + document.completion))
            assert total == operands[-1] + operands[-2], document


def test_every_sum_wording_of_every_language_is_trained_on() -> None:
    languages = {document.language for document in sample() if document.kind == "sum"}
    assert languages == set(WORDINGS)


def _question(prompt: str) -> str:
    """Return the prompt without chat markup."""
    return prompt.rpartition(USER)[2].partition("<|")[0]


def test_no_held_out_wording_is_in_the_training_text() -> None:
    held_out = {document.prompt for document in held_out_facts()}
    assert len(held_out) > 500
    assert held_out.isdisjoint(document.prompt for document in training_facts())
    trained = "\n".join({_question(document.prompt) for document in everything()})
    assert not [prompt for prompt in held_out if prompt in trained]


def test_every_held_out_fact_is_taught_in_another_wording() -> None:
    taught = {document.completion for document in training_facts()}
    assert all(document.completion in taught for document in held_out_facts())


def test_a_question_has_one_answer_only() -> None:
    answers: dict[str, str] = {}
    for document in [*training_facts(), *held_out_facts()]:
        assert answers.setdefault(document.prompt, document.completion) == document.completion


def test_no_held_out_sentence_is_in_the_training_text() -> None:
    for table in LANGUAGES:
        text = "\n".join(document.completion for document in everything() if document.language == table.code)
        sentences = held_out_sentences(table)
        assert len(sentences) >= 50, table.code
        assert not [sentence for sentence in sentences if sentence in text], table.code


def test_every_language_is_present() -> None:
    counts = {table.code: 0 for table in LANGUAGES}
    for document in sample():
        if document.kind in ("sentence", "question"):
            counts[document.language] += 1
    assert {"zh", "ja", "ar", "hi", "emoji"} <= set(counts)
    assert min(counts.values()) > 200


def test_raw_and_chat_forms_are_both_trained_on() -> None:
    asked = [document for document in sample() if document.prompt]
    share = sum(USER in document.prompt for document in asked) / len(asked)
    assert abs(share - CHAT_FRACTION) < 0.02


def test_some_stories_are_long() -> None:
    num_words = [len(document.completion.split()) for document in sample() if document.kind == "story"]
    assert max(num_words) > 180
    assert min(num_words) < 100
