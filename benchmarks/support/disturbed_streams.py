# SPDX-License-Identifier: Apache-2.0
"""Waiting times of running streams while one long prompt is prefilled beside them, in-process and over the ensemble."""

import asyncio
import itertools
import time
from collections import defaultdict

import msgspec

from benchmarks.support.workload import exact_stream
from clients.streaming import AsyncTritonClient, GenerateRequest
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams

_KEYS = itertools.count(1)


class Scene(msgspec.Struct, frozen=True):
    """Streams that run, and what arrives when each has `num_tokens_before` tokens."""

    prompts: list[list[int]] | list[str]
    num_tokens: int  # of each stream
    num_tokens_before: int
    long_prompt: list[int] | str | None  # None: nothing arrives
    num_long_tokens: int = 1  # of its answer; its time ends with the first


class Disturbance(msgspec.Struct, frozen=True):
    """The streams' waiting times from the arrival on, until the long prompt had its first token, or to their end."""

    gaps_ms: list[float]  # between two responses of a stream, over all streams
    ttft_ms: float | None  # of the long prompt


class _Watch:
    """Arrivals of responses, by stream."""

    def __init__(self) -> None:
        self._arrivals_s: defaultdict[int, list[float]] = defaultdict(list)
        self.start_s: float | None = None
        self.end_s = float("inf")

    def note(self, stream: int) -> None:
        self._arrivals_s[stream].append(time.perf_counter())

    def disturbance(self) -> Disturbance:
        assert self.start_s is not None, "the streams ended before anything could arrive"
        gaps = [
            1000 * (later_s - earlier_s)
            for arrivals_s in self._arrivals_s.values()
            for earlier_s, later_s in itertools.pairwise(arrivals_s)
            # What the end of the prefill falls into counts: that gap is the longest.
            if later_s > self.start_s and earlier_s < self.end_s
        ]
        return Disturbance(gaps, None if self.end_s == float("inf") else 1000 * (self.end_s - self.start_s))


def disturb_engine(engine: Engine, scene: Scene) -> Disturbance:
    """Measure step by step, with nothing between the engine and its caller. Prompts are token ids."""
    watch, num_tokens = _Watch(), dict[int, int]()
    for prompt in scene.prompts:
        assert isinstance(prompt, list)
        num_tokens[_add(engine, prompt, scene.num_tokens)] = 0
    long_key = None
    while engine.has_work:
        if watch.start_s is None and min(num_tokens.values()) >= scene.num_tokens_before:
            watch.start_s = time.perf_counter()
            if isinstance(scene.long_prompt, list):
                long_key = _add(engine, scene.long_prompt, 1)
        for chunk in engine.step():
            if chunk.key == long_key:
                watch.end_s = time.perf_counter()
            else:
                watch.note(chunk.key)
                num_tokens[chunk.key] += len(chunk.token_ids)
    return watch.disturbance()


def _add(engine: Engine, prompt: list[int], max_tokens: int) -> int:
    sampling = SamplingParams(max_tokens=max_tokens, end_id=-1)
    key = next(_KEYS)
    engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))
    return key


async def disturb_server(url: str, scene: Scene) -> Disturbance:
    """Measure over gRPC, by the project's own client. Prompts are texts."""
    watch, is_time = _Watch(), asyncio.Event()
    num_behind = len(scene.prompts)  # streams that have not `num_tokens_before` tokens yet

    async def read(client: AsyncTritonClient, stream: int, prompt: str) -> None:
        nonlocal num_behind
        num_tokens = 0
        async for chunk in client.generate(_asked(prompt, scene.num_tokens)):
            watch.note(stream)
            had, num_tokens = num_tokens, num_tokens + (chunk.num_output_tokens or 0)
            num_behind -= had < scene.num_tokens_before <= num_tokens
            if num_behind == 0:
                is_time.set()

    async def arrive(client: AsyncTritonClient) -> None:
        await is_time.wait()
        watch.start_s = time.perf_counter()
        if isinstance(scene.long_prompt, str):
            async for _ in client.generate(_asked(scene.long_prompt, scene.num_long_tokens)):
                watch.end_s = min(watch.end_s, time.perf_counter())

    async with AsyncTritonClient(url) as client:
        await client.is_ready()
        readers = [read(client, index, str(prompt)) for index, prompt in enumerate(scene.prompts)]
        await asyncio.gather(*readers, arrive(client))
    return watch.disturbance()


def _asked(prompt: str, num_tokens: int) -> GenerateRequest:
    return exact_stream(prompt, num_tokens, return_num_output_tokens=True)
