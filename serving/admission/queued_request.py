# SPDX-License-Identifier: Apache-2.0
"""A request as admission sees it, from its arrival to its end."""

import math
from dataclasses import dataclass, field

from serving.engines.seam.base import GenerationRequest, PerfMetrics
from serving.engines.seam.scheduling import Priority


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """Waits, runs, may be preempted once and wait again, and ends."""

    request: GenerationRequest
    arrival_s: float
    priority: Priority
    tenant: str
    num_queued_tokens: int  # of prompt and output, as it is counted while it waits
    is_preemptible: bool  # it would go on exactly where it was stopped; and it has not been stopped yet
    start_by_s: float = math.inf  # the client's limits
    end_by_s: float = math.inf
    hopeless_s: float = math.inf  # a start after this misses the deployment's target
    decide_s: float = math.inf  # who would not start with the next step then is refused
    num_output_tokens: int = 0
    output_ids: list[int] = field(default_factory=list)  # of one that may be preempted, and that was
    started_s: float | None = None  # the last time
    engine_key: int = 0  # of its last start
    num_preemptions: int = 0
    perf: PerfMetrics | None = None  # up to its preemption, where the engine tells
    expected_work: float = 0.0  # that its tenant was charged with at its start
    is_charged: bool = True  # not what was started within the tenant's share

    @property
    def key(self) -> int:
        """The request's."""
        return self.request.key

    @property
    def num_queued_output_tokens(self) -> int:
        """That it was expected to make when it came."""
        return self.num_queued_tokens - len(self.request.input_ids)

    @property
    def num_known_tokens(self) -> int:
        """Of prompt and output so far."""
        return len(self.request.input_ids) + self.num_output_tokens
