# SPDX-License-Identifier: Apache-2.0
"""Requests against an admitting engine in virtual time, with everything checked that must hold at every moment."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.admission.admitting_engine import AdmittingEngine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams, TokenChunk
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.scheduling import Scheduling
from serving.engines.simulated.simulated_engine import SimulatedEngine
from trireme.base.errors import RequestError, Unavailable

VOCAB_SIZE = 64  # so that one token in 64 is the one that ends a request


def small_engine(**changes: object) -> SimulatedEngineSpec:
    spec = {
        "provider": "simulated", "vocab_size": VOCAB_SIZE, "max_seq_len": 512, "max_num_seqs": 16,
        "num_kv_blocks": 64, "kv_block_tokens": 8, "max_num_batched_tokens": 128, "step_ms": 10.0,
    }  # fmt: skip
    return SimulatedEngineSpec.model_validate(spec | changes)


def request(
    key: int, num_prompt: int = 8, max_tokens: int = 8, *, end_id: int | None = None, **scheduling: object
) -> GenerationRequest:
    return GenerationRequest(
        key=key,
        input_ids=[16 + (key * 7 + i) % 40 for i in range(num_prompt)],
        sampling=SamplingParams(max_tokens=max_tokens, end_id=end_id),
        scheduling=Scheduling(**scheduling),  # type: ignore[arg-type]
    )


@dataclass
class AdmissionRun:
    """A run of an engine, and the end of each request."""

    spec: AdmissionSpec = field(default_factory=AdmissionSpec)
    engine_spec: SimulatedEngineSpec = field(default_factory=small_engine)
    slo: SloSpec = field(default_factory=SloSpec)
    engine_of: Callable[[SimulatedEngineSpec, VirtualClock], Engine] = SimulatedEngine

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.inner = self.engine_of(self.engine_spec, self.clock)
        self.engine = AdmittingEngine(self.inner, self.spec, self.slo, self.clock)
        self.open: dict[int, GenerationRequest] = {}
        self.asked: dict[int, GenerationRequest] = {}
        self.output: dict[int, list[int]] = {}
        self.first_token_s: dict[int, float] = {}
        self.ends: dict[int, str] = {}
        self.started: list[int] = []  # keys, in the order of their first tokens

    def add(self, one: GenerationRequest) -> str | None:
        """Add a request, and return the refusal if it is refused."""
        assert one.key not in self.ends
        try:
            self.engine.add(one)
        except (RequestError, Unavailable) as exc:
            self._end(one.key, exc.code)
            return str(exc)
        self.open[one.key] = self.asked[one.key] = one
        self.output[one.key] = []
        self.check()
        return None

    def cancel(self, key: int) -> None:
        self.engine.cancel(key)
        if self.open.pop(key, None) is not None:
            self._end(key, "cancelled")
        self.check()

    def step(self) -> list[TokenChunk]:
        chunks = self.engine.step()
        assert len({chunk.key for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            assert chunk.key in self.open, "a chunk of a request that has ended, or never was"
            if chunk.token_ids and not self.output[chunk.key]:
                self.started.append(chunk.key)
                self.first_token_s[chunk.key] = self.clock.now_s()
            self.output[chunk.key] += chunk.token_ids
            if chunk.error is not None or chunk.finish_reason is not None:
                del self.open[chunk.key]
                self._end(chunk.key, chunk.error[1:].split()[0] if chunk.error else str(chunk.finish_reason))
        self.check()
        return chunks

    def drain(self, max_steps: int = 1_000_000) -> None:
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.open
        assert self.inner.stats().num_used_kv_blocks == 0
        budget = self.engine.budget
        assert (len(budget), budget.num_reserved_blocks, budget.num_reserved_tokens) == (0, 0, 0)

    def num_running(self) -> int:
        """Return the number of requests in the engine."""
        return self.inner.stats().num_running

    def check(self) -> None:
        """Check that what is in flight is within the budget, and that no request holds more than its reservation."""
        budget, stats = self.engine.budget, self.inner.stats()
        assert stats.num_used_kv_blocks <= budget.num_reserved_blocks <= budget.num_blocks
        assert budget.num_reserved_tokens <= budget.max_tokens
        assert stats.num_running + stats.num_waiting <= len(budget) <= budget.max_num_seqs
        assert stats.num_preemptions == 0, "the engine ran out of blocks, though each was reserved"

    def _end(self, key: int, how: str) -> None:
        assert key not in self.ends, f"request {key} ended twice: {self.ends.get(key)}, {how}"
        self.ends[key] = how


def random_run(seed: int, num_requests: int, **changes: object) -> AdmissionRun:
    """Run requests of all sizes at a load that goes up and down around capacity.

    Some are cancelled or late.
    """
    rng = random.Random(seed)
    spec = AdmissionSpec.model_validate({
        "budget": {
            "forecast": rng.choice(["learned", "max_tokens"]), "forecast_quantile": rng.choice([0.3, 0.7]),
            "max_tokens": rng.choice([None, 300]), "kv_fraction": rng.choice([1.0, 0.8]),
        },
        "queue": {
            "policy": rng.choice(["fifo", "fair_classes", "fair_classes"]), "ageing_s": rng.choice([0, 0.5, 30]),
            "is_shortest_first": rng.random() < 0.5, "max_requests": rng.choice([8, 64, 1024]),
            "tenant_weights": {"a": 3.0},
        },
    } | changes)  # fmt: skip
    run = AdmissionRun(spec, slo=SloSpec(ttft_ms=rng.choice([None, 300.0]), tpot_ms=rng.choice([None, 30.0])))
    next_s, rate_per_s = 0.0, 20.0
    for key in range(num_requests):
        if key % 500 == 0:
            rate_per_s = rng.choice([5.0, 20.0, 60.0])
        next_s += rng.expovariate(rate_per_s)
        while run.clock.now_s() < next_s:
            if run.engine.has_work:
                run.step()
            else:
                run.clock.sleep_s(next_s - run.clock.now_s())
        run.add(
            request(
                key, rng.randrange(1, 60), int(min(180, 1 + rng.expovariate(1 / 40))), end_id=20,
                priority=rng.choices([1, 2, 3], [2, 5, 3])[0], tenant=rng.choice("abc"),
                deadline_ms=rng.choice([None, None, rng.uniform(1, 3000)]),
                queue_timeout_ms=rng.choice([None, None, rng.uniform(1, 1000)]),
            )
        )  # fmt: skip
        if rng.random() < 0.1 and run.open:
            run.cancel(rng.choice([key, *list(run.open)[:3]]))
    run.drain()
    assert len(run.ends) == num_requests
    return run


def summary(run: AdmissionRun) -> Counter[str]:
    return Counter(run.ends.values())
