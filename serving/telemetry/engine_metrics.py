# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of an engine's state: running and waiting requests, KV blocks, preemptions, admission.

Gauges have the names of TensorRT-LLM's backend; a second set, with a counter of preemptions, has this project's own
names, which follow vLLM's. A draft engine beside the engine has the same metrics under the model `<model>_draft`:
upstream has the draft engine in a model of that name. Blocks of the two engines are of different sizes, so they are not
added up.
"""

import time
from typing import Any

from serving.engines.seam.base import AdmissionStats, CancelStats, EngineInfo, EngineStats, ResidencyStats
from serving.telemetry.step_metrics import StepMetrics
from serving.telemetry.upstream_metrics import DESCRIPTIONS, UpstreamMetrics

_UPDATE_S = 0.1  # each gauge costs a message to the server


class EngineMetrics:
    """The engine metrics of one model version; one thread calls `update` after every step."""

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        """Make the metric families.

        Args:
            metric_family: `pb_utils.MetricFamily`.
            model: name of the model, for the labels.
            version: version of the model, for the labels.
        """
        self._labels = {"model": model, "version": version}
        # Triton drops a family that nobody holds.
        self._families = {
            name: metric_family(name, description, kind)
            for name, description, kind in (
                *((name, text, metric_family.GAUGE) for name, text in DESCRIPTIONS.items()),
                ("trireme_requests_running", "Requests in the engine's batch", metric_family.GAUGE),
                ("trireme_requests_waiting", "Requests that wait to enter the batch", metric_family.GAUGE),
                ("trireme_kv_cache_usage_fraction", "Used fraction of the KV cache's blocks", metric_family.GAUGE),
                (
                    "trireme_preemptions_total",
                    "Running requests that gave up their KV blocks to be computed again, of engines that report them",
                    metric_family.COUNTER,
                ),
                (
                    "trireme_engine_cancels_total",
                    "Cancelled requests, by how they ended in an engine that batches by itself",
                    metric_family.COUNTER,
                ),
                (
                    "trireme_engine_verified",
                    "1: a manifest lists all files that the engine is loaded from, and they were compared with it",
                    metric_family.GAUGE,
                ),
                ("trireme_engine_resident", "1 while an engine on demand is in memory", metric_family.GAUGE),
                ("trireme_engine_load_seconds", "Seconds that the last load of the engine took", metric_family.GAUGE),
                ("trireme_engine_loads_total", "Loads of the engine", metric_family.COUNTER),
                ("trireme_queue_requests", "Requests that wait for admission, by class", metric_family.GAUGE),
                ("trireme_degradation_step", "Load-shedding levels in force", metric_family.GAUGE),
                (
                    "trireme_refused_requests_total",
                    "Requests that admission refused or that were late, by class and reason",
                    metric_family.COUNTER,
                ),
            )
        }
        self._engine = _OfOneEngine(self._families, self._labels)
        self._steps = StepMetrics(metric_family, self._labels)
        self._verified: Any = None  # Triton drops a metric that nobody holds, too
        self._next_update_s = 0.0

    def describe(self, info: EngineInfo, *, is_verified: bool | None = None) -> None:
        """Show the engine's constants, and that the engine is up.

        Args:
            info: description of the engine.
            is_verified: the engine's files were compared with its manifest; None: the engine has no files.
        """
        if is_verified is not None:
            self._verified = self._families["trireme_engine_verified"].Metric(labels=self._labels)
            self._verified.set(float(is_verified))
        self._engine.describe(info)
        self._steps.describe(info)

    def update(self, stats: EngineStats) -> None:
        """Show the newest stats, at most every 0.1 s, and always when the engine has become idle."""
        is_idle = stats.num_running == stats.num_waiting == 0
        now_s = time.monotonic()
        if now_s < self._next_update_s and not is_idle:
            return
        if not is_idle:  # else an engine whose requests are shorter would be seen idle alone
            self._next_update_s = now_s + _UPDATE_S
        self._engine.show(stats)
        self._steps.show(stats.steps, is_up=stats.is_up)


class _OfOneEngine:
    """The gauges of one engine, and its preemption counter once the engine reports preemptions."""

    def __init__(self, families: dict[str, Any], labels: dict[str, str]) -> None:
        self._families = families
        self._labels = labels
        self._preemptions: Any = None
        self._num_shown_preemptions = 0
        self._upstream = UpstreamMetrics(families, labels)
        self._gauges = {
            name: families[family].Metric(labels=labels)
            for name, family in (
                ("running", "trireme_requests_running"),
                ("queued", "trireme_requests_waiting"),
                ("usage", "trireme_kv_cache_usage_fraction"),
            )
        }
        self._shown: dict[str, float] = {}
        self._num_kv_blocks = 0
        self._admission = _OfAdmission(families, labels)
        self._residency = _OfResidency(families, labels)
        self._cancels = _OfCancels(families, labels)

    def describe(self, info: EngineInfo) -> None:
        """Show the engine's constants."""
        self._upstream.describe(info)

    def show(self, stats: EngineStats | None) -> None:
        """Set the metrics that have changed.

        Args:
            stats: newest stats; None: the engine has died and holds no requests and no blocks any more.
        """
        if stats is None:
            num_blocks = self._num_kv_blocks
            stats = EngineStats(
                num_running=0, num_waiting=0, num_used_kv_blocks=0, num_kv_blocks=num_blocks, num_steps=0
            )
        self._num_kv_blocks = stats.num_kv_blocks
        # Each gauge is a call to Triton, and a page may be read between two. Those that appear with their first value
        # come first: a page that shows an engine at work lacks none of them.
        self._admission.show(stats.admission)
        self._residency.show(stats.residency)
        self._upstream.show(stats)
        self._cancels.show(stats.cancels)
        for name, value in {
            "running": stats.num_running,
            "queued": stats.num_waiting,
            "usage": stats.num_used_kv_blocks / max(1, stats.num_kv_blocks),
        }.items():
            if self._shown.get(name) != value:
                self._shown[name] = value
                self._gauges[name].set(value)
        self._count_preemptions(stats.num_preemptions)

    def _count_preemptions(self, num_preemptions: int | None) -> None:
        if num_preemptions is None:  # the engine does not report them, or has died: its successor begins at 0
            self._num_shown_preemptions = 0
            return
        if self._preemptions is None:
            self._preemptions = self._families["trireme_preemptions_total"].Metric(labels=self._labels)
        if num_preemptions > self._num_shown_preemptions:
            self._preemptions.increment(num_preemptions - self._num_shown_preemptions)
        self._num_shown_preemptions = num_preemptions


class _OfCancels:
    """The counters of cancels, by outcome, in an engine that batches by itself; each appears with its first cancel."""

    def __init__(self, families: dict[str, Any], labels: dict[str, str]) -> None:
        self._families = families
        self._labels = labels
        self._counters: dict[str, Any] = {}
        self._shown = CancelStats()

    def show(self, stats: CancelStats | None) -> None:
        """Count the cancels since the last call.

        Args:
            stats: newest stats; None: the engine reports no cancels, or has died and its successor begins at 0.
        """
        stats = stats or CancelStats()
        before, self._shown = self._shown, stats
        for name in stats.__struct_fields__:
            count, shown = getattr(stats, name), getattr(before, name)
            if not (num_new := count - shown if count >= shown else count):
                continue
            if name not in self._counters:
                self._counters[name] = self._families["trireme_engine_cancels_total"].Metric(
                    labels=self._labels | {"outcome": name.removeprefix("num_")}
                )
            self._counters[name].increment(num_new)


class _OfResidency:
    """The metrics of an engine that is loaded on demand; each appears with its first value."""

    def __init__(self, families: dict[str, Any], labels: dict[str, str]) -> None:
        self._families = families
        self._labels = labels
        self._shown: ResidencyStats | None = None

    def show(self, stats: ResidencyStats | None) -> None:
        """Show whether the engine is in memory, its loads and the time of the last load.

        Args:
            stats: newest stats; None: the engine is always in memory, or its process has died.
        """
        shown = self._shown
        if stats is None and shown is not None:
            stats = ResidencyStats(is_resident=False, num_loads=0, last_load_s=shown.last_load_s)
        if stats is None or stats == shown:
            return
        if shown is None:
            self._resident, self._load_s, self._loads = (
                self._families[f"trireme_engine_{name}"].Metric(labels=self._labels)
                for name in ("resident", "load_seconds", "loads_total")
            )
        self._resident.set(int(stats.is_resident))
        self._load_s.set(stats.last_load_s)
        num_shown = shown.num_loads if shown is not None else 0
        num_new = stats.num_loads - num_shown if stats.num_loads >= num_shown else stats.num_loads
        if num_new:
            self._loads.increment(num_new)
        self._shown = stats


class _OfAdmission:
    """The gauges and counters of admission; each appears with its first value."""

    def __init__(self, families: dict[str, Any], labels: dict[str, str]) -> None:
        self._families = families
        self._labels = labels
        self._gauges: dict[str, Any] = {}
        self._step: Any = None
        self._counters: dict[str, Any] = {}
        self._shown: dict[str, int] = {}

    def show(self, stats: AdmissionStats | None) -> None:
        """Show the queue, the refusals and the load-shedding level.

        Args:
            stats: newest stats; None: there is no admission, or the engine has died: no request waits then, and the
                next engine counts from 0.
        """
        if stats is None:
            step = None if self._step is None else 0
            stats = AdmissionStats(num_waiting=dict.fromkeys(self._gauges, 0), num_refused={}, degradation_step=step)
            for key in self._counters:
                self._shown[key] = 0
        for name, value in stats.num_waiting.items():
            if name not in self._gauges:
                self._gauges[name] = self._families["trireme_queue_requests"].Metric(
                    labels=self._labels | {"class": name}
                )
            if self._shown.get(name) != value:
                self._shown[name] = value
                self._gauges[name].set(value)
        self._show_step(stats.degradation_step)
        for key, count in stats.num_refused.items():
            if key not in self._counters:
                class_name, _, reason = key.partition(" ")
                self._counters[key] = self._families["trireme_refused_requests_total"].Metric(
                    labels=self._labels | {"class": class_name, "reason": reason}
                )
            shown = self._shown.get(key, 0)
            if count != shown:
                self._counters[key].increment(count - shown if count > shown else count)
                self._shown[key] = count

    def _show_step(self, step: int | None) -> None:
        if step is None:
            return
        if self._step is None:
            self._step = self._families["trireme_degradation_step"].Metric(labels=self._labels)
        if self._shown.get("degradation step") != step:
            self._shown["degradation step"] = step
            self._step.set(step)
