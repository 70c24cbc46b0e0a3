# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's AISimulate as an estimator: measured kernel tables where ours has a roofline.

The batch is ours, from our KV cache; AISimulate's own count of memory, which keeps more back, is not asked. For each
candidate, batches of powers of two and the full one are asked for at once, and what lies between is interpolated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from build_engines.planner.estimators.aisimulate_process import (
    NOT_INSTALLED,
    AiSimulateProcess,
    Figures,
    Point,
    Question,
    Refusal,
)
from build_engines.planner.estimators.estimator import Load
from build_engines.planner.roofline.candidates import Candidate
from build_engines.planner.roofline.steady_state import Estimate, Limits, Workload

# Ours to its names; what is missing here has no tables there, or other ones than its name says.
_SYSTEMS: Mapping[str, str] = {
    "a100-80": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "l40s": "l40s", "b200": "b200_sxm",
    "gb200": "gb200", "rtx-pro-6000": "rtx_pro_6000_server", "b300": "b300_sxm", "gb300": "gb300",
}  # fmt: skip
_LINEAR: Mapping[str, str] = {
    "fp16": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
    "int8_weight_only": "int8_wo", "int4_weight_only": "int4_wo", "int4_awq": "int4_wo", "int4_gptq": "int4_wo",
    "smoothquant": "sq", "mxfp4": "bfloat16",
}  # fmt: skip
_EXPERTS = {name: _LINEAR[name] for name in ("fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int4_awq", "int4_gptq")}
_EXPERTS |= {"int4_weight_only": "int4_wo", "w4a8_awq": "w4afp8", "mxfp4": "w4a8_mxfp4_mxfp8"}
_MXFP4_IN_16_BITS = "w4a16_mxfp4"
_COUNTS_WINDOWS = frozenset({"GptOssForCausalLM"})  # others of ours are families without windows to it
_KV_CACHE: Mapping[str, str] = {"fp16": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "int8": "int8"}


class AiSimulate:
    """AISimulate's estimates for one model.

    Args:
        folder: where the model's `config.json` is; `aisimulate_process.model_folder` makes one.
    """

    name = "aisimulate"

    def __init__(self, folder: str, process: AiSimulateProcess | None = None) -> None:
        self._folder = folder
        self._process = process or AiSimulateProcess()
        self._curves: dict[tuple[Candidate, Workload, Limits], _Curve | str] = {}
        self.version: str | None = None  # version of TensorRT-LLM that the tables last asked were measured with

    def why_not(self, candidate: Candidate, workload: Workload, limits: Limits) -> str | None:
        """Return the reason why AISimulate cannot estimate a candidate, or None.

        Reasons: not installed, or no tables of the GPU, the format or the model; the words of the last are
        AISimulate's.
        """
        if workload.cached:
            return "it is not asked about prompts that are cached in part"
        if candidate.engine.costs.model.linear_layers:
            return "what it says of linear attention was compared with nothing"
        if _has_uncounted_windows(candidate, workload):
            return f"it counts no sliding windows of {candidate.engine.costs.model.architecture}"
        found = self._curve(candidate, workload, limits)
        return found if isinstance(found, str) else None

    def estimate(self, candidate: Candidate, workload: Workload, load: Load, limits: Limits) -> Estimate | None:
        """Return an estimate from AISimulate's figures of the batch that the load leads to.

        Raises:
            ServerError: AISimulate's process failed.
        """
        curve = self._curve(candidate, workload, limits)
        assert not isinstance(curve, str), f"why_not says: {curve}"
        most = limits.batch(workload)
        if most < 1:
            return None
        if load.requests_per_s is not None:
            return curve.at_rate(load.requests_per_s)
        if load.users is not None:
            return curve.at_users(load.users, load.think_time_s)
        return curve.at_concurrency(load.concurrency or most)

    def static_batch(self, candidate: Candidate, workload: Workload, batch_size: int) -> Figures | str:
        """Return the figures of a batch that is prefilled together and decodes to its end, or why there are none."""
        point = Point(
            isl=workload.isl, osl=workload.osl, batch_size=batch_size, prompt_tokens_per_step=0, is_static=True
        )
        found = self._ask(candidate, (point,))
        return found if isinstance(found, str) else found[0]

    def _curve(self, candidate: Candidate, workload: Workload, limits: Limits) -> "_Curve | str":
        key = candidate, workload, limits
        if key not in self._curves:
            self._curves[key] = self._asked_curve(candidate, workload, limits)
        return self._curves[key]

    def _asked_curve(self, candidate: Candidate, workload: Workload, limits: Limits) -> "_Curve | str":
        if workload.osl < 2:
            return "it has no steady state of answers of one token"
        most = max(1, limits.batch(workload))
        layout = candidate.layout
        groups = layout.pp_size * (layout.tp_size if layout.is_attention_dp else 1)  # each with a batch of its own
        if most < groups:
            return f"it runs {groups} batches at once, and there is room for {most} sequences"
        largest = math.ceil(most / groups)  # the full batch itself lies between two points, or is the last
        sizes = sorted({2**n for n in range(largest.bit_length())} | {largest})
        # Its default, one prompt at a time. With more its throughput is as near to what was published, TTFT far off.
        prompt_tokens = min(workload.isl, limits.max_num_tokens)
        asked = tuple(
            Point(
                isl=workload.isl,
                osl=workload.osl,
                batch_size=size,
                prompt_tokens_per_step=prompt_tokens,
            )
            for size in sizes
        )
        found = self._ask(candidate, asked)
        if isinstance(found, str):
            return found
        points = tuple((float(size * groups), one) for size, one in zip(sizes, found, strict=True))
        return _Curve(workload, most, points)

    def _ask(self, candidate: Candidate, points: tuple[Point, ...]) -> tuple[Figures, ...] | str:
        if not self._process.is_installed:
            return NOT_INSTALLED
        question = _question(self._folder, candidate, points)
        if isinstance(question, str):
            return question
        answer = self._process.ask(question)
        if isinstance(answer, Refusal):
            return answer.error
        self.version = answer.version
        return answer.points


def _has_uncounted_windows(candidate: Candidate, workload: Workload) -> bool:
    """Return True if a window hides a part of a sequence from attention, and AISimulate counts all of it."""
    model = candidate.engine.costs.model
    if model.architecture in _COUNTS_WINDOWS:
        return False
    return any(layer.sliding_window and layer.sliding_window < workload.num_tokens for layer in model.layers)


def _question(folder: str, candidate: Candidate, points: tuple[Point, ...]) -> Question | str:
    engine, layout = candidate.engine, candidate.layout
    weight_format, is_moe = engine.formats.name, engine.costs.model.is_moe
    if engine.gpu.name not in _SYSTEMS:
        return f"it has no tables of {engine.gpu.title}"
    if weight_format not in _LINEAR or (is_moe and weight_format not in _EXPERTS):
        return f"it has no tables of {weight_format}" + (" experts" if is_moe else "")
    experts = _EXPERTS.get(weight_format, "")
    if engine.formats.of_experts.unpacked_below > engine.gpu.sm:
        experts = _MXFP4_IN_16_BITS
    if engine.kv_format not in _KV_CACHE:
        return f"it has no tables of a KV cache in {engine.kv_format}"
    if layout.cp_size > 1:
        return "it has no context parallelism"
    return Question(
        model=folder,
        system=_SYSTEMS[engine.gpu.name],
        tp_size=1 if layout.is_attention_dp else layout.tp_size,
        pp_size=layout.pp_size,
        attention_dp_size=layout.tp_size if layout.is_attention_dp else 1,
        moe_tp_size=layout.moe_tp_size,
        moe_ep_size=layout.ep_size,
        linear=_LINEAR[weight_format],
        experts=experts if is_moe else _LINEAR[weight_format],
        kv_cache=_KV_CACHE[engine.kv_format],
        points=points,
    )


@dataclass(frozen=True)
class _Curve:
    """AISimulate's figures by batch, for the whole replica, growing up to the full batch or just beyond it."""

    workload: Workload
    full_batch: int
    points: tuple[tuple[float, Figures], ...]

    def at_concurrency(self, num_clients: float) -> Estimate:
        """Return the estimate at a concurrency.

        Clients beyond the full batch wait, as in `steady_state.at_concurrency`.
        """
        batch = min(num_clients, self.full_batch)
        found = self._at(batch)
        waiting_s = (num_clients - batch) / found.requests_per_s if num_clients > batch else 0.0
        return self._estimate(found, batch, found.requests_per_s, 1000 * waiting_s)

    def at_rate(self, requests_per_s: float) -> Estimate | None:
        """Return the estimate at a request rate, or None if the full batch does not keep up.

        The batch is what is in flight, by Little's law.
        """
        most = self.full_batch
        if requests_per_s > self._at(most).requests_per_s:
            return None
        batch = 1.0
        for _ in range(100):
            found = self._at(batch)
            wanted = min(most, requests_per_s * self._request_s(found))
            if abs(wanted - batch) < 0.001 * batch:
                break
            batch = (batch + wanted) / 2
        return self._estimate(self._at(batch), batch, requests_per_s)

    def at_users(self, num_users: float, think_time_s: float) -> Estimate:
        """Return the estimate for users, by the interactive response time law, as `steady_state.at_users` does."""
        low, high = 0.0, num_users
        for _ in range(40):
            in_engine = (low + high) / 2
            requests_per_s = self._at(min(in_engine, self.full_batch)).requests_per_s
            if in_engine + think_time_s * requests_per_s > num_users:
                high = in_engine
            else:
                low = in_engine
        return self.at_concurrency(in_engine)

    def _request_s(self, found: Figures) -> float:
        return (found.ttft_ms + (self.workload.osl - 1) * found.tpot_ms) / 1000

    def _estimate(self, found: Figures, batch: float, requests_per_s: float, waiting_ms: float = 0) -> Estimate:
        tokens_per_s = requests_per_s * self.workload.osl
        return Estimate(found.ttft_ms + waiting_ms, found.tpot_ms, tokens_per_s, batch, step=None)

    def _at(self, batch: float) -> Figures:
        """Interpolate the figures at a batch.

        Between two points by powers of the batch; below the first as many requests as there are sequences.
        """
        first, smallest = self.points[0]
        if batch <= first:
            return Figures(smallest.ttft_ms, smallest.tpot_ms, smallest.requests_per_s * batch / first)
        for (low, below), (high, above) in pairwise(self.points):
            if batch <= high:
                share = math.log(batch / low) / math.log(high / low)
                return Figures(
                    *(
                        math.exp((1 - share) * math.log(getattr(below, name)) + share * math.log(getattr(above, name)))
                        for name in Figures.__struct_fields__
                    )
                )
        return self.points[-1][1]
