# SPDX-License-Identifier: Apache-2.0
"""The times and counts of a request that was preempted and went on, as those of one request."""

import msgspec

from serving.engines.seam.base import PerfMetrics

_SUMMED = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "num_preemptions")


def joined_perf(earlier: PerfMetrics | None, later: PerfMetrics) -> PerfMetrics:
    """Return the metrics of a request from its two parts; `earlier` is None before the first part has ended."""
    if earlier is None:
        return later
    sums = {name: _sum(getattr(earlier, name), getattr(later, name)) for name in _SUMMED}
    first = earlier.kv_cache_reused_blocks if earlier.first_reused_blocks is None else earlier.first_reused_blocks
    return msgspec.structs.replace(
        earlier, last_token_time_ns=later.last_token_time_ns, first_reused_blocks=first, **sums
    )


def _sum(earlier: int | None, later: int | None) -> int | None:
    return None if earlier is None or later is None else earlier + later
