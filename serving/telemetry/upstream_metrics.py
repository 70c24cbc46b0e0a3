# SPDX-License-Identifier: Apache-2.0
"""The gauges with the names and labels of TensorRT-LLM's own Triton backend, for its users' dashboards and autoscalers.

Source: triton-inference-server/tensorrtllm_backend, custom_metrics_reporter.cc and ProcessStats of
model_instance_state.cc, at each tag from v0.7.0 to v0.19.0; `since` is the first tag that has a label.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from serving.engines.seam.base import BatchStats, EngineInfo, EngineStats
from serving.telemetry.shown_metrics import ShownMetrics

Value = float | None  # None: this engine cannot know it, and the gauge is not there


class Gauge(NamedTuple):
    """A gauge of a metric family."""

    family: str
    label: str
    name: str  # the label's value
    since: str
    of: Callable[[EngineStats], Value]

    @property
    def key(self) -> tuple[str, str]:
        """Return the family and the label's value, which are unique."""
        return self.family, self.name


def _batch(field: str) -> Callable[[EngineStats], Value]:
    return lambda stats: getattr(stats.batch or BatchStats(), field)


_REQUESTS = ("nv_trt_llm_request_metrics", "request_type")
_MEMORY = ("nv_trt_llm_runtime_memory_metrics", "memory_type")
_BLOCKS = ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")
_BATCHER = ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric")
_GENERAL = ("nv_trt_llm_general_metrics", "general_type")

DESCRIPTIONS = {
    _REQUESTS[0]: "Requests by state",
    _MEMORY[0]: "Bytes that the engine's runtime has allocated",
    _BLOCKS[0]: "KV cache blocks",
    _BATCHER[0]: "The newest iteration of the batch",
    # In seconds before 0.12.0.
    _GENERAL[0]: "Time of the newest iteration, in microseconds since 1970, and the number of iterations",
}
# What depends on the engine alone comes from its description.
CONSTANTS: dict[tuple[str, str], tuple[str, Callable[[EngineInfo], float]]] = {
    (_REQUESTS[0], "max"): (_REQUESTS[1], lambda info: info.max_num_seqs),
    (_BLOCKS[0], "tokens_per"): (_BLOCKS[1], lambda info: info.kv_block_tokens),
}
GAUGES = (
    Gauge(*_REQUESTS, "active", "0.7.0", lambda stats: stats.num_running + stats.num_waiting),
    Gauge(*_REQUESTS, "scheduled", "0.7.0", lambda stats: stats.num_running),
    Gauge(*_REQUESTS, "context", "0.7.0", _batch("num_context_requests")),
    Gauge(*_REQUESTS, "waiting", "0.18.0", lambda stats: stats.num_waiting),
    Gauge(*_MEMORY, "cpu", "0.7.0", _batch("cpu_bytes")),
    Gauge(*_MEMORY, "gpu", "0.7.0", _batch("gpu_bytes")),
    Gauge(*_MEMORY, "pinned", "0.7.0", _batch("pinned_bytes")),
    Gauge(*_BLOCKS, "max", "0.7.0", lambda stats: stats.num_kv_blocks),
    Gauge(*_BLOCKS, "used", "0.7.0", lambda stats: stats.num_used_kv_blocks),
    Gauge(*_BLOCKS, "free", "0.7.0", lambda stats: stats.num_kv_blocks - stats.num_used_kv_blocks),
    Gauge(*_BLOCKS, "reused", "0.13.0", _batch("num_reused_kv_blocks")),
    Gauge(*_BLOCKS, "fraction", "0.18.0", lambda stats: stats.num_used_kv_blocks / max(1, stats.num_kv_blocks)),
    Gauge(*_BATCHER, "total_context_tokens", "0.7.0", _batch("num_context_tokens")),
    Gauge(*_BATCHER, "generation_requests", "0.7.0", _batch("num_generation_requests")),
    Gauge(*_BATCHER, "micro_batch_id", "0.7.0", _batch("micro_batch_id")),
    Gauge(*_BATCHER, "paused_requests", "0.9.0", _batch("num_paused_requests")),
    Gauge(*_GENERAL, "iteration_counter", "0.7.0", lambda stats: stats.num_steps),
)
_IDLE = EngineStats(num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=0, num_steps=0)


class UpstreamMetrics:
    """The gauges of upstream among the metrics of one model version; what not every engine reports appears later."""

    def __init__(self, metrics: ShownMetrics) -> None:
        """Show the gauges that every engine reports, as 0, so that a page read before the first step has them."""
        self._metrics = metrics
        for gauge in GAUGES:
            if gauge.of(_IDLE) is not None:
                metrics.make(gauge.family, {gauge.label: gauge.name})

    def describe(self, info: EngineInfo) -> None:
        """Show the engine's constants."""
        for (family, name), (label, of) in CONSTANTS.items():
            self._metrics.set(family, of(info), {label: name})

    def show(self, stats: EngineStats) -> None:
        """Set the gauges that have changed; a value no longer reported becomes 0: the engine has died."""
        for gauge in GAUGES:
            is_new = self._metrics.set(gauge.family, gauge.of(stats), {gauge.label: gauge.name})
            if is_new and gauge.name == "iteration_counter":
                self._metrics.set(gauge.family, time.time_ns() // 1000, {gauge.label: "timestamp"})
