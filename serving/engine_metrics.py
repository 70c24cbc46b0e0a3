# SPDX-License-Identifier: Apache-2.0
"""What the engine holds, as Prometheus gauges under the names that TensorRT-LLM's backend gave them."""

import time
from typing import Any

from serving.engines.base import EngineStats

_UPDATE_S = 0.1  # each gauge costs a message to the server


class EngineMetrics:
    """Gauges of one model version. `update` is called after every step, by one thread."""

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        """Args: `metric_family` is `pb_utils.MetricFamily`."""
        labels = {"model": model, "version": version}
        requests = metric_family("nv_trt_llm_request_metrics", "Requests by state", metric_family.GAUGE)
        blocks = metric_family("nv_trt_llm_kv_cache_block_metrics", "KV cache blocks", metric_family.GAUGE)
        self._families = (requests, blocks)  # Triton drops a family that nobody holds
        self._gauges = {
            name: family.Metric(labels=labels | {label: name})
            for family, label, names in (
                (requests, "request_type", ("active", "scheduled", "waiting")),
                (blocks, "kv_cache_block_type", ("max", "used", "free")),
            )
            for name in names
        }
        self._shown: dict[str, int] = {}
        self._next_update_s = 0.0

    def update(self, stats: EngineStats) -> None:
        """Show the newest stats, at most every 0.1 s, and always when the engine has become idle."""
        is_idle = stats.num_running == stats.num_waiting == 0
        now_s = time.monotonic()
        if now_s < self._next_update_s and not is_idle:
            return
        self._next_update_s = now_s + _UPDATE_S
        for name, value in {
            "active": stats.num_running + stats.num_waiting,
            "scheduled": stats.num_running,
            "waiting": stats.num_waiting,
            "max": stats.num_kv_blocks,
            "used": stats.num_used_kv_blocks,
            "free": stats.num_kv_blocks - stats.num_used_kv_blocks,
        }.items():
            if self._shown.get(name) != value:
                self._shown[name] = value
                self._gauges[name].set(value)
