# SPDX-License-Identifier: Apache-2.0
"""An endless training text of stories, facts, sums and languages, which depends on a seed only."""

import argparse
import random
from collections.abc import Iterator, Mapping
from itertools import chain, islice

from document import SYSTEM_PROMPT, Document, as_chat
from facts import random_fact
from languages import random_language_document
from stories import random_story
from sums import random_sum

# Share of the documents, not of the tokens: a sum has about 19 tokens and a story about 170.
MIX = {"sum": 0.46, "fact": 0.31, "language": 0.19, "story": 0.04}
# Almost only sums at first: adding the units is learned at once or not at all, and sooner when
# nothing else competes for the gradient. The rest is easy and has time enough afterwards.
FIRST_MIX = {"sum": 0.94, "fact": 0.04, "language": 0.01, "story": 0.01}
NUM_FIRST_DOCUMENTS = 45_000
CHAT_FRACTION = 0.25
_MAKERS = {
    "sum": random_sum,
    "fact": random_fact,
    "language": random_language_document,
    "story": random_story,
}


def training_documents(seed: int, mix: Mapping[str, float] = MIX) -> Iterator[Document]:
    """Yield documents without end; nothing that is held out is ever among them."""
    rng = random.Random(seed)
    kinds, weights = list(mix), list(mix.values())
    while True:
        document = _MAKERS[rng.choices(kinds, weights)[0]](rng)
        if document.prompt and rng.random() < CHAT_FRACTION:
            yield as_chat(document, system=SYSTEM_PROMPT if rng.random() < 0.3 else None)
        else:
            yield document


def curriculum(seed: int) -> Iterator[Document]:
    """Yield the documents that the models are trained on, in order: `FIRST_MIX` for a while, then `MIX`."""
    first = islice(training_documents(seed + 1, FIRST_MIX), NUM_FIRST_DOCUMENTS)
    return chain(first, training_documents(seed))


def main() -> None:
    """Print training documents, to see what the model reads."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--count", type=int, default=40, help="number of documents to print")
    args = parser.parse_args()
    for document in islice(training_documents(args.seed), args.count):
        print(f"[{document.kind} {document.language}] {document.prompt!r} -> {document.completion!r}")


if __name__ == "__main__":
    main()
