# SPDX-License-Identifier: Apache-2.0
"""Questions about the facts of `facts.yaml` in many wordings, some of them kept out of training for the evaluation."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from document import Document

# Said around a question now and then in training, so that the model is not thrown by small talk.
OPENERS = ("Hello! ", "Hi! ", "Hey, ", "Question: ", "Please answer: ", "One more question. ")
CLOSERS = (" Thanks!", " Thank you.", " Please answer.")
UNFINISHED_FRACTION = 0.1
VARIANT_FRACTION = 0.3
_IMPERATIVES = ("Name", "Tell", "Show", "Give", "Print", "Count", "Say", "Send", "Find")


@dataclass(frozen=True)
class FactKind:
    """Facts of one kind with the ways to ask for them; `facts.yaml` says what each field is."""

    name: str
    fields: tuple[str, str]
    rows: dict[str, str]
    answer: str
    wordings: tuple[str, ...]
    held_out: tuple[str, ...]
    unfinished: tuple[str, ...] = ()


KINDS = msgspec.yaml.decode(Path(__file__).with_name("facts.yaml").read_bytes(), type=tuple[FactKind, ...])


def _ask(kind: FactKind, row: tuple[str, str], wording: str) -> Document:
    fields = dict(zip(kind.fields, row, strict=True))
    if "q" in fields:
        fields["Q"] = fields["q"][0].upper() + fields["q"][1:]
    answer = kind.answer.format(**fields)
    answer = answer[0].upper() + answer[1:]
    prompt = wording.format(**fields)
    prompt = prompt[0].upper() + prompt[1:]
    if wording in kind.unfinished:
        # The prompt is the beginning of the answer itself: only the rest is generated.
        if not answer.startswith(prompt):
            raise ValueError(f"unfinished wording {wording!r} does not begin the answer {answer!r}")
        return Document("fact", "en", prompt, answer.removeprefix(prompt))
    return Document("fact", "en", prompt, " " + answer)


def variants(prompt: str) -> list[str]:
    """Return the question with small talk around it, or as a request that begins with `Please`."""
    polite = [f"Please {prompt[0].lower()}{prompt[1:]}"] if prompt.startswith(_IMPERATIVES) else []
    return polite * 4 + [opener + prompt for opener in OPENERS] + [prompt + closer for closer in CLOSERS]


def random_fact(rng: random.Random) -> Document:
    """Return a fact in a training wording; kinds are drawn by their number of rows, so facts are equally frequent."""
    kind = rng.choices(KINDS, weights=[len(kind.rows) for kind in KINDS])[0]
    row = rng.choice(list(kind.rows.items()))
    if rng.random() < UNFINISHED_FRACTION:
        return _ask(kind, row, rng.choice(kind.unfinished or kind.wordings))
    document = _ask(kind, row, rng.choice(kind.wordings))
    if rng.random() < VARIANT_FRACTION:
        return replace(document, prompt=rng.choice(variants(document.prompt)))
    return document


def training_facts() -> Iterator[Document]:
    """Yield every fact in every training wording, and every question with everything that may be said around it."""
    for kind in KINDS:
        for row in kind.rows.items():
            for wording in kind.unfinished:
                yield _ask(kind, row, wording)
            for wording in kind.wordings:
                document = _ask(kind, row, wording)
                yield document
                yield from (replace(document, prompt=prompt) for prompt in variants(document.prompt))


def held_out_facts() -> list[Document]:
    """Return every fact in every wording that training never uses."""
    return [_ask(kind, row, wording) for kind in KINDS for row in kind.rows.items() for wording in kind.held_out]
