# SPDX-License-Identifier: Apache-2.0
"""Sentences and capitals in the languages of `languages.yaml`; a twentieth of the sentences is never trained on."""

import hashlib
import itertools
import random
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter

import msgspec
from document import Document

HELD_OUT_FRACTION = 0.05
NUM_EVALUATED = 120
CAPITAL_FRACTION = 0.55
QUESTION_FRACTION = 0.06
# How often a language's capitals are asked. The more tokens a name is spelled in, the longer it takes to learn.
CAPITAL_WEIGHTS = {"hi": 5.0, "ja": 4.0, "zh": 2.5, "ar": 2.5, "es": 1.0, "fr": 1.0, "de": 1.0}


@dataclass(frozen=True)
class LanguageTable:
    """A sentence grammar of one language, and its capitals by country; `languages.yaml` says what each field is."""

    code: str
    space: str
    patterns: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    asks: dict[str, str]
    capital_questions: tuple[str, ...] = ()
    capital_answer: str = ""
    capitals: dict[str, str] = field(default_factory=dict)


_FILE = Path(__file__).with_name("languages.yaml")
LANGUAGES = msgspec.yaml.decode(_FILE.read_bytes(), type=tuple[LanguageTable, ...])


def _is_held_out(sentence: str) -> bool:
    return hashlib.sha256(b"2026:" + sentence.encode()).digest()[0] < 256 * HELD_OUT_FRACTION


def _slot_names(pattern: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(pattern) if name]


def _capitalised(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def random_sentence(table: LanguageTable, rng: random.Random) -> str:
    """Return a sentence that is not held out."""
    while True:
        pattern = rng.choice(table.patterns)
        chosen = {name: rng.choice(table.slots[name]) for name in _slot_names(pattern)}
        sentence = _capitalised(pattern.format(**chosen))
        if not _is_held_out(sentence):
            return sentence


def held_out_sentences(table: LanguageTable) -> list[str]:
    """Return a fixed choice of at most `NUM_EVALUATED` sentences that training never sees."""
    found: list[str] = []
    for pattern in table.patterns:
        names = _slot_names(pattern)
        for words in itertools.product(*(table.slots[name] for name in names)):
            sentence = _capitalised(pattern.format(**dict(zip(names, words, strict=True))))
            if _is_held_out(sentence):
                found.append(sentence)
    return random.Random(7).sample(found, min(NUM_EVALUATED, len(found)))


def _capital(table: LanguageTable, pair: tuple[str, str], question: str) -> Document:
    country, city = pair
    answer = table.space + table.capital_answer.format(country=country, city=city)
    return Document("question", table.code, question.format(country=country, city=city), answer)


def capital_documents(table: LanguageTable) -> list[Document]:
    """Return every capital in every wording; training uses each."""
    return [_capital(table, pair, question) for pair in table.capitals.items() for question in table.capital_questions]


def random_language_document(rng: random.Random) -> Document:
    """Return one to three sentences, a capital, or a small question, in a random language."""
    draw = rng.random()
    if draw < CAPITAL_FRACTION:
        code = rng.choices(list(CAPITAL_WEIGHTS), list(CAPITAL_WEIGHTS.values()))[0]
        table = next(table for table in LANGUAGES if table.code == code)
        return _capital(table, rng.choice(list(table.capitals.items())), rng.choice(table.capital_questions))
    table = rng.choice(LANGUAGES)
    if draw < CAPITAL_FRACTION + QUESTION_FRACTION:
        question, answer = rng.choice(list(table.asks.items()))
        return Document("question", table.code, question, table.space + answer)
    sentences = [random_sentence(table, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    return Document("sentence", table.code, "", table.space.join(sentences))
