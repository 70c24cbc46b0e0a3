# SPDX-License-Identifier: Apache-2.0
"""The evaluation of a release: it and its base get the same requests, and their answers are judged.

First come texts, with both models' logits; then answers, one engine after the other, so that no two are loaded at a
time. Both get the same requests in the same order: batches are alike, and differences come from the models.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from build_engines.evaluation.contestant import Contestant
from build_engines.evaluation.observations import Observation, metrics_of, observe_answer, observe_text
from build_engines.evaluation.tasks import Item, Kind
from build_engines.evaluation.verdict import Figure, figures_of, refuse_unmeasured, verdict_of, worst_of
from build_engines.recipes.recipe_parts import QualitySpec
from trireme.base.errors import SpecError

SEED = 2026
MAX_OPEN_TOKENS = 128
_SPARE_TOKENS = 4  # beyond the expected answer: an answer that goes on is wrong


class Evaluation(msgspec.Struct, frozen=True):
    """The results of one evaluation."""

    release: str
    base: str
    release_address: str | None
    base_address: str | None
    tasks_sha256: str
    num_items: int
    num_too_long: int  # items that do not fit into both contexts; left out
    seed: int
    computed_in: str | None  # OpenVINO's number format of multiplications here; None: the engine's own choice
    passed: bool | None  # None: the recipe has no limits
    worst: dict[str, Figure]
    figures: list[Figure]


Told = Callable[[str, int, int], None]  # the current work, how many are done, how many there are


def evaluate(
    release: Contestant,
    base: Contestant,
    items: Sequence[Item],
    quality: QualitySpec,
    *,
    tasks_sha256: str,
    told: Told = lambda *_: None,
) -> Evaluation:
    """Measure and judge a release against the base that it was made from.

    Raises:
        SpecError: the tokenizers differ, or the recipe limits what the items do not measure.
        ServerError: an engine failed.
    """
    if release.tokenizer.to_str() != base.tokenizer.to_str():
        raise SpecError(
            f"{release.name} and {base.name} have different tokenizers, so their tokens cannot be compared; name the "
            "base that the release was made from",
            field="against",
        )
    longest = min(release.spec.max_seq_len, base.spec.max_seq_len)
    fitting = [item for item in items if _num_tokens(item, base) <= longest]
    refuse_unmeasured({metric for item in fitting for metric in metrics_of(item.kind)}, quality)  # before any work
    observations = [*_observe_texts(release, base, fitting, told), *_observe_answers(release, base, fitting, told)]
    figures = figures_of(observations, quality, seed=SEED)
    return Evaluation(
        release=release.name,
        base=base.name,
        release_address=release.address,
        base_address=base.address,
        tasks_sha256=tasks_sha256,
        num_items=len(fitting),
        num_too_long=len(items) - len(fitting),
        seed=SEED,
        computed_in=release.computed_in,
        passed=verdict_of(figures),
        worst=worst_of(figures),
        figures=figures,
    )


def _room(item: Item, side: Contestant) -> int:
    """Return the most tokens that an answer may have."""
    return MAX_OPEN_TOKENS if item.kind is Kind.OPEN else len(side.text_ids(item.expected)) + _SPARE_TOKENS


def _num_tokens(item: Item, side: Contestant) -> int:
    return len(side.prompt_ids(item.prompt)) + _room(item, side)


def _observe_texts(release: Contestant, base: Contestant, items: Sequence[Item], told: Told) -> list[Observation]:
    texts = [item for item in items if item.kind is Kind.TEXT]
    if not texts:
        return []
    found: list[Observation] = []
    sides = [side.scorer() for side in (base, release)]
    try:
        if (theirs := sides[0]) is None or (ours := sides[1]) is None:
            return []
        for number, item in enumerate(texts, 1):
            prompt, text = base.prompt_ids(item.prompt), base.text_ids(item.expected)
            first = max(1, len(prompt))  # the first token with another before it
            ids = np.array(prompt + text, dtype=np.int64)
            scores = [log_probs(ids[:-1])[first - 1 :] for log_probs, _ in (theirs, ours)]
            if len(ids) > first:
                found += observe_text(item, scores[0], scores[1], ids[first:])
            told("texts", number, len(texts))
    finally:
        for side in sides:
            if side is not None:
                side[1]()
    return found


def _observe_answers(release: Contestant, base: Contestant, items: Sequence[Item], told: Told) -> list[Observation]:
    asked = [item for item in items if item.kind is not Kind.TEXT]
    prompts = [base.prompt_ids(item.prompt) for item in asked]
    rooms = [_room(item, base) for item in asked]
    if not asked:
        return []
    told("the base's answers", 0, 2)
    theirs = base.answers(prompts, rooms)
    told("the release's answers", 1, 2)
    ours = release.answers(prompts, rooms)
    told("answers", 2, 2)
    return [
        observation
        for item, their, our in zip(asked, theirs, ours, strict=True)
        for observation in observe_answer(item, their.token_ids, our.token_ids, (their.text, our.text))
    ]
