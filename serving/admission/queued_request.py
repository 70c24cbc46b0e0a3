# SPDX-License-Identifier: Apache-2.0
"""A request as admission sees it, from its arrival to its end."""

import math
from dataclasses import dataclass, field

from serving.engines.seam.base import GenerationRequest, PerfMetrics
from serving.engines.seam.scheduling import Priority


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedRequest:
    """A request that waits, runs, may be preempted once and wait again, and ends; times in seconds of the clock."""

    request: GenerationRequest
    arrival_s: float
    priority: Priority
    tenant: str
    num_queued_tokens: int  # prompt and expected output, as counted while the request waits
    is_preemptible: bool  # can be resumed exactly where it was stopped, and has not been stopped yet
    start_by_s: float = math.inf  # the client's limits
    end_by_s: float = math.inf
    hopeless_s: float = math.inf  # a start after this misses the deployment's target
    decide_s: float = math.inf  # then refused, unless it would start with the next step
    num_output_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)  # kept for a request that may be or was preempted
    started_s: float | None = None  # time of the last start
    engine_key: int = 0  # the engine's key since the last start
    num_preemptions: int = 0
    perf: PerfMetrics | None = None  # metrics up to the preemption, where the engine gives them
    expected_work: float = 0.0  # charged to the tenant at the start
    is_charged: bool = True  # False for a request started within its tenant's share

    @property
    def key(self) -> int:
        """Return the request's key."""
        return self.request.key

    @property
    def num_queued_output_tokens(self) -> int:
        """Return the output tokens that the request was expected to make when it came."""
        return self.num_queued_tokens - len(self.request.input_ids)

    @property
    def num_known_tokens(self) -> int:
        """Return the tokens of the prompt and of the output so far."""
        return len(self.request.input_ids) + self.num_output_tokens
