# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of an engine's steps and of its device's peak rates; docs/observability.md explains their use.

Counters of a model version live as long as its adapter. The counters of an engine's process begin at 0 again when the
process is started again; the values that it reported last stay counted.
"""

import time
from typing import Any

import msgspec

from serving.engines.seam.base import EngineCosts, EngineInfo, StepStats

_UPDATE_S = 0.5  # each counter costs a message to the server

_COUNTERS = {
    "num_steps": ("trireme_engine_steps_total", "Steps that had work"),
    "steps_s": ("trireme_engine_step_seconds_total", "Time in steps that had work"),
    "num_prefill_steps": (
        "trireme_engine_prefill_steps_total",
        "Steps with a request that had no token yet; all others only decode",
    ),
    "prefill_steps_s": ("trireme_engine_prefill_step_seconds_total", "Time in steps of prefill"),
    "num_prompt_tokens": (
        "trireme_engine_prompt_tokens_total",
        "Prompt tokens, counted with a request's first token; without reused KV blocks where known",
    ),
    "num_output_tokens": ("trireme_engine_output_tokens_total", "Tokens as they are made"),
    "num_kv_read_tokens": (
        "trireme_engine_kv_read_tokens_total",
        "Sum over steps of the context that decoding sequences read, in tokens",
    ),
    "num_batch_seqs": ("trireme_engine_batch_sequences_total", "Sum over steps of the sequences in the batch"),
}
_COSTS = {
    "weight_bytes": ("trireme_engine_weight_bytes", "Weights that a decode step reads, of all ranks"),
    "kv_bytes_per_token": ("trireme_engine_kv_bytes_per_token", "KV cache of a token, of all ranks"),
    "flops_per_token": ("trireme_engine_flops_per_token", "2 for each parameter that a token meets"),
    "peak_bandwidth_bytes_per_s": (
        "trireme_engine_peak_bandwidth_bytes_per_second",
        "Memory bandwidth of the engine's devices together",
    ),
    "peak_flops": ("trireme_engine_peak_flops", "Dense operations a second of the engine's devices together"),
}
_UP = ("trireme_engine_up", "1 while the engine's process runs")
_MAX_NUM_SEQS = ("trireme_engine_max_num_seqs", "Sequences that a batch may have")


class StepMetrics:
    """The step metrics of one model version; families appear with their first values."""

    def __init__(self, metric_family: Any, labels: dict[str, str]) -> None:
        self._kind = metric_family
        self._labels = labels
        self._families: list[Any] = []  # Triton drops a family that nobody holds
        self._metrics: dict[str, Any] = {}
        self._is_up: bool | None = None
        self._told: StepStats | None = None  # newest of the present engine's life
        self._shown: dict[str, float] = {}  # of it
        self._next_update_s = 0.0

    def describe(self, info: EngineInfo) -> None:
        """Show the engine's constants, and that the engine is up."""
        self._gauge(_MAX_NUM_SEQS).set(info.max_num_seqs)
        for field, value in msgspec.structs.asdict(info.costs or EngineCosts()).items():
            if value is not None:
                self._gauge(_COSTS[field]).set(value)
        self._show_up(is_up=True)

    def show(self, steps: StepStats | None, *, is_up: bool) -> None:
        """Count the steps since the last call, and show whether the engine is up.

        Args:
            steps: newest account; None: the engine reports none, has died, or is not in memory.
            is_up: the engine takes requests.
        """
        self._show_up(is_up=is_up)
        now_s = time.monotonic()
        if steps is None or (self._told is not None and steps.num_steps < self._told.num_steps):
            self._count()  # what the previous engine reported last
            self._shown.clear()
            self._next_update_s = 0.0
        self._told = steps
        if now_s >= self._next_update_s:
            self._next_update_s = now_s + _UPDATE_S
            self._count()

    def _count(self) -> None:
        if self._told is None:
            return
        for field, (name, text) in _COUNTERS.items():
            value = getattr(self._told, field)
            counter = self._metrics.get(name) or self._metric(name, text, self._kind.COUNTER)
            if value > self._shown.get(field, 0):
                counter.increment(value - self._shown.get(field, 0))
                self._shown[field] = value

    def _show_up(self, *, is_up: bool) -> None:
        if self._is_up is not is_up:
            self._is_up = is_up
            self._gauge(_UP).set(int(is_up))

    def _gauge(self, described: tuple[str, str]) -> Any:
        name, text = described
        return self._metrics.get(name) or self._metric(name, text, self._kind.GAUGE)

    def _metric(self, name: str, text: str, kind: Any) -> Any:
        family = self._kind(name, text, kind)
        self._families.append(family)
        metric = self._metrics[name] = family.Metric(labels=self._labels)
        return metric
