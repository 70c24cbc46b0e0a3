# SPDX-License-Identifier: Apache-2.0
"""The simulated engine's scheduler: its invariants under random load, and the order in which things happen."""

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engines.seam.paged_batch import PagedBatch, PlannedStep, Sequence

KEYS = itertools.count()


def endless() -> Iterator[int]:
    return itertools.repeat(7)


def sequence(num_prompt_tokens: int, num_output_tokens: int) -> Sequence:
    return Sequence(
        key=next(KEYS),
        num_tokens=num_prompt_tokens,
        max_num_tokens=num_prompt_tokens + num_output_tokens,
        tokens=endless(),
        end_ids=frozenset(),
        min_num_tokens=0,
    )


def batch(*, num_blocks: int = 100, max_num_seqs: int = 8, max_num_batched_tokens: int = 16) -> PagedBatch:
    """Return a batch with blocks of 4 tokens."""
    return PagedBatch(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, num_blocks=num_blocks, block_tokens=4
    )


def run_step(paged: PagedBatch) -> PlannedStep:
    """Run one step, with the tokens that the engine would add."""
    step = paged.plan_step()
    for one in [*step.decoding, *step.prefilled]:
        one.num_tokens += 1
        if one.num_tokens == one.max_num_tokens:
            paged.remove(one)
    return step


def test_decoding_comes_first_and_prefill_fills_the_rest_of_the_step() -> None:
    paged = batch(max_num_batched_tokens=16)
    short, long = sequence(10, 5), sequence(20, 5)
    paged.add(short)
    paged.add(long)
    assert run_step(paged) == PlannedStep([], [short], 16, admitted=[short, long])  # 10 of short, 6 of long
    assert run_step(paged) == PlannedStep([short], [long], 14, admitted=[])  # the other 14 of long
    assert run_step(paged) == PlannedStep([short, long], [], 0, admitted=[])


def test_a_prompt_longer_than_a_step_is_prefilled_in_chunks() -> None:
    paged = batch(max_num_batched_tokens=16)
    long = sequence(40, 1)
    paged.add(long)
    assert [run_step(paged).num_prefill_tokens for _ in range(3)] == [16, 16, 8]
    assert not paged.running


def test_the_youngest_gives_up_its_blocks_and_is_computed_again() -> None:
    paged = batch(num_blocks=4)
    old, young = sequence(7, 6), sequence(8, 3)
    paged.add(old)
    paged.add(young)
    assert run_step(paged).prefilled == [old, young]  # 2 blocks each: none is left
    assert (old.num_free_slots, young.num_free_slots) == (1, 0)
    # The young one's next token needs a third block, and there is none but its own.
    assert run_step(paged).decoding == [old]
    assert (paged.running, list(paged.waiting), paged.num_preemptions) == ([old], [young], 1)
    assert paged.num_free_blocks == 2
    while paged.running != [young]:
        run_step(paged)
    assert young.num_tokens == 10  # its 8, the token it had, and the one after its second prefill


def test_nobody_overtakes_a_waiting_request_that_does_not_fit() -> None:
    paged = batch(num_blocks=4)
    for one in (running := sequence(9, 5), large := sequence(12, 1), small := sequence(1, 1)):
        paged.add(one)
    run_step(paged)
    assert (paged.running, list(paged.waiting)) == ([running], [large, small])


@st.composite
def batches(draw: st.DrawFn) -> PagedBatch:
    return batch(
        num_blocks=draw(st.integers(15, 30)),  # the longest sequence below, 59 tokens in the cache, fits alone
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1, 40)),
    )


@settings(max_examples=150)
@given(
    paged=batches(),
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=12),
    num_steps_between=st.integers(0, 5),
    cancelled=st.sets(st.integers(0, 11)),
)
def test_blocks_are_accounted_for_and_everything_finishes_in_order(
    paged: PagedBatch, lengths: list[tuple[int, int]], num_steps_between: int, cancelled: set[int]
) -> None:
    arrived: list[Sequence] = []
    first_token_order: dict[Sequence, None] = {}

    def step() -> None:
        planned = run_step(paged)
        first_token_order.update(dict.fromkeys(planned.prefilled))
        check(paged, planned, arrived)

    for num_prompt_tokens, num_output_tokens in lengths:
        arrived.append(sequence(num_prompt_tokens, num_output_tokens))
        paged.add(arrived[-1])
        for _ in range(num_steps_between):
            step()
    for index in cancelled & set(range(len(arrived))):
        if arrived[index] in [*paged.running, *paged.waiting]:
            paged.remove(arrived[index])
    max_steps = 10 * sum(n + m for n, m in lengths) + 100
    while (paged.running or paged.waiting) and max_steps:
        step()
        max_steps -= 1
    assert max_steps, "it does not come to an end"
    assert paged.num_free_blocks == paged.num_blocks
    assert list(first_token_order) == [one for one in arrived if one in first_token_order]
    # Each block that a sequence grows by costs at most one other its own, or it its own.
    assert paged.num_preemptions <= sum(-(-one.max_num_tokens // 4) for one in arrived)


def check(paged: PagedBatch, planned: PlannedStep, arrived: list[Sequence]) -> None:
    num_used_blocks = paged.num_blocks - paged.num_free_blocks
    assert 0 <= num_used_blocks <= paged.num_blocks
    assert num_used_blocks == sum(blocks_of(one) for one in paged.running)
    assert len(paged.running) <= paged.max_num_seqs
    assert 0 < len(planned.decoding) + planned.num_prefill_tokens <= paged.max_num_batched_tokens or not paged.running
    in_order = [*paged.running, *paged.waiting]
    assert in_order == [one for one in arrived if one in in_order]
    assert all(one.num_blocks == 0 for one in paged.waiting)


def blocks_of(one: Sequence) -> int:
    """Return the blocks of 4 tokens for all that is known in prefill; when decoding, for all but the newest token."""
    return -(-(one.num_tokens - (one.num_unprocessed == 0)) // 4)
