# SPDX-License-Identifier: Apache-2.0
"""A question to the planner: a model, machines, a workload with its load, and targets."""

from dataclasses import dataclass, field

from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.quantized_checkpoint import Quantized
from build_engines.planner.estimators.estimator import Load
from build_engines.planner.roofline.candidates import Machines, Wanted
from build_engines.planner.roofline.serving_limit import ServingLimit
from build_engines.planner.roofline.steady_state import Estimate, Workload


@dataclass(frozen=True)
class Targets:
    """Targets of latency for users; None: no target."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """Return True if any target is set."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    def missed_by(self, estimate: Estimate) -> str | None:
        """Return the target that an estimate misses, in words, or None."""
        if self.ttft_ms is not None and estimate.ttft_ms > self.ttft_ms:
            return f"TTFT {estimate.ttft_ms:.0f} ms > {self.ttft_ms:.0f}"
        if self.tpot_ms is not None and estimate.tpot_ms > self.tpot_ms:
            return f"TPOT {estimate.tpot_ms:.1f} ms > {self.tpot_ms:g}"
        return None


@dataclass(frozen=True)
class Question:
    """A question to the planner: the model, the machines, the workload and its load, and the targets."""

    model: ModelShape
    machines: Machines
    workload: Workload
    load: Load = field(default_factory=Load)  # on all replicas; nothing set: the most within the targets
    targets: Targets = field(default_factory=Targets)
    price_per_gpu_hour: float | None = None
    wanted: Wanted = field(default_factory=Wanted)
    serving: ServingLimit = field(default_factory=ServingLimit)
    quantized: Quantized | None = None  # the checkpoint, already

    @property
    def is_load_given(self) -> bool:
        """Return True if requests come by themselves: an option then takes as few GPUs as keep up."""
        return self.load.requests_per_s is not None or self.load.users is not None

    def needs_16_bit_checkpoint(self, weight_format: str) -> bool:
        """Return True if weights in this format cannot come from the checkpoint that was given.

        One that is quantized already is served in its own format; any other is made from the checkpoint in 16 bits.
        """
        return self.quantized is not None and self.quantized.weight_format != weight_format
