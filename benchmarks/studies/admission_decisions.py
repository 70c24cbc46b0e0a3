# SPDX-License-Identifier: Apache-2.0
"""The cost of admission for a request in the engine's process: processor time without the engine's.

`python -m benchmarks.studies.admission_decisions`; a minute. A request is added, waits, starts and is accounted for
token by token; the queue is kept as long as it was. What the engine takes for the same requests by itself is taken off.
"""

import itertools
import random
import statistics
import time
from collections.abc import Iterator

import typer

from benchmarks.support.report import write_result
from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.scheduling import Scheduling
from serving.engines.simulated.simulated_engine import SimulatedEngine

ENGINE = SimulatedEngineSpec(provider="simulated", max_num_seqs=64, num_kv_blocks=4096, max_num_batched_tokens=2048)
SPEC = AdmissionSpec.model_validate({"queue": {"max_requests": 100_000, "max_tokens": 100_000_000}})
NUM_WAITING = (1_000, 10_000, 30_000)
NUM_TOKENS = 8
_NUM_REQUESTS, _NUM_ROUNDS = 3_000, 5


def requests(seed: int) -> Iterator[GenerationRequest]:
    """Yield requests of every class and twenty tenants, some with a deadline that is far away."""
    rng = random.Random(seed)
    for key in itertools.count():
        scheduling = Scheduling(
            priority=rng.choices([1, 2, 3], [2, 5, 3])[0],
            tenant=f"tenant {rng.randrange(20)}",
            deadline_ms=rng.choice([None, 1e9]),
        )
        yield GenerationRequest(
            key=key, input_ids=[20] * 32, sampling=SamplingParams(max_tokens=NUM_TOKENS), scheduling=scheduling
        )


def microseconds_per_request(engine: Engine, num_waiting: int) -> list[float]:
    """Return the microseconds for a request in each round, while `num_waiting` requests wait."""
    made = requests(1)
    for _ in range(num_waiting):
        engine.add(next(made))
    found = []
    for _ in range(_NUM_ROUNDS):
        coming = list(itertools.islice(made, _NUM_REQUESTS))
        num_done, begun_s = 0, time.process_time()
        while num_done < _NUM_REQUESTS:
            num_ended = sum(chunk.finish_reason is not None for chunk in engine.step())
            for one in coming[num_done : num_done + num_ended]:
                engine.add(one)
            num_done += num_ended
        found.append(1e6 * (time.process_time() - begun_s) / num_done)
    return found


def main() -> None:
    """Measure, print and keep."""
    bare_us = statistics.median(microseconds_per_request(SimulatedEngine(ENGINE, VirtualClock()), 128))
    found: dict[str, dict[str, float]] = {}
    for num_waiting in NUM_WAITING:
        clock = VirtualClock()
        engine = AdmittingEngine(SimulatedEngine(ENGINE, clock), SPEC, SloSpec(), clock)
        rounds_us = [one - bare_us for one in microseconds_per_request(engine, num_waiting)]
        found[str(num_waiting)] = {"median_us": statistics.median(rounds_us), "least_us": min(rounds_us)}
        print(f"{num_waiting} waiting: {found[str(num_waiting)]}")
    result = {"benchmark": "admission_decisions", "engine_alone_us": bare_us, "tokens": NUM_TOKENS, "waiting": found}
    print(f"written to {write_result('admission_decisions', result)}")


if __name__ == "__main__":
    typer.run(main)
