# SPDX-License-Identifier: Apache-2.0
"""Tests of what is said of OpenVINO's prefix cache against what it did, counted by hand."""

import random
from dataclasses import dataclass, field
from typing import cast

import openvino_genai
import pytest

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.openvino.openvino_cached_tokens import CachedTokens
from serving.engines.openvino.openvino_pipeline import (
    FINISH_REASONS,
    IGNORED,
    KV_BLOCK_TOKENS,
    Handle,
    Pipeline,
    generation_config,
    token_tensor,
)
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, PerfMetrics, SamplingParams
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow

TARGET = CODE_ROOT / "examples/demo_model/openvino/target"


@dataclass
class Asked:
    """A request that runs."""

    handle: Handle
    token_ids: list[int]
    num_cached: int | None
    num_steps: int = 0  # until it had a token
    num_made: int = 0


@dataclass
class Bench:
    """A pipeline, and what follows it."""

    num_blocks: int
    seed: int
    pipeline: Pipeline = field(init=False)
    cached: CachedTokens = field(init=False)
    running: dict[int, Asked] = field(default_factory=dict)
    earlier: list[list[int]] = field(default_factory=list)  # prompts with their answers
    num_keys: int = 0
    step_tokens: int = 1
    num_short_steps: int = 0  # that made fewer tokens than there was room for: one that had tokens is computed again

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.stems = [[self.random.randrange(300, 4000) for _ in range(400)] for _ in range(4)]
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = self.step_tokens
        scheduler.max_num_seqs = 64
        scheduler.num_kv_blocks = self.num_blocks
        scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": 1}
        loaded = openvino_genai.ContinuousBatchingPipeline(str(TARGET), scheduler, "CPU", properties)
        self.pipeline = cast(Pipeline, loaded)
        self.cached = CachedTokens(
            num_blocks=self.num_blocks, block_tokens=KV_BLOCK_TOKENS, max_num_batched_tokens=self.step_tokens
        )

    def prompt(self, max_tokens: int) -> list[int]:
        """Return a prompt that shares its beginning with others, at any length."""
        draw = self.random
        known = draw.choice(self.earlier) if self.earlier and draw.random() < 0.4 else draw.choice(self.stems)
        known = known[: draw.randrange(1, min(max_tokens, len(known)) + 1)]
        return known + [draw.randrange(300, 4000) for _ in range(draw.choice((0, 0, 1, 5, 40)))]

    def ask(self, token_ids: list[int], max_tokens: int) -> int:
        """Begin a request; returns its key."""
        self.num_keys += 1
        key = self.num_keys
        sampling = SamplingParams(max_tokens=max_tokens, end_id=-1)
        config = generation_config(sampling, end_ids=(), vocab_size=4096)
        num_cached = self.cached.add(key, token_ids)
        self.running[key] = Asked(
            self.pipeline.add_request(key, token_tensor(token_ids), config), token_ids, num_cached
        )
        return key

    def step(self) -> None:
        """Run a step of the pipeline, and of what follows it."""
        num_decoding = sum(asked.num_made > 0 for asked in self.running.values())
        self.pipeline.step()
        made: dict[int, list[int]] = {}
        ended = set()
        for key, asked in self.running.items():
            asked.num_steps += not asked.num_made
            if not asked.handle.can_read():
                continue
            for output in asked.handle.read().values():
                made[key] = output.generated_ids
                asked.num_made += len(output.generated_ids)
                if FINISH_REASONS[output.finish_reason.value] is not None:
                    ended.add(key)
            if asked.handle.get_status() == IGNORED:
                ended.add(key)
            asked.token_ids = asked.token_ids + made.get(key, [])
        self.num_short_steps += sum(map(len, made.values())) < min(num_decoding, self.step_tokens)
        num_used = round(self.pipeline.get_metrics().cache_usage * self.num_blocks / 100)
        self.cached.step(made, ended, num_used_blocks=num_used)
        for key in ended:
            self.earlier.append(self.running.pop(key).token_ids)

    def cancel(self, key: int) -> None:
        """Cancel a request, as for a client that leaves."""
        self.running.pop(key).handle.cancel()
        self.cached.cancel(key)

    def check_alone(self, num_requests: int) -> tuple[int, int]:
        """Ask one after the other and count; returns the tokens of all prompts, and how many were cached."""
        num_prompt_tokens = num_cached = 0
        for _ in range(num_requests):
            prompt = self.prompt(min(300, self.num_blocks * KV_BLOCK_TOKENS - 80))
            key = self.ask(prompt, self.random.choice((1, 2, 5, 40)))
            asked = self.running[key]
            while self.pipeline.has_non_finished_requests():
                self.step()
            assert asked.num_cached is not None
            num_computed = len(prompt) - asked.num_cached
            assert -(-num_computed // self.step_tokens) == asked.num_steps, f"request {key} of seed {self.seed}"
            num_prompt_tokens += len(prompt)
            num_cached += asked.num_cached
        return num_prompt_tokens, num_cached

    def mix(self, num_requests: int) -> None:
        """Run requests beside each other, some of which leave before their end."""
        begun = 0
        while begun < num_requests or self.running:
            while begun < num_requests and len(self.running) < 5 and self.random.random() < 0.3:
                begun += 1
                self.ask(self.prompt(100), self.random.choice((1, 20, 120)))
            if self.running:
                self.step()
            if self.running and self.random.random() < 0.01:
                self.cancel(self.random.choice(list(self.running)))
        while self.pipeline.has_non_finished_requests():
            self.step()


@pytest.mark.parametrize(
    "num_requests", [pytest.param(20, id="sample"), pytest.param(2000, id="all", marks=pytest.mark.soak)]
)
def test_the_count_is_that_of_the_steps_while_blocks_are_overwritten(num_requests: int) -> None:
    bench = Bench(num_blocks=24, seed=1)
    num_tokens, num_cached = bench.check_alone(num_requests)
    assert num_tokens > 24 * KV_BLOCK_TOKENS * 2, "blocks were overwritten"
    assert 0.1 < num_cached / num_tokens < 0.9


@pytest.mark.parametrize(
    ("num_rounds", "seed"), [pytest.param(1, 1, id="sample"), pytest.param(60, 4, id="all", marks=pytest.mark.soak)]
)
def test_the_count_still_is_that_of_the_steps_after_others_ran_were_preempted_and_left(
    num_rounds: int, seed: int
) -> None:
    bench = Bench(num_blocks=10, seed=seed, step_tokens=4)
    for _ in range(num_rounds):
        bench.mix(16)
        bench.check_alone(12)
    assert bench.num_short_steps > 0, "some were preempted"
    assert bench.cached.is_followed


def test_the_count_is_that_of_the_steps_at_the_edges_of_blocks() -> None:
    bench = Bench(num_blocks=16, seed=1)
    stem = list(range(300, 400))
    for num_tokens, num_cached in [(33, 0), (33, 32), (65, 33), (65, 64), (1, 0), (2, 1), (64, 63), (32, 31), (31, 1)]:
        key = bench.ask(stem[:num_tokens], 1)
        asked = bench.running[key]
        while bench.pipeline.has_non_finished_requests():
            bench.step()
        assert (asked.num_cached, asked.num_steps) == (num_cached, num_tokens - num_cached)
    assert bench.cached.is_followed


def test_nothing_is_told_once_the_pipeline_has_used_other_blocks_than_expected() -> None:
    cached = CachedTokens(num_blocks=8, block_tokens=4, max_num_batched_tokens=64)
    assert cached.add(1, [1, 2, 3, 4, 5]) == 0
    cached.step({1: [9]}, {1}, num_used_blocks=2)
    assert cached.add(2, [1, 2, 3, 4, 5]) == 4, "the last token is always computed"
    assert cached.is_followed
    cached.step({2: [9]}, {2}, num_used_blocks=3)
    assert cached.why_lost == "the pipeline used 3 blocks, and not 2"
    assert cached.add(3, [1, 2, 3, 4, 5]) is None


def engine_of(**changes: object) -> Engine:
    given = {"provider": "openvino", "dir": TARGET, "max_seq_len": 512, "max_num_seqs": 8, "num_kv_blocks": 64}
    return create_engine(OpenVinoEngineSpec.model_validate(given | changes))


def perf(engine: Engine, key: int, token_ids: list[int], **sampling: object) -> PerfMetrics:
    """Return what is told of a request at its end."""
    params = SamplingParams(**({"max_tokens": 3, "end_id": -1} | sampling))  # type: ignore[arg-type]
    engine.add(GenerationRequest(key=key, input_ids=token_ids, sampling=params))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    assert chunks[-1].perf is not None
    return chunks[-1].perf


def test_a_request_tells_at_its_end_how_much_of_its_prompt_was_cached() -> None:
    engine = engine_of()
    prompt = list(range(300, 400))
    told = [
        perf(engine, key, token_ids).num_cached_tokens
        for key, token_ids in enumerate([prompt, prompt, prompt[:64] + [5] * 30, [*prompt[:70], 7], [0] * 40], start=1)
    ]
    # Of the first prompt, whole blocks: its last one went on with the answer. The last one begins as that of the load.
    assert told == [0, 96, 64, 64, 32]


def test_beams_end_what_is_told() -> None:
    engine = engine_of()
    prompt = list(range(300, 400))
    assert perf(engine, 1, prompt, beam_width=2).num_cached_tokens is None
    assert perf(engine, 2, prompt).num_cached_tokens is None


def test_without_prefix_caching_nothing_is_told() -> None:
    assert perf(engine_of(is_prefix_caching=False), 1, list(range(300, 400))).num_cached_tokens is None


def test_a_request_that_is_put_back_tells_what_was_cached_when_it_first_began() -> None:
    engine = engine_of(num_kv_blocks=4, max_seq_len=128, max_num_batched_tokens=32)
    sampling = SamplingParams(max_tokens=60, end_id=-1)
    for key in (1, 2):
        engine.add(GenerationRequest(key=key, input_ids=[key + 300] * 33, sampling=sampling))
    told: dict[int, int | None] = {}
    while engine.has_work:
        told |= {chunk.key: chunk.perf.num_cached_tokens for chunk in engine.step() if chunk.perf is not None}
    assert told == {1: 0, 2: 0}
