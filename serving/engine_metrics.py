# SPDX-License-Identifier: Apache-2.0
"""What the engine holds and has had to take back, for Prometheus: gauges under the names that TensorRT-LLM's backend
gave them, and the same with a counter of preemptions under names of ours that follow vLLM's.
"""

import time
from typing import Any

from serving.engines.base import EngineStats

_UPDATE_S = 0.1  # each gauge costs a message to the server


class EngineMetrics:
    """Of one model version. `update` is called after every step, by one thread."""

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        """Args: `metric_family` is `pb_utils.MetricFamily`."""
        labels = {"model": model, "version": version}
        requests = metric_family("nv_trt_llm_request_metrics", "Requests by state", metric_family.GAUGE)
        blocks = metric_family("nv_trt_llm_kv_cache_block_metrics", "KV cache blocks", metric_family.GAUGE)
        running = metric_family("trireme_requests_running", "Requests in the engine's batch", metric_family.GAUGE)
        waiting = metric_family("trireme_requests_waiting", "Requests that wait for room", metric_family.GAUGE)
        usage = metric_family("trireme_kv_cache_usage_fraction", "Of the KV cache's blocks", metric_family.GAUGE)
        preemptions = metric_family(
            "trireme_preemptions_total",
            "Running requests that gave up their KV blocks to be computed again; of engines that tell",
            metric_family.COUNTER,
        )
        # Triton drops a family that nobody holds.
        self._families = (requests, blocks, running, waiting, usage, preemptions)
        self._labels = labels
        self._preemptions: Any = None  # a metric of the last family, from the first time that the engine tells
        self._num_shown_preemptions = 0
        self._gauges = {
            name: family.Metric(labels=labels | {label: name})
            for family, label, names in (
                (requests, "request_type", ("active", "scheduled", "waiting")),
                (blocks, "kv_cache_block_type", ("max", "used", "free")),
            )
            for name in names
        } | {
            name: family.Metric(labels=labels)
            for name, family in (("running", running), ("queued", waiting), ("usage", usage))
        }
        self._shown: dict[str, float] = {}
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
            "running": stats.num_running,
            "queued": stats.num_waiting,
            "usage": stats.num_used_kv_blocks / max(1, stats.num_kv_blocks),
        }.items():
            if self._shown.get(name) != value:
                self._shown[name] = value
                self._gauges[name].set(value)
        self._count_preemptions(stats.num_preemptions)

    def _count_preemptions(self, num_preemptions: int | None) -> None:
        if num_preemptions is None:  # the engine does not tell, or has died: its successor begins at none
            self._num_shown_preemptions = 0
            return
        if self._preemptions is None:
            self._preemptions = self._families[-1].Metric(labels=self._labels)
        if num_preemptions > self._num_shown_preemptions:
            self._preemptions.increment(num_preemptions - self._num_shown_preemptions)
        self._num_shown_preemptions = num_preemptions
