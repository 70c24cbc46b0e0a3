# SPDX-License-Identifier: Apache-2.0
"""Requests on a real engine of vLLM, in its own interpreter."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllm_environment import vllm_spec

from serving.engines.providers import create_engine
from serving.engines.seam.base import (
    Engine,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
)
from serving.engines.seam.scheduling import Priority, Scheduling


@dataclass
class Answer:
    """An answer of an engine so far."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    perf: PerfMetrics | None = None


@dataclass
class Run:
    """An engine and the keys of its requests."""

    engine: Engine
    method: str = ""  # of speculative decoding
    keys: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, prompt: list[int], **sampling: Any) -> int:
        """Queue a request, with its `priority`; it ends at 16 tokens where nothing else is said."""
        fields: dict[str, Any] = {"max_tokens": 16, "end_id": -1}
        scheduling = sampling.pop("scheduling", Scheduling(priority=sampling.pop("priority", Priority.STANDARD)))
        params = SamplingParams(**(fields | sampling))
        key = next(self.keys)
        self.engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=params, scheduling=scheduling))
        return key

    def drain(self, max_steps: int = 5000) -> dict[int, Answer]:
        """Run the engine until it has nothing to do; the answers by key."""
        answers: dict[int, Answer] = {}
        for _ in range(max_steps):
            if not self.engine.has_work:
                return answers
            for chunk in self.engine.step():
                answer = answers.setdefault(chunk.key, Answer())
                answer.token_ids += chunk.token_ids
                answer.log_probs += chunk.log_probs or []
                answer.finish_reason = chunk.finish_reason or answer.finish_reason
                answer.error = chunk.error or answer.error
                answer.perf = chunk.perf or answer.perf
        raise AssertionError(f"the engine has work after {max_steps} steps: {self.engine.stats()}")

    def ask(self, prompt: list[int], **sampling: Any) -> Answer:
        """Return the answer of a request that is alone."""
        key = self.add(prompt, **sampling)
        return self.drain()[key]


@contextmanager
def running(*, tells_kv_events: bool = False, **changes: object) -> Iterator[Run]:
    """Load an engine, and free it."""
    engine = create_engine(vllm_spec(**changes), tells_kv_events=tells_kv_events)
    try:
        yield Run(engine)
    finally:
        engine.close()
