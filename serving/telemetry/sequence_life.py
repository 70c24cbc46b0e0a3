# SPDX-License-Identifier: Apache-2.0
"""The times and counts of one sequence between its request's arrival here and its last chunk."""

import time
from dataclasses import dataclass, field

from serving.engines.seam.base import PerfMetrics


@dataclass(slots=True)
class SequenceLife:
    """The times and counts of a sequence in this process; seconds are of the monotonic clock, 0: not reached yet."""

    num_prompt_tokens: int
    kv_block_tokens: int  # of the engine's cache
    arrival_s: float = field(init=False, default_factory=time.monotonic)
    arrival_ns: int = field(init=False, default_factory=time.time_ns)  # of the system's clock
    num_tokens: int = field(init=False, default=0)
    first_s: float = field(init=False, default=0.0)
    last_s: float = field(init=False, default=0.0)

    @property
    def first_token_ns(self) -> int:
        """Return the time of the first token in ns of the system's clock; 0: there is none."""
        return self._wall_ns(self.first_s)

    @property
    def last_token_ns(self) -> int:
        """Return the time of the newest token in ns of the system's clock; 0: there is none."""
        return self._wall_ns(self.last_s)

    def num_cached_tokens(self, perf: PerfMetrics | None) -> int | None:
        """Return the number of prompt tokens that needed no prefill; None: the engine does not report it."""
        return None if perf is None else perf.cached_tokens(self.kv_block_tokens)

    def _wall_ns(self, moment_s: float) -> int:
        return self.arrival_ns + round((moment_s - self.arrival_s) * 1e9) if moment_s else 0
