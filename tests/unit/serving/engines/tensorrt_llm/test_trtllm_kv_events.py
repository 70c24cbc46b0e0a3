# SPDX-License-Identifier: Apache-2.0
"""Tests of TensorRT-LLM's KV cache events, on the fake that is written from upstream's source."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine
from pydantic import TypeAdapter
from trtllm_behaviour import Executor
from trtllm_kv_events import KvEvents

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.engines.seam.kv_events import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from serving.engines.tensorrt_llm.trtllm_kv_events import TrtLlmKvEvents
from serving.kv_events.held_blocks import HeldBlocks

BLOCK = 32
Made = tuple[Engine, Executor]


@pytest.fixture(params=["tensorrt", "pytorch"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Made]]:
    folder = {"tensorrt": write_engine, "pytorch": write_checkpoint}[request.param](tmp_path / "model")
    opened: list[Engine] = []

    def made(**settings: object) -> Made:
        data = {"provider": request.param, "dir": folder, **settings}
        engine = create_engine(TypeAdapter[EngineSpec](EngineSpec).validate_python(data), tells_kv_events=True)
        opened.append(engine)
        return engine, Executor.created[-1]

    with fake_tensorrt_llm():
        yield made
    for engine in opened:
        engine.close()


def ask(engine: Engine, prompt: list[int], *, max_tokens: int = 4) -> None:
    params = SamplingParams(max_tokens=max_tokens, end_id=-1)
    engine.add(GenerationRequest(key=1, input_ids=prompt, sampling=params))
    deadline_s = time.monotonic() + 20.0
    while engine.has_work:
        assert time.monotonic() < deadline_s
        engine.step()


def told(engine: Engine, held: HeldBlocks, executor: Executor) -> list[KvEvent]:
    """Return the events that come until what is held is what the executor holds."""
    events: list[KvEvent] = []
    deadline_s = time.monotonic() + 5.0
    while True:
        new = engine.take_kv_events()
        events += new
        for event in new:
            held.apply(event)
        if held.hashes() == executor.kv_events.held():
            return events
        assert time.monotonic() < deadline_s, (held.hashes(), executor.kv_events.held())
        time.sleep(0.01)


def test_a_prompt_and_its_answer_are_told_in_whole_blocks(make: Callable[..., Made]) -> None:
    engine, executor = make()
    held = HeldBlocks(engine.info.kv_block_tokens)
    told(engine, held, executor)
    size = engine.info.kv_block_tokens
    prompt = [10 + number % 90 for number in range(2 * size + 5)]
    ask(engine, prompt, max_tokens=size)
    events = told(engine, held, executor)
    stored = [event for event in events if isinstance(event, BlocksStored)]
    assert [event.token_ids for event in stored][:2] == [prompt[:size], prompt[size : 2 * size]]
    assert len(stored) == 3  # the third has the end of the prompt and most of the answer
    assert [event.parent_hash for event in stored] == [None, stored[0].block_hashes[0], stored[1].block_hashes[0]]
    assert held.prompt_blocks(prompt, adapter=None, salt=None) == [event.block_hashes[0] for event in stored[:2]]
    ask(engine, prompt, max_tokens=1)
    assert told(engine, held, executor) == []


@pytest.mark.parametrize("is_telling", [True, False], ids=["each block is told", "the highest block is told"])
def test_all_events_replayed_are_what_the_executor_holds(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, *, is_telling: bool
) -> None:
    monkeypatch.setattr(KvEvents, "is_telling_of_descendants", is_telling)
    engine, executor = make(num_kv_blocks=24)
    held = HeldBlocks(engine.info.kv_block_tokens)
    choice = random.Random(7)
    beginnings = [[choice.randrange(10, 90) for _ in range(choice.randrange(20, 150))] for _ in range(6)]
    events: list[KvEvent] = []
    for _ in range(60):
        prompt = choice.choice(beginnings)[: choice.randrange(1, 150)]
        ask(engine, prompt + [choice.randrange(10, 90) for _ in range(choice.randrange(0, 60))])
        events += told(engine, held, executor)
    assert sum(len(event.block_hashes) for event in events if isinstance(event, BlocksRemoved)) > 20
    late = HeldBlocks()
    for event in held.events():
        late.apply(event)
    assert late.hashes() == held.hashes() != set()


def row(number: int, data: dict[str, Any], *, window: int = 512, rank: int | None = None) -> dict[str, object]:
    ranked = {} if rank is None else {"attention_dp_rank": rank}
    return {"event_id": number, "data": data, "window_size": window, **ranked}


def stored_row(number: int, block_hash: int, *, size: int = 2, **more: Any) -> dict[str, object]:
    tokens = [{"type": "unique_token", "token_id": 5, "token_extra_id": 0}] * size
    blocks = [{"type": "stored_block", "block_hash": block_hash, "tokens": tokens, "cache_level": 0, "priority": 35}]
    return row(number, {"type": "stored", "parent_hash": None, "blocks": blocks}, **more)


def test_events_that_upstream_dropped_clear_what_is_known() -> None:
    events = TrtLlmKvEvents(2)
    assert events.read(row(0, {"type": "created", "num_blocks_per_cache_level": [9, 0]})) == []
    assert events.read(stored_row(1, 70)) == [BlocksStored([70], None, [5, 5], 2)]
    assert events.read(stored_row(7, 71)) == [AllBlocksCleared(), BlocksStored([71], None, [5, 5], 2)]
    assert events.read(row(8, {"type": "removed", "block_hashes": [70, 71]})) == [BlocksRemoved([71])]


def test_blocks_that_are_not_full_or_of_a_shorter_window_are_not_told() -> None:
    events = TrtLlmKvEvents(2)
    for number, window in enumerate((128, 512)):
        events.read(row(number, {"type": "created", "num_blocks_per_cache_level": [9, 0]}, window=window))
    assert events.read(stored_row(2, 70, size=1)) == []
    assert events.read(row(3, {"type": "removed", "block_hashes": [70]})) == []
    assert events.read(stored_row(4, 71, window=128)) == []
    moved = {"type": "event_diff", "new_value": 1, "old_value": 0}
    assert events.read(row(5, {"type": "updated", "block_hash": 71, "cache_level": moved, "priority": None})) == []


def test_a_block_is_held_as_long_as_one_rank_with_a_cache_of_its_own_holds_it() -> None:
    events = TrtLlmKvEvents(2)
    assert len(events.read(stored_row(0, 70, rank=0))) == 1
    assert events.read(stored_row(0, 70, rank=1)) == []
    gone = {"type": "removed", "block_hashes": [70]}
    assert events.read(row(1, gone, rank=0)) == []
    assert events.read(row(1, gone, rank=1)) == [BlocksRemoved([70])]


def test_an_engine_serves_on_where_its_events_cannot_be_read(
    make: Callable[..., Made], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> list[KvEvent]:
        raise msgspec.ValidationError("Expected `int`, got `str` - at `$.event_id`")

    monkeypatch.setattr(TrtLlmKvEvents, "read", unreadable)
    engine, _ = make()
    ask(engine, [11] * 100)
    deadline_s = time.monotonic() + 5.0
    while not (events := engine.take_kv_events()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert events == [AllBlocksCleared()]
    assert "KV events are told no longer" in caplog.text
    ask(engine, [12] * 100)
