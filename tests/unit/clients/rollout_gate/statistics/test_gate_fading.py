# SPDX-License-Identifier: Apache-2.0
"""The correlation of requests near in time: the model against simulation, and what is made of it."""

import numpy as np
import pytest

from clients.rollout_gate.statistics.fading import (
    EXCESSES,
    FADES,
    PRIOR_OF_MEANS,
    Differences,
    Times,
    allowed,
    chance,
    inflations,
    sizes,
    squares_expected,
)
from clients.rollout_gate.statistics.mean_test import Floats

FADE_S = 80.0
_LOOK_S = 10.0


def times(num: int) -> Times:
    return Times(np.array(_LOOK_S * (num - 1)), np.array(float(num)))


def fluctuations(rollouts: int, num: int, excess: float, seed: int) -> Floats:
    """Return [rollouts, num] means of 10 s: of variance 1 by themselves, and a common part that fades.

    The steps of the common part are 1 s.
    """
    rng, kept = np.random.default_rng(seed), np.exp(-1 / FADE_S)
    state, found = rng.standard_normal(rollouts), np.empty((rollouts, num))
    size = np.sqrt(excess * _LOOK_S / (2 * FADE_S))  # so that the long-run variance is `excess` times that of the rest
    for block in range(num):
        total = np.zeros(rollouts)
        for _ in range(10):
            state = kept * state + np.sqrt(1 - kept**2) * rng.standard_normal(rollouts)
            total += state
        found[:, block] = size * total / 10 + rng.standard_normal(rollouts)
    return found


def pairs(blocks: Floats) -> tuple[Floats, Floats]:
    num, squares = [], []
    weight = 1.0
    while blocks.shape[1] > 1:
        whole = blocks.shape[1] // 2 * 2
        first, second = blocks[:, 0:whole:2], blocks[:, 1:whole:2]
        num.append(np.full(len(blocks), float(whole // 2)))
        squares.append((weight / 2 * (first - second) ** 2).sum(axis=1))
        blocks, weight = (first + second) / 2, 2 * weight
    return np.stack(num, axis=1), np.stack(squares, axis=1)


def test_squares_and_inflation_are_those_of_a_fluctuation_that_fades() -> None:
    excess = int(np.flatnonzero(EXCESSES == 20)[0])
    blocks = fluctuations(4000, 64, 20.0, seed=1)
    num, squares = pairs(blocks)
    expected = squares_expected(times(64), FADE_S, 6)[:, excess]
    assert (squares / num).mean(axis=0) == pytest.approx(expected, rel=0.1)
    assert np.var(blocks.mean(axis=1)) * 64 == pytest.approx(float(inflations(times(64), FADE_S)[excess]), rel=0.1)


@pytest.mark.parametrize(("excess", "at_least"), [(0.0, 0.9), (20.0, 0.99), (320.0, 0.99)])
def test_blocks_tell_whether_there_is_an_excess(excess: float, at_least: float) -> None:
    num, squares = pairs(fluctuations(200, 128, excess, seed=2))
    unknown = np.zeros(200)
    weights = sizes(Differences(unknown, unknown, num, squares), times(128), FADE_S, PRIOR_OF_MEANS)
    assert weights.sum(axis=-1) == pytest.approx(np.ones(200))
    none = weights[:, 0]
    assert float(np.median(none if excess == 0 else 1 - none)) > at_least


def test_without_blocks_the_prior_stands() -> None:
    nothing = Differences(np.array(0.0), np.array(0.0), np.zeros(0), np.zeros(0))
    assert sizes(nothing, times(1), FADE_S, PRIOR_OF_MEANS) == pytest.approx(PRIOR_OF_MEANS)


def test_chance_is_the_mean_of_what_each_size_leaves_to_it() -> None:
    # 1 / 100 for one of weight 3/4, and evidence below 1 leaves all for the other.
    found = chance(np.array([0.75, 0.25]), np.array([np.log(100), -2.0]))
    assert float(found) == pytest.approx(0.75 / 100 + 0.25)


def test_all_of_alpha_is_allowed_after_nine_fades_and_little_before() -> None:
    assert float(allowed(0.01, Times(np.array(FADES * FADE_S), np.array(72.0)), FADE_S)) == pytest.approx(0.01)
    half = float(allowed(0.01, Times(np.array(FADES * FADE_S / 2), np.array(36.0)), FADE_S))
    assert half == pytest.approx(0.01 * (0.05 / 2 + 0.95 / 64))
    assert float(allowed(0.01, Times(np.array(0.0), np.array(1.0)), FADE_S)) == 0
