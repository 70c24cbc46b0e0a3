# SPDX-License-Identifier: Apache-2.0
"""The writer of the demo releases' evaluation and calibration data: `tasks.jsonl`, `calibration.jsonl`.

`trireme evaluate` reads the first (the format is in `build_engines.evaluation.tasks`): held-out facts, sums and
sentences, capitals, stories to go on with, and names to find again in a long prompt. The second is of the kind that the
model was trained on; nothing held out is in it.
"""

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from corpus import training_documents
from document import EOS, Document
from facts import held_out_facts
from languages import LANGUAGES, capital_documents, held_out_sentences
from stories import ANIMALS, BOYS, GIRLS, PLACES, TRAITS, WEATHER, WISHES, write_story
from sums import HELD_OUT_PAIRS, WORDINGS, asked_sum, bare_sum
from tokenizers import Tokenizer

HERE = Path(__file__).parent
SEED = 987_654  # no training run uses it
NUM_FACTS, NUM_SUMS, NUM_SUMS_EACH, NUM_SENTENCES, NUM_STORIES, NUM_NEEDLES = 240, 120, 40, 40, 40, 20
CALIBRATION_SEED, NUM_CALIBRATION = 77, 128
LENGTHS = (64, 128, 256)  # tokens of a prompt; positions beyond 320 were never trained
DEPTHS = (0.0, 0.5, 0.9)  # where in the filler the name is told
_SURROUNDINGS = 50  # tokens of a needle's sentences and its question

Row = dict[str, str]


def _row(task: str, group: str, kind: str, prompt: str, expected: str = "") -> Row:
    return {"task": task, "group": group, "kind": kind, "prompt": prompt, "expected": expected}


def _exact(task: str, documents: Iterable[Document]) -> Iterator[Row]:
    for document in documents:
        yield _row(task, document.language, "exact", document.prompt, document.completion)


def _texts(rng: random.Random) -> Iterator[Row]:
    for number in range(NUM_STORIES):
        yield _row("sentences", "en", "text", "", write_story(rng, num_episodes=1 + number % 2) + EOS)
    for table in LANGUAGES:
        for sentence in held_out_sentences(table)[:NUM_SENTENCES]:
            yield _row("sentences", table.code, "text", "", sentence + EOS)


def _filler(rng: random.Random, tokenizer: Tokenizer, num_tokens: int) -> str:
    answers = [document.completion.strip() for document in held_out_facts() if len(document.completion) < 80]
    text = ""
    while len(tokenizer.encode(text).ids) < num_tokens:
        text = f"{text} {rng.choice(answers)}".strip()
    return text


def _needles(rng: random.Random, tokenizer: Tokenizer) -> Iterator[Row]:
    """Yield prompts in which a hero is named once, among facts, and that ask who comes home in the evening."""
    for length in LENGTHS:
        for depth in DEPTHS:
            for _ in range(NUM_NEEDLES):
                name = rng.choice(GIRLS + BOYS)
                they = "she" if name in GIRLS else "he"
                told = (
                    f"Once upon a time, there was a {rng.choice(TRAITS)} {rng.choice(ANIMALS)} named {name}. "
                    f"{name} lived {rng.choice(PLACES)} and wanted to find {rng.choice(WISHES)}. "
                    f"One day, {they} went for a walk. {rng.choice(WEATHER)}."
                )
                room = length - _SURROUNDINGS
                before, after = (_filler(rng, tokenizer, round(room * share)) for share in (depth, 1 - depth))
                prompt = " ".join(part for part in (before, told, after, "In the evening,") if part)
                yield _row("retrieval", f"{length} tokens, depth {depth:.0%}", "needle", prompt, f" {name}")


def tasks() -> Iterator[Row]:
    """Yield every item, in the file's order."""
    rng = random.Random(SEED)
    tokenizer = Tokenizer.from_file(str(HERE / "target" / "tokenizer.json"))
    yield from _exact("facts", rng.sample(held_out_facts(), NUM_FACTS))
    pairs = rng.sample(HELD_OUT_PAIRS, NUM_SUMS)
    yield from _exact("sums", (bare_sum(a, b) for a, b in pairs))
    yield from _exact("sums in words", (asked_sum(a, b) for a, b in pairs))
    for language in WORDINGS:
        if language != "en":
            chosen = rng.sample(HELD_OUT_PAIRS, NUM_SUMS_EACH)
            yield from _exact("sums in words", (asked_sum(a, b, language=language) for a, b in chosen))
    for table in LANGUAGES:
        yield from _exact("capitals", capital_documents(table))
    yield from _texts(rng)
    for animal in ANIMALS:
        yield _row("stories", "en", "open", f"Tell me a story about a {animal}.")
    yield from _needles(rng, tokenizer)


def calibration() -> Iterator[Row]:
    """Yield training documents, as they were read."""
    for document in islice(training_documents(CALIBRATION_SEED), NUM_CALIBRATION):
        yield {"text": document.prompt + document.completion + EOS}


def lines(rows: Iterable[Row]) -> str:
    """Return rows as JSON, a row a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    """Write both files."""
    for name, rows in (("tasks.jsonl", tasks()), ("calibration.jsonl", calibration())):
        (HERE / name).write_text(lines(rows), encoding="utf-8")
        print(f"{name}: {(HERE / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
