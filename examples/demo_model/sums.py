# SPDX-License-Identifier: Apache-2.0
"""Sums as text, and the two-digit pairs that no training text may contain."""

import hashlib
import random

from document import Document

HELD_OUT_FRACTION = 0.1
SPLIT_SEED = 2026
ONE_DIGIT_FRACTION = 0.1
SKEWED_FRACTION = 0.5
BARE_FRACTION = 0.6
_UNIT_WEIGHTS = [2.0**-units for units in range(10)]

# Every prompt but the bare one is answered by the sum written out in one and the same way, so that
# one skill serves all wordings and all languages.
WORDINGS: dict[str, tuple[str, ...]] = {
    "en": (
        "What is {a} + {b}?",
        "What is {a} plus {b}?",
        "How much is {a} + {b}?",
        "Calculate {a} + {b}.",
        "Add {a} and {b}.",
        "What is the sum of {a} and {b}?",
        "Please add {a} and {b}.",
        "{a} + {b} is what?",
    ),
    "zh": ("{a} + {b} 等于多少？",),
    "ja": ("{a} + {b} はいくつですか？",),
    "ar": ("كم يساوي {a} + {b}؟",),
    "hi": ("{a} + {b} कितना होता है?",),
    "es": ("¿Cuánto es {a} + {b}?",),
    "fr": ("Combien font {a} + {b} ?",),
    "de": ("Was ist {a} + {b}?",),
}
BARE = "{a} + {b} ="


def is_held_out(a: int, b: int) -> bool:
    """Return whether the pair, in either order, belongs to the evaluation only.

    Both orders share one fate: 23 + 45 is no test of addition after 45 + 23 was seen.
    """
    if min(a, b) < 10:
        return False
    key = f"{SPLIT_SEED}:{min(a, b)}+{max(a, b)}".encode()
    return hashlib.sha256(key).digest()[0] < 256 * HELD_OUT_FRACTION


TWO_DIGIT_PAIRS = [(a, b) for a in range(10, 100) for b in range(10, 100)]
HELD_OUT_PAIRS = [pair for pair in TWO_DIGIT_PAIRS if is_held_out(*pair)]
TRAINING_PAIRS = [pair for pair in TWO_DIGIT_PAIRS if not is_held_out(*pair)]


def bare_sum(a: int, b: int) -> Document:
    """Return the document of `23 + 45 =` -> ` 68`."""
    return Document("sum", "en", BARE.format(a=a, b=b), f" {a + b}")


def asked_sum(a: int, b: int, *, language: str = "en", wording: int = 0) -> Document:
    """Return the document of `What is 23 + 45?` -> ` 23 + 45 = 68.`."""
    prompt = WORDINGS[language][wording].format(a=a, b=b)
    return Document("sum", language, prompt, f" {a} + {b} = {a + b}.")


def _skewed_pair(rng: random.Random) -> tuple[int, int]:
    """Return a training pair in which one operand's units are small: half of the time 0, a quarter 1, and so on."""
    while True:
        a = rng.randrange(10, 100)
        b = 10 * rng.randrange(1, 10) + rng.choices(range(10), _UNIT_WEIGHTS)[0]
        a, b = (a, b) if rng.random() < 0.5 else (b, a)
        if not is_held_out(a, b):
            return a, b


def _training_pair(rng: random.Random) -> tuple[int, int]:
    """Return mostly two two-digit numbers, and of these more than half skewed.

    When both units are uniform, neither alone says anything about the answer's, so there is no gradient to
    start from and training may stay for a long while where the tens are right and the units are guessed.
    Skewed units give each digit something to say.
    """
    draw = rng.random()
    if draw < ONE_DIGIT_FRACTION:
        a, b = rng.randrange(10), rng.randrange(rng.choice((10, 10, 100)))
        return (a, b) if rng.random() < 0.5 else (b, a)
    return _skewed_pair(rng) if draw < ONE_DIGIT_FRACTION + SKEWED_FRACTION else rng.choice(TRAINING_PAIRS)


def random_sum(rng: random.Random) -> Document:
    """Return a training sum; more than half are bare, since those are short and teach as much."""
    a, b = _training_pair(rng)
    if rng.random() < BARE_FRACTION:
        return bare_sum(a, b)
    language = "en" if rng.random() < 0.8 else rng.choice([code for code in WORDINGS if code != "en"])
    return asked_sum(a, b, language=language, wording=rng.randrange(len(WORDINGS[language])))


def held_out_sums() -> list[Document]:
    """Return every held-out pair once bare and once asked."""
    return [form(a, b) for a, b in HELD_OUT_PAIRS for form in (bare_sum, asked_sum)]
