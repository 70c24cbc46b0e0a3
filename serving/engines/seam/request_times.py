# SPDX-License-Identifier: Apache-2.0
"""The times of one request in an engine, for `PerfMetrics`."""

import time
from dataclasses import dataclass, field

from serving.engines.seam.base import PerfMetrics


@dataclass(slots=True)
class RequestTimes:
    """The times of a request in nanoseconds of the system's clock; 0: not yet."""

    arrival_ns: int = field(default_factory=time.time_ns)
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0

    def note_scheduled(self) -> None:
        """Note that the request has become part of the batch; only the first time counts."""
        self.first_scheduled_ns = self.first_scheduled_ns or time.time_ns()

    def note_token(self) -> None:
        """Note that the request has just got tokens."""
        self.last_token_ns = time.time_ns()
        self.first_token_ns = self.first_token_ns or self.last_token_ns

    def perf(self, *, kv_cache_transfer_ms: float | None = None, **known: int | None) -> PerfMetrics | None:
        """Return the times with `known` fields of `PerfMetrics`; None before the first token."""
        if not self.first_token_ns:
            return None
        return PerfMetrics(
            self.arrival_ns,
            self.first_scheduled_ns,
            self.first_token_ns,
            self.last_token_ns,
            kv_cache_transfer_ms=kv_cache_transfer_ms,
            **known,
        )
