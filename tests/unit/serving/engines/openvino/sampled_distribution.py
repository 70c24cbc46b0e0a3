# SPDX-License-Identifier: Apache-2.0
"""A test of whether two engines sample from one distribution: short outputs of one prompt, and a chi-square."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams

_MIN_EXPECTED = 5.0  # of a cell, in either sample; rarer values are counted together


def sampled_outputs(
    engine: Engine, prompt: list[int], count: int, *, first_seed: int | None, num_tokens: int, temperature: float
) -> tuple[list[tuple[int, ...]], int]:
    """Return outputs from the whole vocabulary, and how many of their tokens were accepted drafts.

    As many requests run at a time as the engine takes.

    Args:
        prompt: of every request.
        count: number of outputs.
        first_seed: the others follow; None: the engine's own choice.
        num_tokens: of each output.
        temperature: of the sampling.
    """
    outputs: defaultdict[int, list[int]] = defaultdict(list)
    num_accepted = 0
    for key in range(1, count + 1):
        seed = None if first_seed is None else first_seed + key
        sampling = SamplingParams(max_tokens=num_tokens, end_id=-1, temperature=temperature, top_p=1.0, seed=seed)
        engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            outputs[chunk.key] += chunk.token_ids
            if chunk.perf is not None:
                num_accepted += chunk.perf.total_accepted_draft_tokens or 0
    return [tuple(outputs[key]) for key in range(1, count + 1)], num_accepted


def deviation(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Return how unlikely it is that two samples come from one distribution: their chi-square in standard deviations.

    Source: Wilson and Hilferty (1931), the cube root of chi-square over its degrees of freedom is nearly normal.
    """
    cells = _cells(Counter(one), Counter(other))
    num_degrees = len(cells) - 1
    assert num_degrees > 0, "one value alone tells nothing"
    statistic = _chi_square(cells, len(one), len(other))
    spread = 2 / (9 * num_degrees)
    return (math.cbrt(statistic / num_degrees) - (1 - spread)) / math.sqrt(spread)


def _cells(one: Counter[Hashable], other: Counter[Hashable]) -> list[tuple[int, int]]:
    smaller_share = min(one.total(), other.total()) / (one.total() + other.total())
    cells, rest = [], (0, 0)
    for value in one.keys() | other.keys():
        counts = (one[value], other[value])
        if sum(counts) * smaller_share >= _MIN_EXPECTED:
            cells.append(counts)
        else:
            rest = (rest[0] + counts[0], rest[1] + counts[1])
    return [*cells, rest] if sum(rest) * smaller_share >= _MIN_EXPECTED else cells


def _chi_square(cells: list[tuple[int, int]], num_one: int, num_other: int) -> float:
    statistic = 0.0
    for counts in cells:
        for count, size in zip(counts, (num_one, num_other), strict=True):
            expected = sum(counts) * size / (num_one + num_other)
            statistic += (count - expected) ** 2 / expected
    return statistic
