# SPDX-License-Identifier: Apache-2.0
"""The observations of one item on a release and its base: the amounts that figures are sums of."""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from build_engines.evaluation.tasks import Item, Kind

_IMPOSSIBLE = -100.0  # nats


class Observation(NamedTuple):
    """An item's part in one figure, which is sum(amounts) / sum(weights)."""

    task: str
    group: str
    metric: str
    amount: float
    weight: float = 1.0
    candidate: float | None = None  # the release's own amount, where the figure compares two
    baseline: float | None = None


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """Return the metrics that an item of a kind is measured by."""
    match kind:
        case Kind.TEXT:
            return ("perplexity_ratio", "kl")
        case Kind.OPEN:
            return ("agreement", "exact_match")
    return ("agreement", "exact_match", "accuracy_drop")


def observe_text(
    item: Item, base: NDArray[np.float32], candidate: NDArray[np.float32], ids: NDArray[np.int64]
) -> list[Observation]:
    """Return observations of how likely a text is to both models, and how far apart their predictions are.

    Args:
        item: an item of kind `text`.
        base: [num_tokens, vocab], the base's log probabilities at each place of the text.
        candidate: [num_tokens, vocab], the release's log probabilities.
        ids: [num_tokens], the tokens at these places.
    """
    places, base, candidate = np.arange(len(ids)), _known(base), _known(candidate)
    ours = float(-candidate[places, ids].sum(dtype=np.float64))
    theirs = float(-base[places, ids].sum(dtype=np.float64))
    divergence = float((np.exp(base.astype(np.float64)) * (base - candidate)).sum())
    where = (item.task, item.group)
    return [
        Observation(*where, "perplexity_ratio", ours - theirs, len(ids), ours, theirs),
        Observation(*where, "kl", max(0.0, divergence), len(ids)),
    ]


def _known(log_probs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log probabilities with NaN as impossible: a broken model is a bad one, in finite figures."""
    return np.nan_to_num(log_probs, nan=_IMPOSSIBLE, neginf=_IMPOSSIBLE)


def observe_answer(
    item: Item, base: Sequence[int], candidate: Sequence[int], texts: tuple[str, str]
) -> list[Observation]:
    """Return observations of whether both answers are right, and how long they are equal.

    Args:
        item: an item of any kind but `text`.
        base: the base's greedy tokens, the end token included.
        candidate: the release's greedy tokens, the end token included.
        texts: both answers without the end token: (base, candidate).
    """
    where, same = (item.task, item.group), num_equal(base, candidate)
    found = [
        Observation(*where, "agreement", same, max(1, len(base))),
        Observation(*where, "exact_match", float(list(base) == list(candidate))),
    ]
    if item.kind is not Kind.OPEN:
        theirs, ours = (float(is_right(item, text)) for text in texts)
        found.append(Observation(*where, "accuracy_drop", theirs - ours, 1.0, ours, theirs))
    return found


def num_equal(base: Sequence[int], candidate: Sequence[int]) -> int:
    """Return the number of tokens before the first difference."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(base, candidate, strict=False)))


def is_right(item: Item, text: str) -> bool:
    """Return whether an answer is the item's expected one."""
    return text.startswith(item.expected) if item.kind is Kind.NEEDLE else text == item.expected


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the log softmax of each row."""
    return np.asarray(special.log_softmax(logits.astype(np.float64), axis=-1), dtype=np.float32)
