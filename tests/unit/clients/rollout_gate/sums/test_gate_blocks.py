# SPDX-License-Identifier: Apache-2.0
"""The sums of blocks of time, by hand and against least squares."""

import numpy as np
import pytest
from gate_rows import rows_of

from clients.rollout_gate.sums.block_list import MAX_BLOCKS, Block, BlockList
from clients.rollout_gate.sums.block_sums import BlockSums
from clients.rollout_gate.sums.timeline import BLOCK_REQUESTS, Timeline


def closed(*blocks: tuple[float, float]) -> BlockSums:
    """Return closed blocks, each with one value of the candidate and one of the baseline."""
    found = BlockSums()
    for values in blocks:
        found.add(rows_of(values, [True, False]), np.array(values))
        found.close()
    return found


def test_neighbours_are_paired_and_pairs_of_them_too() -> None:
    found = closed((3, 0), (1, 0), (2, 0), (6, 0))
    # Each weighs 1 * 1 / 2 = 1/2. At the first scale (3 - 1)^2 and (2 - 6)^2, each times 1/4; their means are 2 and 4
    # and weigh 1 each: (2 - 4)^2 / 2.
    difference, weight = found.blocks.differences(None, np.ones(()))
    pairs = found.blocks.pairs(difference, weight)
    assert (pairs.num.tolist(), pairs.squares.tolist()) == ([2, 1], [5.0, 2.0])
    assert float(found.differences().estimate) == 3.0


def test_a_block_without_one_of_the_arms_is_no_pair() -> None:
    found = BlockSums()
    found.add(rows_of([1.0], [True]), np.array([1.0]))
    found.close()
    found.add(rows_of([5.0, 3.0], [True, False]), np.array([5.0, 3.0]))
    found.close()
    differences = found.differences()
    assert (differences.num_pairs.tolist(), differences.squares.tolist()) == ([0], [0.0])
    assert float(differences.estimate) == 2.0


def test_the_difference_is_that_of_a_regression_on_arm_and_block() -> None:
    rng, num = np.random.default_rng(1), 600
    block, arm = np.repeat(range(6), 100), rng.random(num) < 0.3
    values = rng.normal(size=6)[block] + 0.25 * arm + rng.normal(size=num)
    found = BlockSums()
    for number in range(6):
        inside = block == number
        found.add(rows_of(values[inside], arm[inside]), values[inside])
        found.close()
    columns = np.column_stack([arm, *(block == one for one in range(6))]).astype(float)
    fitted, residuals, _, _ = np.linalg.lstsq(columns, values, rcond=None)
    differences = found.differences()
    assert float(differences.estimate) == pytest.approx(fitted[0], rel=1e-9)
    variance = residuals[0] / (num - 7) * np.linalg.inv(columns.T @ columns)[0, 0]
    assert 1 / float(differences.information) == pytest.approx(variance, rel=0.1)  # ours lets the arms' spreads differ


def test_values_that_are_all_alike_are_no_endless_evidence() -> None:
    assert np.isfinite(closed(*[(1.0, 1.0)] * 8).differences().information)


def test_without_a_block_nothing_is_known() -> None:
    assert float(BlockSums().differences().information) == 0


def test_the_work_is_taken_out_of_a_block_by_what_is_known_later() -> None:
    sums = BlockSums((), 1)
    work = np.array([[4.0], [1.0]])
    # When the block was open, a unit of work was taken for half of what it is: 2 x 0.5 and not 2 x 1 was taken out.
    sums.add(rows_of([9.0, 5.0], [True, False], work=work), np.array([7.0, 4.5]), np.array([2.0, 0.5]))
    sums.close()
    assert float(sums.differences(np.array([0.0, 1.0, 0.0])).estimate) == pytest.approx((9 - 4) - (5 - 1))


def blocks_of(differences: list[float]) -> BlockList:
    found = BlockList()
    for difference in differences:
        found.add(Block(np.array(difference), np.array(0.5), np.array(0.0), np.zeros(0)))
    return found


def test_joined_blocks_tell_of_pairs_what_single_ones_did() -> None:
    values = np.random.default_rng(2).normal(size=4 * MAX_BLOCKS)
    found = blocks_of(values.tolist())
    assert len(found.blocks) < MAX_BLOCKS
    pairs = found.pairs(*found.differences(None, np.ones(())))
    for scale, (num, squares) in enumerate(zip(pairs.num, pairs.squares, strict=True)):
        pair = values.reshape(-1, 2)  # of weights 2^scale / 2 each
        assert (num, squares) == (len(pair), pytest.approx((np.diff(pair, axis=1) ** 2).sum() * 2**scale / 4))
        values = pair.mean(axis=1)
    assert values.size == 1


def test_blocks_that_wait_to_be_joined_are_in_the_difference() -> None:
    values = np.random.default_rng(3).normal(size=4 * MAX_BLOCKS + 3)
    found = blocks_of(values.tolist())
    assert found.open
    difference, weight = found.differences(None, np.ones(()))
    assert float((difference * weight).sum() / weight.sum()) == pytest.approx(values.mean())


def test_a_block_ends_when_it_is_long_and_full() -> None:
    timeline = Timeline()
    assert not timeline.reach(100.0, 10.0)
    timeline.count(1, 0)
    assert not timeline.reach(115.0, 10.0)  # long, and not full
    timeline.count(BLOCK_REQUESTS, BLOCK_REQUESTS)
    assert timeline.is_full
    assert timeline.reach(116.0, 10.0)
    timeline.close()
    assert (timeline.num_closed, timeline.opened_s, timeline.elapsed_s) == (1, 116.0, 16.0)
    timeline.count(BLOCK_REQUESTS, BLOCK_REQUESTS)
    assert not timeline.reach(120.0, 10.0)  # full, and not long


def test_a_clock_that_goes_back_stands_still_and_none_is_a_block_later() -> None:
    timeline = Timeline()
    timeline.reach(100.0, 10.0)
    timeline.reach(40.0, 10.0)
    assert timeline.elapsed_s == 0
    timeline.reach(None, 10.0)
    assert timeline.elapsed_s == 10.0
