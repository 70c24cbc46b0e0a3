# SPDX-License-Identifier: Apache-2.0
"""The part of TensorRT-LLM's stats of an iteration that we show.

Parts that do not apply are null or missing there.
"""

import msgspec

from serving.engines.seam.base import BatchStats
from trireme.base.known_types import known


class _KvCache(msgspec.Struct, rename="camel"):
    max_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0
    reused_blocks: int | None = None


class _InflightBatching(msgspec.Struct, rename="camel"):
    num_scheduled_requests: int = 0
    num_context_requests: int | None = None
    num_gen_requests: int | None = None
    num_paused_requests: int | None = None
    num_ctx_tokens: int | None = None
    micro_batch_id: int | None = None


class _Row(msgspec.Struct, rename="camel"):
    iter: int = 0
    cpu_mem_usage: int | None = None
    gpu_mem_usage: int | None = None
    pinned_mem_usage: int | None = None
    num_active_requests: int = 0
    kv_cache_stats: _KvCache | None = None
    inflight_batching_stats: _InflightBatching | None = None


class IterationStats(msgspec.Struct, frozen=True):
    """The stats of one iteration."""

    num_iterations: int
    num_scheduled: int  # requests in its batch
    num_used_kv_blocks: int
    num_kv_blocks: int
    kv_block_tokens: int
    batch: BatchStats = BatchStats()
    num_active: int = 0  # requests that upstream has taken from its queue


NO_STATS = IterationStats(0, 0, 0, 0, 0)


def read_stats(row: dict[str, object]) -> IterationStats:
    """Return the stats from a row of `get_stats_async`.

    Raises:
        msgspec.ValidationError: a part has another type than upstream says.
    """
    stats = msgspec.convert(row, known(_Row))
    kv_cache = stats.kv_cache_stats or _KvCache()
    batching = stats.inflight_batching_stats or _InflightBatching()
    return IterationStats(
        num_iterations=stats.iter,
        num_scheduled=batching.num_scheduled_requests,
        num_used_kv_blocks=kv_cache.used_num_blocks,
        num_kv_blocks=kv_cache.max_num_blocks,
        kv_block_tokens=kv_cache.tokens_per_block,
        batch=BatchStats(
            num_context_requests=batching.num_context_requests,
            num_generation_requests=batching.num_gen_requests,
            num_context_tokens=batching.num_ctx_tokens,
            num_paused_requests=batching.num_paused_requests,
            micro_batch_id=batching.micro_batch_id,
            cpu_bytes=stats.cpu_mem_usage,
            gpu_bytes=stats.gpu_mem_usage,
            pinned_bytes=stats.pinned_mem_usage,
            num_reused_kv_blocks=kv_cache.reused_blocks,
        ),
        num_active=stats.num_active_requests,
    )
