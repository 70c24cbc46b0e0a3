# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics of an engine's steps and of its device's peak rates; docs/observability.md explains them."""

import time

import msgspec

from serving.engines.seam.base import EngineCosts, EngineInfo, StepStats
from serving.telemetry.shown_metrics import ShownMetrics

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
_UP, _MAX_NUM_SEQS = "trireme_engine_up", "trireme_engine_max_num_seqs"
COUNTERS = dict(_COUNTERS.values())
GAUGES = dict(_COSTS.values()) | {
    _UP: "1 while the engine's process runs",
    _MAX_NUM_SEQS: "Sequences that a batch may have",
}


class StepMetrics:
    """The step metrics among those of one model version."""

    def __init__(self, metrics: ShownMetrics) -> None:
        self._metrics = metrics
        self._told: StepStats | None = None  # newest of the present engine's life
        self._next_update_s = 0.0

    def describe(self, info: EngineInfo) -> None:
        """Show the engine's constants, and that the engine is up."""
        self._metrics.set(_MAX_NUM_SEQS, info.max_num_seqs)
        for field, value in msgspec.structs.asdict(info.costs or EngineCosts()).items():
            self._metrics.set(_COSTS[field][0], value)
        self._metrics.set(_UP, 1)

    def show(self, steps: StepStats | None, *, is_up: bool) -> None:
        """Count the steps since the last call, and show whether the engine is up.

        Args:
            steps: newest account; None: the engine reports none, has died, or is not in memory.
            is_up: the engine takes requests.
        """
        self._metrics.set(_UP, is_up)
        now_s = time.monotonic()
        if steps is None or (self._told is not None and steps.num_steps < self._told.num_steps):
            self._count()  # what the previous engine reported last
            self._metrics.reset(*COUNTERS)
            self._next_update_s = 0.0
        self._told = steps
        if now_s >= self._next_update_s:
            self._next_update_s = now_s + _UPDATE_S
            self._count()

    def _count(self) -> None:
        if self._told is not None:
            for field, (name, _) in _COUNTERS.items():
                self._metrics.count(name, getattr(self._told, field))
