# SPDX-License-Identifier: Apache-2.0
"""What one item tells about a release and its base: the amounts that figures are sums of."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from build_engines.evaluation.tasks import Item, Kind

_IMPOSSIBLE = -100.0  # nats


class Observation(NamedTuple):
    """One item's part in one figure, which is sum(amounts) / sum(weights)."""

    task: str
    group: str
    metric: str
    amount: float
    weight: float = 1.0
    candidate: float | None = None  # the release's own amount, where the figure compares two
    baseline: float | None = None


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """What an item of a kind can tell about."""
    match kind:
        case Kind.TEXT:
            return ("perplexity_ratio", "kl")
        case Kind.OPEN:
            return ("agreement", "exact_match")
    return ("agreement", "exact_match", "accuracy_drop")


def observe_text(
    item: Item, base: NDArray[np.float32], candidate: NDArray[np.float32], ids: NDArray[np.int64]
) -> list[Observation]:
    """How likely the text is to both, and how far apart their predictions are.

    Args:
        item: of kind `text`.
        base: [num_tokens, vocab], logarithms of the probabilities at each place of the text.
        candidate: the same of the release.
        ids: [num_tokens], the tokens that stand there.
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
    """What is no number counts as impossible: a broken model is a bad one, and can be told so in finite figures."""
    return np.nan_to_num(log_probs, nan=_IMPOSSIBLE, neginf=_IMPOSSIBLE)


def observe_answer(
    item: Item, base: Sequence[int], candidate: Sequence[int], texts: tuple[str, str]
) -> list[Observation]:
    """Whether both are right, and how long they say the same.

    Args:
        item: of any kind but `text`.
        base: its greedy tokens, the end token included.
        candidate: the release's.
        texts: what both say, without the end token: (base, candidate).
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
    """Tokens until the first difference."""
    for index, (theirs, ours) in enumerate(zip(base, candidate, strict=False)):
        if theirs != ours:
            return index
    return min(len(base), len(candidate))


def is_right(item: Item, text: str) -> bool:
    """Whether an answer is what the item expects."""
    return text.startswith(item.expected) if item.kind is Kind.NEEDLE else text == item.expected


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each row."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide.astype(np.float32)
