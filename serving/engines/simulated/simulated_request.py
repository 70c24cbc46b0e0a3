# SPDX-License-Identifier: Apache-2.0
"""A request of the engine without a model, and what it has made so far."""

from dataclasses import dataclass, field

from serving.engines.seam.base import GenerationRequest, PerfMetrics
from serving.engines.seam.paged_batch import Sequence
from serving.engines.seam.request_times import RequestTimes


@dataclass(slots=True)
class SimulatedRequest:
    """A request with its place in the batch, `sequence`."""

    request: GenerationRequest
    sequence: Sequence
    num_reused_tokens: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)
    output_ids: list[int] = field(default_factory=list)
    fails: bool = False  # at its first token

    def perf(self, block_tokens: int) -> PerfMetrics | None:
        """Return the metrics of the request at its end."""
        num_blocks, num_reused = self.sequence.num_allocated_blocks, self.num_reused_tokens // block_tokens
        return self.times.perf(
            kv_cache_alloc_new_blocks=num_blocks - num_reused,
            kv_cache_reused_blocks=num_reused,
            kv_cache_alloc_total_blocks=num_blocks,
            total_accepted_draft_tokens=0,
            total_draft_tokens=0,
            num_preemptions=self.sequence.num_preemptions,
        )
