# SPDX-License-Identifier: Apache-2.0
"""Tests of the KV cache events on vLLM's real CPU build: what they tell is what the block pool holds."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_adapters import write_demo_adapter
from vllm_runs import Run, running

from serving.engines.seam.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from serving.engines.seam.scheduling import Scheduling
from serving.kv_events.held_blocks import HeldBlocks

BLOCK = 32  # tokens, by vllm_environment
NUM_BLOCKS = 40
PROMPT = [30 + number % 60 for number in range(3 * BLOCK + 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    for number in range(2):
        write_demo_adapter(folder / f"style-{number}", seed=number, modules=("q_proj", "o_proj"))
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    lora = {"dir": folder, "max_rank": 16, "max_device_adapters": 2, "max_host_adapters": 3}
    with running(tells_kv_events=True, lora=lora, num_kv_blocks=NUM_BLOCKS, max_seq_len=512) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty_cache(run: Run) -> None:
    reset(run)


def reset(run: Run) -> None:
    assert pool(run).reset_prefix_cache()
    run.ask([20, 21], max_tokens=1)  # the event comes with the next step
    run.engine.take_kv_events()


def pool(run: Run) -> Any:
    return run.engine._pool  # type: ignore[attr-defined]


def held_by_vllm(run: Run) -> set[int]:
    """Return the hashes that the block pool knows, as its events have them, read from its own table."""
    keys = pool(run).cached_block_hash_to_block._cache
    return {int.from_bytes(key[:-4], "big") & (2**64 - 1) for key in keys}  # the last four bytes are the group


def stored(events: list[KvEvent]) -> list[BlocksStored]:
    return [event for event in events if isinstance(event, BlocksStored)]


def test_a_prompt_is_told_in_blocks_whose_tokens_and_parents_make_it_up(run: Run) -> None:
    run.ask(PROMPT, max_tokens=2)
    (event,) = run.engine.take_kv_events()
    assert isinstance(event, BlocksStored)
    assert event.token_ids == PROMPT[: 3 * BLOCK]
    assert (event.block_tokens, event.parent_hash, len(event.block_hashes)) == (BLOCK, None, 3)
    assert (event.adapter, event.salt, event.is_main) == (None, None, True)
    assert set(event.block_hashes) == held_by_vllm(run)


def test_what_is_reused_is_not_told_again_and_what_follows_names_its_parent(run: Run) -> None:
    run.ask(PROMPT, max_tokens=1)
    (first,) = stored(run.engine.take_kv_events())
    run.ask(PROMPT, max_tokens=1)
    assert run.engine.take_kv_events() == []
    longer = PROMPT[: 3 * BLOCK] + [77] * (BLOCK + 3)
    run.ask(longer, max_tokens=1)
    (second,) = stored(run.engine.take_kv_events())
    assert second.parent_hash == first.block_hashes[-1]
    assert second.token_ids == [77] * BLOCK


def test_the_output_is_told_when_it_fills_a_block(run: Run) -> None:
    answer = run.ask(PROMPT, max_tokens=BLOCK)
    first, second = stored(run.engine.take_kv_events())
    assert second.parent_hash == first.block_hashes[-1]
    assert second.token_ids == PROMPT[3 * BLOCK :] + answer.token_ids[: BLOCK - 5]


def test_a_tenant_and_an_adapter_are_told_by_the_names_that_requests_have_for_them(run: Run) -> None:
    run.ask(PROMPT, max_tokens=1, scheduling=Scheduling(tenant="ada"))
    run.ask(PROMPT, max_tokens=1, lora_name="style-1")
    run.ask(PROMPT, max_tokens=1, lora_name="style-0", scheduling=Scheduling(tenant="bob"))
    told = [(event.adapter, event.salt) for event in stored(run.engine.take_kv_events())]
    assert told == [(None, "ada"), ("style-1", None), ("style-0", "bob")]


def test_a_reset_is_told_with_the_next_step(run: Run) -> None:
    run.ask(PROMPT, max_tokens=1)
    run.engine.take_kv_events()
    assert pool(run).reset_prefix_cache()
    run.ask([22, 23], max_tokens=1)
    assert run.engine.take_kv_events() == [AllBlocksCleared()]


def test_a_block_that_is_there_twice_is_told_once_and_goes_with_its_last_copy(run: Run) -> None:
    for _ in range(2):  # the last block of a prompt is computed anew, for the prompt's last token always is
        run.ask(PROMPT[: 2 * BLOCK], max_tokens=1)
    copies = pool(run).cached_block_hash_to_block._cache.values()
    assert [len(each) for each in copies if isinstance(each, dict)] == [2]
    events = run.engine.take_kv_events()
    assert len([block for event in stored(events) for block in event.block_hashes]) == 2
    for number in range(0, 50, 10):  # enough to have all other blocks given away
        run.ask([(number + token) % 240 + 10 for token in range(480)], max_tokens=1)
    events += run.engine.take_kv_events()
    gone = [block for event in events if isinstance(event, BlocksRemoved) for block in event.block_hashes]
    assert len(gone) == len(set(gone)) > 0
    assert replayed(events).hashes() == held_by_vllm(run)


def replayed(events: list[KvEvent]) -> HeldBlocks:
    held = HeldBlocks(BLOCK)
    for event in events:
        held.apply(event)
    return held


def test_all_events_replayed_are_what_the_engine_holds_after_random_requests(run: Run) -> None:
    """Ask 200 prompts that share beginnings, in a cache for a tenth of them, with adapters, tenants and cancels."""
    choice = random.Random(11)
    beginnings = [[choice.randrange(10, 250) for _ in range(choice.randrange(20, 200))] for _ in range(8)]
    events: list[KvEvent] = []
    for number in range(200):
        prompt = choice.choice(beginnings)[: choice.randrange(1, 200)]
        prompt = prompt + [choice.randrange(10, 250) for _ in range(choice.randrange(0, 100))]
        more: dict[str, Any] = {"lora_name": f"style-{choice.randrange(2)}"} if choice.random() < 0.2 else {}
        if choice.random() < 0.3:
            more["scheduling"] = Scheduling(tenant=choice.choice(["ada", "bob"]))
        key = run.add(prompt or [12], max_tokens=choice.randrange(1, 20), **more)
        for _ in range(choice.randrange(0, 12)):
            run.engine.step()
        if choice.random() < 0.1:
            run.engine.cancel(key)
        if number % 20 == 19:
            run.drain()
            events += run.engine.take_kv_events()
            assert replayed(events).hashes() == held_by_vllm(run)
    num_evicted = sum(len(event.block_hashes) for event in events if isinstance(event, BlocksRemoved))
    assert num_evicted > 100
    assert len(replayed(events)) > NUM_BLOCKS // 2
    # Somebody who comes later is told the same.
    told_late = replayed(list(replayed(events).events()))
    assert told_late.hashes() == held_by_vllm(run)


def test_an_engine_that_is_not_to_tell_tells_nothing() -> None:
    with running(num_kv_blocks=NUM_BLOCKS) as quiet:
        quiet.ask(PROMPT, max_tokens=1)
        assert quiet.engine.take_kv_events() == []
