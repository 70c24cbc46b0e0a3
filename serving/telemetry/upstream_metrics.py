# SPDX-License-Identifier: Apache-2.0
"""The gauges with the names and labels of TensorRT-LLM's own Triton backend, for its users' dashboards and autoscalers.

Source: triton-inference-server/tensorrtllm_backend, custom_metrics_reporter.cc and ProcessStats of
model_instance_state.cc, at each tag from v0.7.0 to v0.19.0; `since` is the first tag that has a label.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from serving.engines.seam.base import BatchStats, EngineInfo, EngineStats

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
_TIMESTAMP = (_GENERAL[0], "timestamp")  # in seconds before 0.12.0


_IDLE = EngineStats(num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=0, num_steps=0)


class UpstreamMetrics:
    """The gauges of one engine; a gauge that not every engine reports appears with its first value."""

    def __init__(self, families: dict[str, Any], labels: dict[str, str]) -> None:
        """Show the gauges that every engine reports, as 0, so that a page read before the first step has them.

        Args:
            families: metric families by name, those of `DESCRIPTIONS` among them.
            labels: labels for the model and its version.
        """
        self._families = families
        self._labels = labels
        self._gauges: dict[tuple[str, str], Any] = {}
        for gauge in GAUGES:
            if gauge.of(_IDLE) is not None:
                self._gauge(gauge.key, gauge.label)
        self._shown: dict[tuple[str, str], float] = {}

    def describe(self, info: EngineInfo) -> None:
        """Show the engine's constants."""
        for (family, name), (label, of) in CONSTANTS.items():
            self._set((family, name), label, of(info))

    def show(self, stats: EngineStats) -> None:
        """Set the gauges that have changed; a value no longer reported becomes 0: the engine has died."""
        for gauge in GAUGES:
            value = gauge.of(stats)
            if value is None and gauge.key in self._shown:
                value = 0
            if value is not None and self._shown.get(gauge.key) != value:
                self._set(gauge.key, gauge.label, value)
                if gauge.name == "iteration_counter":
                    self._set(_TIMESTAMP, gauge.label, time.time_ns() // 1000)

    def _set(self, key: tuple[str, str], label: str, value: float) -> None:
        self._gauge(key, label).set(value)
        self._shown[key] = value

    def _gauge(self, key: tuple[str, str], label: str) -> Any:
        family, name = key
        if key not in self._gauges:
            self._gauges[key] = self._families[family].Metric(labels=self._labels | {label: name})
        return self._gauges[key]
