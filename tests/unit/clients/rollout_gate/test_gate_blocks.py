# SPDX-License-Identifier: Apache-2.0
"""The sums of blocks of time, against least squares and by hand."""

import numpy as np
import pytest

from clients.rollout_gate.blocks import BLOCK_REQUESTS, Blocks, Timeline
from clients.rollout_gate.fading import differences_of, own_variance


def closed(*blocks: tuple[float, float]) -> Blocks:
    """Return closed blocks, each with one value of the candidate and one of the baseline."""
    found = Blocks()
    for candidate, baseline in blocks:
        found.add(candidate, 0, is_candidate=True)
        found.add(baseline, 0, is_candidate=False)
        found.close()
    return found


def test_neighbours_are_paired_and_pairs_of_them_too() -> None:
    found = closed((3, 0), (1, 0), (2, 0), (6, 0))
    # Each weighs 1 * 1 / 2 = 1/2. At the first scale (3 - 1)^2 and (2 - 6)^2, each times 1/4; their means are 2 and 4
    # and weigh 1 each: (2 - 4)^2 / 2.
    assert [(scale.num, scale.squares) for scale in found.scales] == [(2, 5.0), (1, 2.0), (0, 0.0)]
    assert (found.weight, found.total) == (2.0, 6.0)


def test_a_block_without_one_of_the_arms_is_no_pair() -> None:
    found = Blocks()
    found.add(1.0, 0, is_candidate=True)
    found.close()
    found.add(5.0, 0, is_candidate=True)
    found.add(3.0, 0, is_candidate=False)
    found.close()
    assert [(scale.num, scale.squares) for scale in found.scales] == [(0, 0.0), (0, 0.0)]
    assert found.total / found.weight == 2.0


def test_the_difference_is_that_of_a_regression_on_arm_stratum_and_block() -> None:
    rng, num = np.random.default_rng(1), 600
    stratum, block, arm = rng.integers(0, 3, num), np.repeat(range(6), 100), rng.random(num) < 0.3
    values = stratum * 2.0 + rng.normal(size=6)[block] + 0.25 * arm + rng.normal(size=num)
    found = Blocks()
    for number in range(6):
        for at in np.flatnonzero(block == number):
            found.add(values[at], int(stratum[at]), is_candidate=bool(arm[at]))
        found.close()
    cells = [(stratum == one) & (block == other) for one in range(3) for other in range(6)]
    columns = np.column_stack([arm, *cells]).astype(float)
    fitted, residuals, _, _ = np.linalg.lstsq(columns, values, rcond=None)
    assert found.total / found.weight == pytest.approx(fitted[0], rel=1e-9)
    variance = residuals[0] / (num - 19) * np.linalg.inv(columns.T @ columns)[0, 0]
    spread = [
        np.array([[getattr(one, name) for one in arms] for arms in found.within.values()], float)
        for name in ("freedom", "m2", "weight")
    ]
    total, weight, none = np.array(found.total), np.array(found.weight), np.zeros(0)
    differences = differences_of(total, weight, own_variance(*spread), num_pairs=none, squares=none)
    assert 1 / float(differences.information) == pytest.approx(
        variance, rel=0.1
    )  # ours lets the strata's spreads differ


def test_values_that_are_all_alike_are_no_endless_evidence() -> None:
    total, weight, none = np.array(0.0), np.array(4.0), np.zeros(0)
    assert np.isfinite(differences_of(total, weight, np.array(0.0), num_pairs=none, squares=none).information)


def filled(timeline: Timeline) -> None:
    for _ in range(BLOCK_REQUESTS):
        timeline.count(is_candidate=True)
        timeline.count(is_candidate=False)


def test_a_block_ends_when_it_is_long_and_full() -> None:
    timeline = Timeline()
    timeline.reach(100.0, 10.0)
    timeline.count(is_candidate=True)
    timeline.reach(115.0, 10.0)
    assert timeline.num_closed == 0  # long, and not full
    filled(timeline)
    timeline.reach(116.0, 10.0)
    assert (timeline.num_closed, timeline.opened_s, timeline.elapsed_s) == (1, 116.0, 16.0)
    filled(timeline)
    timeline.reach(120.0, 10.0)
    assert timeline.num_closed == 1  # full, and not long
    assert timeline.until_now().num_closed == 2
    assert timeline.num_closed == 1


def test_a_clock_that_goes_back_stands_still_and_none_is_a_block_later() -> None:
    timeline = Timeline()
    timeline.reach(100.0, 10.0)
    timeline.reach(40.0, 10.0)
    assert timeline.elapsed_s == 0
    timeline.reach(None, 10.0)
    assert timeline.elapsed_s == 10.0
