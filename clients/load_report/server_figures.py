# SPDX-License-Identifier: Apache-2.0
"""The figures in the server's own metrics about a run: its batch, KV cache and steps, and how near its limits it is.

MBU and MFU are of engine steps, not of wall time: an idle engine does not make them smaller. Both need what only some
engines tell (`trireme_engine_weight_bytes` and the like); where it is not told, they are not there.
"""

import functools
import itertools
import re
from collections.abc import Sequence

import msgspec

from clients.load_report.steady_state import Window
from clients.load_run.server_samples import ServerSample

_SERIES = re.compile(r"(?P<name>[a-zA-Z_:]+)\{(?P<labels>.*)\}")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_MODELS = ("ensemble_canary", "ensemble_graph", "ensemble", "tensorrt_llm_bls", "tensorrt_llm")
TIMELINES = {
    "requests in the batch": "trireme_requests_running",
    "requests that wait": "trireme_requests_waiting",
    "KV cache use": "trireme_kv_cache_usage_fraction",
}


class ServerFigures(msgspec.Struct, kw_only=True):
    """The server's figures over the measured part of a run; None: the server does not say.

    Attributes:
        batch_mean, batch_max: requests in the batch when it was looked at; batch_occupancy: mean over the steps, of
            `max_num_seqs`.
        waiting_max: requests that waited, at most.
        kv_usage_mean, kv_usage_max: of the KV cache's blocks, 0 to 1.
        preemptions: requests that gave up their blocks.
        step_ms, prefill_step_ms, decode_step_ms: mean; a step with any prompt in it is a prefill step.
        prefill_tokens_per_s, decode_tokens_per_s: in the time of such steps.
        busy_share: of the time, in engine steps.
        mbu: (weight bytes + KV bytes read) / step time / peak bandwidth. mfu: operations / step time / peak.
        gpu_utilization: Triton's: the share of time in which any kernel ran; it says nothing of how well.
    """

    num_samples: int
    batch_mean: float | None = None
    batch_max: float | None = None
    batch_occupancy: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_max: float | None = None
    preemptions: float | None = None
    steps_per_s: float | None = None
    step_ms: float | None = None
    prefill_step_ms: float | None = None
    decode_step_ms: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    busy_share: float | None = None
    mbu: float | None = None
    mfu: float | None = None
    gpu_utilization: float | None = None
    num_gpus: int | None = None


class Timeline(msgspec.Struct, frozen=True):
    """The values of a server's gauge over a run."""

    seconds: list[float]
    values: list[float]


def engine_model(model: str) -> str:
    """Return the name of the model that holds a model's engine: ``chat_ensemble`` asks ``chat_tensorrt_llm``."""
    for name in _MODELS:
        if model.endswith(name):
            return model.removesuffix(name) + "tensorrt_llm"
    return "tensorrt_llm"


def timelines(samples: Sequence[ServerSample], model: str) -> dict[str, Timeline]:
    """Return those of `TIMELINES` that the server has, over the whole run."""
    engine, found = engine_model(model), {}
    for title, name in TIMELINES.items():
        points = [
            (sample.at_ns / 1e9, value) for sample in samples if (value := total(sample, name, engine)) is not None
        ]
        if points:
            found[title] = Timeline([at for at, _ in points], [value for _, value in points])
    return found


def total(sample: ServerSample, name: str, model: str | None = None) -> float | None:
    """Return a metric summed over versions and further labels; None: it is not there."""
    values = [value for series, value in sample.values.items() if _is_of(series, name, model)]
    return sum(values) if values else None


def _is_of(series: str, name: str, model: str | None) -> bool:
    found, of_model = _parts(series)
    return found == name and (model is None or of_model == model)


@functools.cache
def _parts(series: str) -> tuple[str, str | None]:
    """Return the name of a metric, and its label `model`."""
    found = _SERIES.fullmatch(series)
    return (found["name"], dict(_LABEL.findall(found["labels"])).get("model")) if found else ("", None)


class _Window:
    """The samples of a part of a run, by the engine that was asked."""

    def __init__(self, samples: Sequence[ServerSample], engine: str) -> None:
        self._samples = samples
        self._engine = engine
        self.seconds = (samples[-1].at_ns - samples[0].at_ns) / 1e9

    def values(self, name: str) -> list[float]:
        """Return the values of a gauge."""
        return [value for sample in self._samples if (value := total(sample, name, self._engine)) is not None]

    def mean(self, name: str) -> float | None:
        """Return the mean of a gauge."""
        values = self.values(name)
        return sum(values) / len(values) if values else None

    def most(self, name: str) -> float | None:
        """Return the greatest value of a gauge."""
        return max(self.values(name), default=None)

    def last(self, name: str) -> float | None:
        """Return the last value, of a gauge that does not change."""
        values = self.values(name)
        return values[-1] if values else None

    def grown(self, name: str) -> float | None:
        """Return by how much a counter grew; one that begins anew, for its process died, counts from zero."""
        values = self.values(name)
        if len(values) < 2:
            return None
        return sum(late - early if late >= early else late for early, late in itertools.pairwise(values))


def server_figures(samples: Sequence[ServerSample], window: Window, *, model: str) -> ServerFigures | None:
    """Return the server's figures in a window; None: too few samples are in it."""
    within = [sample for sample in samples if window.start_ns <= sample.at_ns <= window.end_ns]
    if len(within) < 3:
        return None
    seen = _Window(within, engine_model(model))
    found = ServerFigures(
        num_samples=len(within),
        batch_mean=seen.mean("trireme_requests_running"),
        batch_max=seen.most("trireme_requests_running"),
        waiting_mean=seen.mean("trireme_requests_waiting"),
        waiting_max=seen.most("trireme_requests_waiting"),
        kv_usage_mean=seen.mean("trireme_kv_cache_usage_fraction"),
        kv_usage_max=seen.most("trireme_kv_cache_usage_fraction"),
        preemptions=seen.grown("trireme_preemptions_total"),
    )
    _add_gpus(found, within)
    _add_steps(found, seen)
    return found


def _add_gpus(found: ServerFigures, samples: Sequence[ServerSample]) -> None:
    gpus = [series for series in samples[-1].values if series.startswith("nv_gpu_utilization{")]
    if gpus:
        found.num_gpus = len(gpus)
        found.gpu_utilization = sum(sample.values.get(gpu, 0.0) for sample in samples for gpu in gpus) / (
            len(gpus) * len(samples)
        )


def _add_steps(found: ServerFigures, seen: _Window) -> None:
    steps, seconds = seen.grown("trireme_engine_steps_total"), seen.grown("trireme_engine_step_seconds_total")
    if not steps or not seconds:
        return
    found.steps_per_s = steps / seen.seconds
    found.step_ms = 1000 * seconds / steps
    found.busy_share = seconds / seen.seconds
    prompts, outputs = (
        seen.grown("trireme_engine_prompt_tokens_total"),
        seen.grown("trireme_engine_output_tokens_total"),
    )
    prefill_steps = seen.grown("trireme_engine_prefill_steps_total") or 0.0
    prefill_s = seen.grown("trireme_engine_prefill_step_seconds_total") or 0.0
    if prefill_steps and prefill_s:
        found.prefill_step_ms = 1000 * prefill_s / prefill_steps
        found.prefill_tokens_per_s = (prompts or 0.0) / prefill_s
    if steps > prefill_steps:
        found.decode_step_ms = 1000 * (seconds - prefill_s) / (steps - prefill_steps)
    found.decode_tokens_per_s = (outputs or 0.0) / seconds
    sequences, limit = seen.grown("trireme_engine_batch_sequences_total"), seen.last("trireme_engine_max_num_seqs")
    if sequences is not None and limit:
        found.batch_occupancy = sequences / steps / limit
    _add_utilisation(found, seen, steps=steps, seconds=seconds, tokens=(prompts or 0.0) + (outputs or 0.0))


def _add_utilisation(found: ServerFigures, seen: _Window, *, steps: float, seconds: float, tokens: float) -> None:
    weights, kv_bytes = seen.last("trireme_engine_weight_bytes"), seen.last("trireme_engine_kv_bytes_per_token")
    bandwidth = seen.last("trireme_engine_peak_bandwidth_bytes_per_second")
    if weights and kv_bytes and bandwidth:
        kv_read = seen.grown("trireme_engine_kv_read_tokens_total") or 0.0
        found.mbu = (steps * weights + kv_read * kv_bytes) / seconds / bandwidth
    flops, peak = seen.last("trireme_engine_flops_per_token"), seen.last("trireme_engine_peak_flops")
    if flops and peak:
        found.mfu = flops * tokens / seconds / peak
