# SPDX-License-Identifier: Apache-2.0
"""The few physical constants of the roofline, fitted to published measurements by `make planner-fit`."""

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from build_engines.checkpoint.weight_formats import WeightFormat
from ensemble_configs.spec.base import Spec
from ensemble_configs.spec.validation import validate

TABLE = Path(__file__).with_name("efficiencies.yaml")

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


class Efficiencies(Spec):
    """Shares of a datasheet's peak, and times that no datasheet has."""

    gemm_fp16: Share = Field(description="of the peak of tensor cores in 16 bits")
    gemm_fp8: Share = Field(description="in FP8 and INT8")
    gemm_fp4: Share = Field(description="in FP4; not fitted: no measurement has it")
    dequantize: Share = Field(
        description="of those, for weights that are unpacked before they are multiplied; not fitted"
    )
    memory: Share = Field(description="of HBM's bandwidth, for weights and activations")
    kv_cache: Share = Field(description="of HBM's bandwidth, for the KV cache in decoding")
    attention: Share = Field(description="of the peak in 16 bits, for attention in prefill")
    nvlink: Share = Field(description="of NVLink's bandwidth in one direction")
    pcie: Share = Field(description="of PCIe's")
    all_reduce_s: Seconds = Field(description="of a ring over NVLink, beside its bytes")
    one_shot_s: Seconds = Field(description="of one where every GPU sends all to all others; not fitted")
    all_reduce_pcie_s: Seconds
    layer_s: Seconds = Field(description="of each layer, whatever it computes: launches and gaps")
    step_s: Seconds = Field(description="of each step: scheduling")
    sequence_s: Seconds = Field(description="of each sequence in a step: sampling, bookkeeping")
    activation_passes: Annotated[float, Field(ge=0)] = Field(
        description="bytes read and written for each number of hidden width, token and layer"
    )
    blend: Annotated[float, Field(ge=1)] = Field(description="how compute and reading overlap in a matrix product")

    def gemm(self, linear: WeightFormat) -> float:
        """Return the share of peak that a format's linear layers reach, for many tokens."""
        peaks = {"fp16": self.gemm_fp16, "fp8": self.gemm_fp8, "int8": self.gemm_fp8, "fp4": self.gemm_fp4}
        return peaks[linear.compute] * (self.dequantize if linear.is_unpacked else 1.0)


@cache
def fitted() -> Efficiencies:
    """Return the committed constants."""
    return validate(Efficiencies, yaml.safe_load(TABLE.read_text(encoding="utf-8"))["efficiencies"], source=TABLE)
