# SPDX-License-Identifier: Apache-2.0
"""Tests of the KV blocks that requests want kept, on the simulated engine, and of what their reuse saves."""

import itertools
from typing import Any

import pytest

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import GenerationRequest, PerfMetrics, SamplingParams, TokenChunk
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.kv_events import BlocksRemoved
from serving.engines.simulated.simulated_engine import SimulatedEngine
from serving.kv_events.held_blocks import HeldBlocks

VOCAB_SIZE = 200
PROMPT = [20, 30, 40]


class Bench:
    """An engine and its clock."""

    def __init__(self, **spec: object) -> None:
        data = {"provider": "simulated", "vocab_size": VOCAB_SIZE, "kv_block_tokens": 4} | spec
        self.clock = VirtualClock()
        self.engine = SimulatedEngine(SimulatedEngineSpec.model_validate(data), self.clock, tells_kv_events=True)
        self._keys = itertools.count(1)

    def chunks(self, prompt: Any = None, max_tokens: Any = 8, **sampling: Any) -> list[TokenChunk]:
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        request = GenerationRequest(key=next(self._keys), input_ids=prompt or PROMPT, sampling=params)
        self.engine.add(request)
        chunks = []
        while self.engine.has_work:
            chunks += self.engine.step()
        assert chunks[-1].error is None, chunks[-1].error
        return chunks

    def tokens(self, prompt: Any = None, max_tokens: Any = 8, **sampling: Any) -> list[int]:
        return [token_id for chunk in self.chunks(prompt, max_tokens, **sampling) for token_id in chunk.token_ids]

    def perf(self, prompt: Any = None, max_tokens: Any = 8, **sampling: Any) -> PerfMetrics:
        perf = self.chunks(prompt, max_tokens, **sampling)[-1].perf
        assert perf is not None
        return perf


LONG = list(range(20, 36))  # four blocks
ALL_OF_IT = {
    "retention_token_range_starts": (0,),
    "retention_token_range_ends": (-1,),
    "retention_token_range_priorities": (50,),
}


def num_reused(bench: Bench, prompt: list[int] = LONG) -> int | None:
    return bench.perf(prompt).kv_cache_reused_blocks


def test_without_retention_nothing_is_kept() -> None:
    bench = Bench()
    bench.tokens(LONG)
    assert num_reused(bench) == 0


def test_blocks_that_a_request_wants_kept_are_reused_and_their_prefill_saved() -> None:
    bench = Bench(step_ms=0, decode_us_per_seq=0, prefill_us_per_token=1000)
    expected = bench.tokens(LONG, **ALL_OF_IT)
    first_ms = bench.clock.now_s() * 1000
    assert bench.tokens(LONG) == expected
    assert first_ms == pytest.approx(16)
    assert bench.clock.now_s() * 1000 - first_ms == pytest.approx(4), (
        "the last block is computed: of it comes the token"
    )
    perf = bench.perf(LONG)
    assert perf.kv_cache_reused_blocks == 3
    assert perf.kv_cache_alloc_total_blocks == 3 + (perf.kv_cache_alloc_new_blocks or 0)
    assert num_reused(bench, [*LONG[:8], 99, 99, 99, 99]) == 2, "as far as the prompt is the same"


def test_a_range_covers_its_own_blocks_only() -> None:
    bench = Bench()
    bench.tokens(LONG, **ALL_OF_IT | {"retention_token_range_ends": (8,)})
    assert num_reused(bench) == 2
    other = Bench()
    other.tokens(LONG, **ALL_OF_IT | {"retention_token_range_starts": (4,)})
    assert num_reused(other) == 0, "a prompt is reused from its beginning"


def test_a_kept_block_is_lost_after_its_duration() -> None:
    bench = Bench()
    bench.tokens(LONG, **ALL_OF_IT, retention_token_range_durations_ms=(100,))
    bench.clock.sleep_s(0.05)
    assert num_reused(bench) == 3
    bench.clock.sleep_s(0.1)
    assert num_reused(bench) == 0


def test_blocks_of_the_output_are_kept_by_the_decode_priority_and_duration() -> None:
    bench = Bench()
    output = bench.tokens(LONG, **ALL_OF_IT, retention_decode_priority=50, retention_decode_duration_ms=100)
    assert num_reused(bench, LONG + output) == 5  # 16 prompt tokens and 7 of 8 output tokens
    bench.clock.sleep_s(0.2)
    assert num_reused(bench, LONG + output) == 4


def test_the_lowest_priority_goes_first_when_others_need_the_room() -> None:
    bench = Bench(num_kv_blocks=12)
    dear, cheap = LONG, [token_id + 100 for token_id in LONG]
    bench.tokens(dear, **ALL_OF_IT | {"retention_token_range_priorities": (90,)})
    bench.tokens(cheap, **ALL_OF_IT | {"retention_token_range_priorities": (10,)})
    params = SamplingParams(max_tokens=2)
    bench.engine.add(GenerationRequest(key=500, input_ids=[150] * 30, sampling=params))  # takes eight of twelve blocks
    bench.engine.step()
    bench.engine.add(GenerationRequest(key=501, input_ids=dear, sampling=params))
    while bench.engine.has_work:
        bench.engine.step()
    assert (num_reused(bench, cheap), num_reused(bench, dear)) == (0, 3)


def test_with_block_reuse_the_blocks_of_all_requests_are_kept_and_the_oldest_go_first() -> None:
    bench = Bench(is_block_reuse=True, num_kv_blocks=16)
    first = bench.perf(LONG)
    assert first.kv_cache_reused_blocks == 0
    assert num_reused(bench) == 3  # the last token is computed in any case
    for number in range(3):
        bench.tokens([100 + 20 * number + index for index in range(16)])
    assert num_reused(bench) == 0


def test_events_tell_what_is_kept_as_it_comes_and_goes() -> None:
    bench = Bench(is_block_reuse=True, num_kv_blocks=16)
    held = HeldBlocks(4)
    gone = 0
    for number in range(40):
        prompt = [20 + (7 * number + index) % 150 for index in range(4 + number % 30)]
        reused = len(held.prompt_blocks(prompt[:-1], adapter=None, salt=None))
        perf = bench.perf(prompt)
        for event in bench.engine.take_kv_events():
            held.apply(event)
            gone += len(event.block_hashes) if isinstance(event, BlocksRemoved) else 0
        # Of what was held some may have given way to this very request.
        assert perf.kv_cache_reused_blocks is not None
        assert perf.kv_cache_reused_blocks <= reused
        assert len(held) == len(bench.engine._retained._kept)
    assert gone > 20


def test_an_engine_that_is_not_to_tell_tells_nothing() -> None:
    spec = SimulatedEngineSpec(provider="simulated", is_block_reuse=True)
    engine = SimulatedEngine(spec, VirtualClock())
    engine.add(GenerationRequest(key=1, input_ids=list(range(64)), sampling=SamplingParams(max_tokens=1)))
    while engine.has_work:
        engine.step()
    assert engine.take_kv_events() == []
