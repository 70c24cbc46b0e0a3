# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of an engine's state: running and waiting requests, KV blocks, preemptions, admission.

Gauges have the names of TensorRT-LLM's backend; a second set, with a counter of preemptions, has this project's own
names, which follow vLLM's.
"""

import time
from typing import Any

import msgspec

from serving.engines.seam.base import AdmissionStats, CancelStats, EngineInfo, EngineStats, ResidencyStats
from serving.telemetry import step_metrics, upstream_metrics
from serving.telemetry.shown_metrics import ShownMetrics
from serving.telemetry.step_metrics import StepMetrics
from serving.telemetry.upstream_metrics import UpstreamMetrics

_UPDATE_S = 0.1  # each gauge costs a message to the server

_GAUGES = {
    "trireme_requests_running": "Requests in the engine's batch",
    "trireme_requests_waiting": "Requests that wait to enter the batch",
    "trireme_kv_cache_usage_fraction": "Used fraction of the KV cache's blocks",
    "trireme_engine_verified": "1: a manifest lists all files that the engine is loaded from, and they were compared "
    "with it",
    "trireme_engine_resident": "1 while an engine on demand is in memory",
    "trireme_engine_load_seconds": "Seconds that the last load of the engine took",
    "trireme_queue_requests": "Requests that wait for admission, by class",
    "trireme_degradation_step": "Load-shedding levels in force",
}
_COUNTERS = {
    "trireme_preemptions_total": "Running requests that gave up their KV blocks to be computed again, of engines that "
    "report them",
    "trireme_engine_cancels_total": "Cancelled requests, by how they ended in an engine that batches by itself",
    "trireme_engine_loads_total": "Loads of the engine",
    "trireme_refused_requests_total": "Requests that admission refused or that were late, by class and reason",
}


class EngineMetrics:
    """The engine metrics of one model version; one thread calls `update` after every step."""

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        """Make the metric families.

        Args:
            metric_family: `pb_utils.MetricFamily`.
            model: name of the model, for the labels.
            version: version of the model, for the labels.
        """
        self._metrics = ShownMetrics(
            metric_family,
            {"model": model, "version": version},
            gauges=upstream_metrics.DESCRIPTIONS | _GAUGES | step_metrics.GAUGES,
            counters=_COUNTERS | step_metrics.COUNTERS,
        )
        self._upstream = UpstreamMetrics(self._metrics)
        self._steps = StepMetrics(self._metrics)
        for name in ("trireme_requests_running", "trireme_requests_waiting", "trireme_kv_cache_usage_fraction"):
            self._metrics.make(name)
        self._next_update_s = 0.0

    def describe(self, info: EngineInfo, *, is_verified: bool | None = None) -> None:
        """Show the engine's constants, and that the engine is up.

        Args:
            info: description of the engine.
            is_verified: the engine's files were compared with its manifest; None: the engine has no files.
        """
        self._metrics.set("trireme_engine_verified", is_verified)
        self._upstream.describe(info)
        self._steps.describe(info)

    def update(self, stats: EngineStats) -> None:
        """Show the newest stats, at most every 0.1 s, and always when the engine has become idle."""
        is_idle = stats.num_running == stats.num_waiting == 0
        now_s = time.monotonic()
        if now_s < self._next_update_s and not is_idle:
            return
        if not is_idle:  # else an engine whose requests are shorter would be seen idle alone
            self._next_update_s = now_s + _UPDATE_S
        # Each gauge is a call to Triton, and a page may be read between two. Those that appear with their first value
        # come first: a page that shows an engine at work lacks none of them.
        self._show_admission(stats.admission)
        self._show_residency(stats.residency)
        self._upstream.show(stats)
        self._show_cancels(stats.cancels)
        metrics = self._metrics
        metrics.set("trireme_requests_running", stats.num_running)
        metrics.set("trireme_requests_waiting", stats.num_waiting)
        metrics.set("trireme_kv_cache_usage_fraction", stats.num_used_kv_blocks / max(1, stats.num_kv_blocks))
        if stats.num_preemptions is None:  # the engine does not report them, or has died
            metrics.reset("trireme_preemptions_total")
        else:
            metrics.count("trireme_preemptions_total", stats.num_preemptions)
        self._steps.show(stats.steps, is_up=stats.is_up)

    def _show_cancels(self, stats: CancelStats | None) -> None:
        """Count the cancels, by outcome, of an engine that batches by itself; each appears with its first cancel."""
        if stats is None:
            self._metrics.reset("trireme_engine_cancels_total")
            return
        for name, count in msgspec.structs.asdict(stats).items():
            if count:
                self._metrics.count("trireme_engine_cancels_total", count, {"outcome": name.removeprefix("num_")})

    def _show_residency(self, stats: ResidencyStats | None) -> None:
        """Show whether an engine on demand is in memory, its loads and the time of the last load."""
        if stats is None:  # the engine is always in memory, or its process has died
            self._metrics.reset("trireme_engine_resident", "trireme_engine_loads_total")
            return
        self._metrics.set("trireme_engine_resident", stats.is_resident)
        self._metrics.set("trireme_engine_load_seconds", stats.last_load_s)
        self._metrics.count("trireme_engine_loads_total", stats.num_loads)

    def _show_admission(self, stats: AdmissionStats | None) -> None:
        """Show the queue, the refusals and the load-shedding level; each appears with its first value."""
        if stats is None:  # there is no admission, or the engine has died: no request waits then
            self._metrics.reset("trireme_queue_requests", "trireme_degradation_step", "trireme_refused_requests_total")
            return
        for name, number in stats.num_waiting.items():
            self._metrics.set("trireme_queue_requests", number, {"class": name})
        self._metrics.set("trireme_degradation_step", stats.degradation_step)
        for key, count in stats.num_refused.items():
            name, _, reason = key.partition(" ")
            self._metrics.count("trireme_refused_requests_total", count, {"class": name, "reason": reason})
