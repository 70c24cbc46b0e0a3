# SPDX-License-Identifier: Apache-2.0
"""The page of the server's metrics: the families of `serving.telemetry` for an engine that reports everything."""

from serving.engines.seam.base import (
    AdmissionStats,
    BatchStats,
    CancelStats,
    EngineCosts,
    EngineInfo,
    EngineStats,
    FinishReason,
    PerfMetrics,
    ResidencyStats,
    StepStats,
    TokenChunk,
)
from serving.telemetry.engine_metrics import EngineMetrics
from serving.telemetry.request_metrics import PREFILL_OUTCOMES, RequestMetrics
from serving.telemetry.sequence_life import SequenceLife
from serving.telemetry.split_metrics import SplitMetrics
from trireme.base.text_tables import markdown_table

_INTRODUCTION = """# Metrics

Triton's metrics port serves these families beside Triton's own. Every metric has the labels `model` and `version`.
A metric that an engine cannot know is absent, not 0. Without frontends (`triton.is_guarded: false`) the time between
tokens is three counters, of a histogram's names. Uses, alerts and dashboards: [observability](../observability.md).
"""
_UPSTREAM = """## Under TensorRT-LLM's names

The names and labels of TensorRT-LLM's own Triton backend, for dashboards and autoscalers that exist.
"""


# An engine that reports everything: each family and each label appears with its first value.
_COSTS = EngineCosts(
    weight_bytes=1, kv_bytes_per_token=1, flops_per_token=1, peak_bandwidth_bytes_per_s=1, peak_flops=1
)
_INFO = EngineInfo(
    provider="any",
    vocab_size=1,
    max_seq_len=1,
    end_ids=(),
    kv_block_tokens=1,
    num_kv_blocks=1,
    max_num_seqs=1,
    max_num_batched_tokens=1,
    supported=frozenset(),
    costs=_COSTS,
)
_STATS = EngineStats(
    num_running=0,
    num_waiting=0,
    num_used_kv_blocks=0,
    num_kv_blocks=1,
    num_steps=1,
    num_preemptions=1,
    batch=BatchStats(**dict.fromkeys(BatchStats.__struct_fields__, 1)),
    admission=AdmissionStats(num_waiting={"CLASS": 1}, num_refused={"CLASS REASON": 1}, degradation_step=1),
    residency=ResidencyStats(is_resident=True, num_loads=1, last_load_s=1.0),
    steps=StepStats(num_steps=1),
    cancels=CancelStats(num_confirmed=1, num_waiting=1, num_ran_on=1, num_unconfirmed=1),
)
_PERF = PerfMetrics(
    arrival_time_ns=1, first_scheduled_time_ns=1, first_token_time_ns=1, last_token_time_ns=1, num_cached_tokens=1
)


class Family:
    """A family of metrics that keeps its description, its type and the labels of its metrics, and no values."""

    def __init__(self, description: str, kind: str) -> None:
        self.description, self.kind = description, kind
        self.labels: dict[str, list[str]] = {}

    def Metric(self, *, labels: dict[str, str], buckets: list[float] | None = None) -> "Family":  # noqa: N802 - Triton's
        """Keep the labels, and return what takes the metric's values."""
        del buckets
        for label, value in labels.items():
            if label not in ("model", "version") and value not in self.labels.setdefault(label, []):
                self.labels[label].append(value)
        return self

    def set(self, value: float) -> None:
        """Take a value of a gauge."""

    def increment(self, value: float) -> None:
        """Take a value of a counter."""

    def observe(self, value: float) -> None:
        """Take a value of a histogram."""


class Recorder:
    """A stand-in for Triton's `MetricFamily` that keeps every family that is made."""

    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}

    def __call__(self, name: str, description: str, kind: str) -> Family:
        """Return a new family of metrics."""
        return self.families.setdefault(name, Family(description, kind))


def families() -> dict[str, Family]:
    """Return every family by its name: those of requests and their split, then those of engines.

    The counters that are a histogram's parts are that histogram.
    """
    recorder = Recorder()
    requests = RequestMetrics(recorder, model="", version="")
    requests.note_end(TokenChunk(0, [], FinishReason.LENGTH, perf=_PERF), SequenceLife(1, 1))
    requests.note_remote_prefill(PREFILL_OUTCOMES[0])
    requests.flush()
    split = SplitMetrics(recorder, model="", version="")
    split.note(1, "ARM")
    split.note_fallback(1, "REASON")
    split.close()
    engine = EngineMetrics(recorder, model="", version="")
    engine.describe(_INFO, is_verified=True)
    engine.update(_STATS)
    return _with_histograms(recorder.families)


def _with_histograms(found: dict[str, Family]) -> dict[str, Family]:
    parted = {name.removesuffix("_bucket") for name, family in found.items() if "le" in family.labels}
    parts = {f"{name}_{part}": name for name in parted for part in ("bucket", "sum", "count")}
    shown = {name: found[f"{name}_bucket"].description for name in parted}
    return {
        parts.get(name, name): Family(shown[parts[name]], Recorder.HISTOGRAM) if name in parts else family
        for name, family in found.items()
    }


def render() -> str:
    """Return the page."""
    found = families()
    ours = {name: family for name, family in found.items() if name.startswith("trireme_")}
    upstream = {name: family for name, family in found.items() if name not in ours}
    return "\n".join([_INTRODUCTION, _table(ours), "", _UPSTREAM, _table(upstream), ""])


def _table(shown: dict[str, Family]) -> str:
    rows = ([f"`{name}`", one.kind, _labels(one), one.description] for name, one in shown.items())
    return markdown_table(["metric", "type", "labels", "meaning"], rows)


def _labels(family: Family) -> str:
    return "; ".join(
        f"`{label}`" + ("" if values[0].isupper() else f": {', '.join(f'`{value}`' for value in values)}")
        for label, values in family.labels.items()
    )
