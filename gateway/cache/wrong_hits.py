# SPDX-License-Identifier: Apache-2.0
"""The hits and the wrong hits of a semantic cache on pairs of questions that somebody has labelled, by similarity."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from trireme.base.errors import SpecError
from trireme.base.known_types import known

_CONFIDENCE = 0.95
_MOST_LINES = 1_000_000


class LabelledPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two questions, and whether the answer to the one is an answer to the other.

    Attributes:
        kind: of the pair, for a table by kinds.
    """

    question: str
    other: str
    has_same_answer: bool
    kind: str = ""


class Level(msgspec.Struct, frozen=True):
    """The figures of one value of `least_similarity`.

    Attributes:
        hits: pairs that are at least so alike: the other question would get the answer to the first.
        wrong_hits: of these, pairs with different answers.
        wrong_share: of the hits; None: there are none.
        wrong_share_interval: of 95 %, for other pairs of the same kind and mix (Clopper and Pearson).
        found_share: of the pairs with the same answer, those that are hits; None: there are none.
        wrong_share_of_different: of the pairs with different answers, those that are hits; None: there are none.
    """

    least_similarity: float
    hits: int
    wrong_hits: int
    wrong_share: float | None
    wrong_share_interval: tuple[float, float] | None
    found_share: float | None
    wrong_share_of_different: float | None


def read_pairs(path: Path) -> list[LabelledPair]:
    """Return the pairs of a file: a JSON object in each line.

    Raises:
        SpecError: the file cannot be read, or a line is no pair.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}", file=path) from exc
    pairs = []
    for number, line in enumerate(lines[:_MOST_LINES], 1):
        if not line.strip():
            continue
        try:
            pair = msgspec.json.decode(line, type=known(LabelledPair))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise SpecError(
                f'{path}:{number}: {exc}; a line is {{"question": "...", "other": "...", "has_same_answer": true}}',
                file=path,
                line=number,
            ) from exc
        if not pair.question or not pair.other:
            raise SpecError(f"{path}:{number}: a question is empty; leave the line out", file=path, line=number)
        pairs.append(pair)
    if not pairs:
        raise SpecError(f"{path} holds no pairs", file=path)
    return pairs


def similarities(questions: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine of each pair of vectors. Args: each ``[num_pairs, width]``."""
    lengths = np.linalg.norm(questions, axis=1) * np.linalg.norm(others, axis=1)
    products = np.einsum("ij,ij->i", questions.astype(np.float64), others.astype(np.float64))
    return np.asarray(products / np.maximum(lengths, 1e-12))


def levels(
    found: NDArray[np.float64], pairs: Sequence[LabelledPair], least_similarities: Iterable[float]
) -> list[Level]:
    """Return the figures of each value. Args: `found`: the similarity of each pair."""
    is_same = np.array([pair.has_same_answer for pair in pairs])
    num_same, num_different = int(is_same.sum()), int((~is_same).sum())
    figures = []
    for value in least_similarities:
        is_hit = found >= value
        hits, wrong = int(is_hit.sum()), int((is_hit & ~is_same).sum())
        figures.append(
            Level(
                least_similarity=value,
                hits=hits,
                wrong_hits=wrong,
                wrong_share=_share(wrong, hits),
                wrong_share_interval=None if not hits else _interval(wrong, hits),
                found_share=_share(hits - wrong, num_same),
                wrong_share_of_different=_share(wrong, num_different),
            )
        )
    return figures


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _interval(count: int, total: int) -> tuple[float, float]:
    """Return the exact interval of a share, by Clopper and Pearson."""
    from scipy.stats import beta  # noqa: PLC0415 - half a second, for this report alone

    tail = (1 - _CONFIDENCE) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - tail, count + 1, total - count))
    return low, high
