# SPDX-License-Identifier: Apache-2.0
"""Tests of what an engine holds, by its events, and of the prompts whose beginnings that is."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_configs.chat.prefix_numbers import prompt_prefix
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.engines.seam.kv_events import AllBlocksCleared, BlockCopies, BlocksRemoved, BlocksStored, KvEvent
from serving.engines.seam.scheduling import Scheduling
from serving.kv_events.held_blocks import HeldBlocks
from serving.kv_events.messages import PrefixesRemoved, PrefixesStored
from serving.kv_events.prompt_places import PromptPlaces

BLOCK = 4


def stored(hashes: list[int], tokens: list[int], *, parent: int | None = None, **more: object) -> BlocksStored:
    return BlocksStored(hashes, parent, tokens, BLOCK, **more)  # type: ignore[arg-type]


def replayed(events: list[KvEvent]) -> HeldBlocks:
    held = HeldBlocks()
    for event in events:
        held.apply(event)
    return held


def test_a_prompt_is_found_block_by_block_from_its_beginning() -> None:
    held = replayed([stored([10, 11], list(range(8))), stored([12], [8, 9, 10, 11], parent=11)])
    assert held.prompt_blocks(list(range(14)), adapter=None, salt=None) == [10, 11, 12]
    assert held.prompt_blocks([*range(8), 99, 9, 10, 11], adapter=None, salt=None) == [10, 11]
    assert held.prompt_blocks([99, *range(8)], adapter=None, salt=None) == []
    held.apply(BlocksRemoved([11]))
    assert held.prompt_blocks(list(range(14)), adapter=None, salt=None) == [10]
    held.apply(AllBlocksCleared())
    assert (len(held), held.prompt_blocks(list(range(14)), adapter=None, salt=None)) == (0, [])


def test_equal_tokens_of_tenants_and_adapters_are_apart() -> None:
    tokens = list(range(4))
    held = replayed([
        stored([10], tokens), stored([11], tokens, salt="ada"), stored([12], tokens, adapter="poet"),
        stored([13], tokens, adapter="poet", salt="ada"),
    ])  # fmt: skip
    found = {
        (adapter, salt): held.prompt_blocks(tokens, adapter=adapter, salt=salt)
        for adapter in (None, "poet")
        for salt in (None, "ada")
    }
    assert found == {(None, None): [10], (None, "ada"): [11], ("poet", None): [12], ("poet", "ada"): [13]}
    # An engine whose cache is not salted, or that does not tell adapters, has one block for all.
    assert replayed([stored([10], tokens)]).prompt_blocks(tokens, adapter="poet", salt="ada") == [10]


def test_blocks_of_other_attention_decide_nothing() -> None:
    held = replayed([stored([10], list(range(4)), group=1, kind="sliding_window")])
    assert held.prompt_blocks(list(range(4)), adapter=None, salt=None) == []
    assert (held.hashes(), held.hashes(1)) == (set(), {10})


def random_events(seed: int) -> list[KvEvent]:
    """Return the events of a tree of blocks that grows at its ends, and loses blocks anywhere."""
    choice = random.Random(seed)
    events: list[KvEvent] = []
    held: list[tuple[int, int]] = []  # group and hash
    for number in range(120):
        kind = choice.random()
        if kind < 0.7:
            group = choice.randrange(2)
            parents = [block for its, block in held if its == group]
            parent = choice.choice(parents) if parents and choice.random() < 0.7 else None
            hashes = [number * 10 + index for index in range(choice.randrange(1, 5))]
            tokens = [token for block in hashes for token in (block, *(choice.randrange(9) for _ in range(BLOCK - 1)))]
            events.append(stored(hashes, tokens, parent=parent, group=group))
            held += [(group, block) for block in hashes]
        elif kind < 0.99 and held:
            group, block = held.pop(choice.randrange(len(held)))
            events.append(BlocksRemoved([block], group))
        else:
            events.append(AllBlocksCleared())
            held.clear()
    return events


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_who_comes_later_is_told_the_same_with_parents_before_children(seed: int) -> None:
    held = replayed(random_events(seed))
    later = HeldBlocks()
    known: set[tuple[int, int | None]] = set()
    for event in held.events():
        was_held = event.parent_hash in held.hashes(event.group)
        assert not was_held or (event.group, event.parent_hash) in known
        known |= {(event.group, block) for block in event.block_hashes}
        later.apply(event)
    assert [later.hashes(group) for group in (0, 1)] == [held.hashes(group) for group in (0, 1)]
    assert later._children == held._children


def test_long_chains_are_told_in_runs() -> None:
    held = replayed([stored([number], [number] * BLOCK, parent=number - 1 or None) for number in range(1, 1201)])
    assert [len(event.block_hashes) for event in held.events()] == [512, 512, 176]


def test_copies_are_told_of_once_and_a_run_with_some_of_them_is_cut() -> None:
    copies = BlockCopies()
    assert copies.first_and_last([stored([10, 11, 12], list(range(12)))]) == [stored([10, 11, 12], list(range(12)))]
    again = stored([9, 11, 13, 14], list(range(100, 116)), parent=7)
    assert copies.first_and_last([again]) == [
        stored([9], list(range(100, 104)), parent=7), stored([13, 14], list(range(108, 116)), parent=11),
    ]  # fmt: skip
    assert copies.first_and_last([BlocksRemoved([11, 10])]) == [BlocksRemoved([10])]
    assert copies.first_and_last([BlocksRemoved([11])]) == [BlocksRemoved([11])]
    assert copies.first_and_last([BlocksRemoved([11])]) == [], "nobody was told of it"
    assert copies.first_and_last([AllBlocksCleared(), stored([12], list(range(4)))])[-1] == stored([12], [0, 1, 2, 3])


def request_of(text: str, num_tokens: int, *, key: int = 1, **more: object) -> GenerationRequest:
    params = SamplingParams(max_tokens=1)
    return GenerationRequest(
        key=key, input_ids=list(range(num_tokens)), sampling=params, prefix=prompt_prefix(text=text.encode()), **more  # type: ignore[arg-type]
    )  # fmt: skip


def places_of(*events: KvEvent) -> tuple[PromptPlaces, HeldBlocks]:
    held = HeldBlocks(BLOCK)
    places = PromptPlaces(held)
    for event in events:
        held.apply(event)
        places.note_event(event)
    return places, held


def test_pieces_of_a_text_count_with_the_blocks_that_their_middles_are_in() -> None:
    text = "a" * 1024  # four pieces; 16 tokens, so that each is a block
    numbers = prompt_prefix(text=text.encode()).numbers
    places, held = places_of(stored([10, 11, 12, 13], list(range(16))))
    assert places.note_prompts([request_of(text, 16)]) == PrefixesStored(numbers, numbers[-1:])
    assert places.note_prompts([request_of(text, 16)]) is None, "it is known"
    removed = BlocksRemoved([12])
    held.apply(removed)
    assert places.note_event(removed) == PrefixesRemoved([numbers[2]])
    assert places.snapshot() == PrefixesStored([numbers[0], numbers[1], numbers[3]], numbers[-1:])


def test_what_is_behind_the_last_whole_block_counts_with_it() -> None:
    text = "a" * 1024
    numbers = prompt_prefix(text=text.encode()).numbers
    places, _ = places_of(stored([10, 11], list(range(8))))
    assert places.note_prompts([request_of(text, 11)]) == PrefixesStored(numbers, numbers[-1:])
    assert places.note_event(BlocksRemoved([11])) == PrefixesRemoved(numbers[1:])


def test_a_prompt_shorter_than_a_block_holds_nothing() -> None:
    places, _ = places_of(stored([10], list(range(4))))
    assert places.note_prompts([request_of("a" * 256, 3)]) is None


def test_a_prompt_whose_blocks_come_later_is_looked_at_again() -> None:
    text = "a" * 1024
    numbers = prompt_prefix(text=text.encode()).numbers
    places, held = places_of()
    assert places.note_prompts([request_of(text, 16)]) is None
    first, second = stored([10, 11], list(range(8))), stored([12, 13], list(range(8, 16)), parent=11)
    held.apply(first)
    assert places.note_event(first) == PrefixesStored(numbers[:2], [])
    held.apply(second)
    assert places.note_event(second) == PrefixesStored(numbers[2:], numbers[3:])
    assert places._num_waiting == 0


def test_prompts_that_wait_in_vain_are_forgotten() -> None:
    places, _ = places_of()
    for key in range(5000):
        places.note_prompts([request_of("a" * 256, 16 + key % 7, key=key)])
    assert places._num_waiting <= 4096


def test_what_a_continued_request_has_made_is_no_part_of_its_prompt() -> None:
    text = "a" * 512
    places, _ = places_of(stored([10, 11, 12], list(range(12))))
    told = places.note_prompts([request_of(text, 12, num_output_ids=4)])
    assert told is not None
    assert places.note_event(BlocksRemoved([12])) is None


def test_a_tenant_s_prompt_is_found_among_its_own_blocks() -> None:
    text = "a" * 256
    places, _ = places_of(stored([10], list(range(4)), salt="ada"))
    assert places.note_prompts([request_of(text, 4, scheduling=Scheduling(tenant="bob"))]) is None
    assert places.note_prompts([request_of(text, 4, scheduling=Scheduling(tenant="ada"))]) is not None
