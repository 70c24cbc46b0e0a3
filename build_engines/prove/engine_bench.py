# SPDX-License-Identifier: Apache-2.0
"""A program that puts an engine under steady loads, through the seam and nothing else; it loads a GPU.

`python -m build_engines.prove.engine_bench QUESTION ANSWER`: an `EngineQuestion` as JSON is read, an `EngineAnswer` is
written after every load, so that what breaks later does not lose it.
"""

import itertools
import sys
import time
from pathlib import Path

import msgspec
from pydantic import TypeAdapter

from build_engines.prove.closed_loop import ClosedLoop, Measured, SteadyLoad, random_prompts
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from trireme.base.errors import ServerError
from trireme.base.known_types import known


class EngineQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The engine to measure, and the loads on it."""

    engine: dict[str, object]  # an `EngineSpec`
    loads: list[SteadyLoad]


class EngineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements, load by load."""

    load_s: float  # until the engine could be asked
    num_kv_tokens: int  # tokens that the KV cache holds
    measured: list[Measured]


def run_load(engine: Engine, load: SteadyLoad, *, seed: int = 0) -> Measured:
    """Run a load to its end; the engine is empty again afterwards.

    Raises:
        ServerError: a request failed.
    """
    loop = ClosedLoop(load)
    prompts = random_prompts(engine.info.vocab_size, load.isl, seed=seed)
    numbers: dict[int, int] = {}  # of the loop, by key

    def send() -> None:
        prompt = next(prompts)
        turn = loop.send(time.monotonic_ns())
        sampling = SamplingParams(max_tokens=turn.num_tokens, min_tokens=turn.num_tokens, end_id=-1)
        key = next(_KEYS)
        numbers[key] = turn.number
        engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=sampling))

    for _ in range(load.concurrency):
        send()
    while not loop.is_over:
        for chunk in engine.step():
            if chunk.error is not None:
                raise ServerError(f"a request failed under {load.concurrency} clients: {chunk.error}")
            now_ns = time.monotonic_ns()
            if chunk.token_ids:
                loop.arrive(numbers[chunk.key], len(chunk.token_ids), now_ns)
            if chunk.finish_reason is not None:
                loop.end(numbers.pop(chunk.key), now_ns)
                send()
    for key in numbers:
        engine.cancel(key)
    while engine.has_work:
        engine.step()
    return loop.measured()


_KEYS = itertools.count(1)


def main() -> None:
    """Measure the engine of the question."""
    question = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=known(EngineQuestion))
    spec: EngineSpec = TypeAdapter[EngineSpec](EngineSpec).validate_python(question.engine)
    started_s = time.monotonic()
    engine = create_engine(spec)
    load_s = time.monotonic() - started_s
    info, measured = engine.info, list[Measured]()
    try:
        for seed, load in enumerate(question.loads):
            measured.append(run_load(engine, load, seed=seed))
            answer = EngineAnswer(
                load_s=load_s, num_kv_tokens=info.num_kv_blocks * info.kv_block_tokens, measured=measured
            )
            Path(sys.argv[2]).write_bytes(msgspec.json.encode(answer))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
