# SPDX-License-Identifier: Apache-2.0
"""The measurements of TensorRT-LLM for a request, in the seam's words."""

import time
from datetime import timedelta
from typing import Protocol

from serving.engines.seam.base import PerfMetrics


class _Timing(Protocol):
    """The times of a request by C++'s steady clock, which is Python's monotonic one on Linux."""

    arrival_time: timedelta
    first_scheduled_time: timedelta
    first_token_time: timedelta
    last_token_time: timedelta
    kv_cache_transfer_start: timedelta  # both 0 of a request that took no blocks from another engine
    kv_cache_transfer_end: timedelta


class _KvCache(Protocol):
    num_total_allocated_blocks: int
    num_new_allocated_blocks: int
    num_reused_blocks: int


class _SpeculativeDecoding(Protocol):
    total_accepted_draft_tokens: int
    total_draft_tokens: int


class RequestPerfMetrics(Protocol):
    """The measurements of upstream, with every output of a request; the last token's time comes only with the last."""

    timing_metrics: _Timing
    kv_cache_metrics: _KvCache
    speculative_decoding: _SpeculativeDecoding


def read_perf_metrics(metrics: RequestPerfMetrics, *, last_token_time_ns: int) -> PerfMetrics:
    """Return the metrics with times of the system's clock, as it is set now.

    Args:
        metrics: upstream's.
        last_token_time_ns: when we got the last token, for a request that has not ended.
    """
    offset_ns = time.time_ns() - time.monotonic_ns()
    timing, kv_cache, drafts = metrics.timing_metrics, metrics.kv_cache_metrics, metrics.speculative_decoding
    return PerfMetrics(
        arrival_time_ns=_ns(timing.arrival_time) + offset_ns,
        first_scheduled_time_ns=_ns(timing.first_scheduled_time) + offset_ns,
        first_token_time_ns=_ns(timing.first_token_time) + offset_ns,
        last_token_time_ns=_ns(timing.last_token_time) + offset_ns if timing.last_token_time else last_token_time_ns,
        kv_cache_alloc_new_blocks=kv_cache.num_new_allocated_blocks,
        kv_cache_reused_blocks=kv_cache.num_reused_blocks,
        kv_cache_alloc_total_blocks=kv_cache.num_total_allocated_blocks,
        total_accepted_draft_tokens=drafts.total_accepted_draft_tokens,
        total_draft_tokens=drafts.total_draft_tokens,
        kv_cache_transfer_ms=_transfer_ms(timing),
    )


def _transfer_ms(timing: _Timing) -> float | None:
    if not timing.kv_cache_transfer_end:
        return None
    return (timing.kv_cache_transfer_end - timing.kv_cache_transfer_start) / timedelta(milliseconds=1)


def _ns(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1) * 1000
