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

_RTX_BLACKWELL = 120
TABLE = Path(__file__).with_name("efficiencies.yaml")

Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


class Efficiencies(Spec):
    """Shares of a datasheet's peak, and times that no datasheet has."""

    gemm_fp16: Share = Field(description="of the peak of tensor cores in 16 bits")
    gemm_fp8: Share = Field(description="in FP8 and INT8")
    gemm_fp4: Share = Field(description="in FP4 on data centre Blackwell")
    gemm_fp4_rtx: Share = Field(description="in FP4 on RTX Blackwell, whose peak is a fifth and reached more easily")
    block_scaled: Share = Field(description="of that of FP8, where blocks of weights have scales")
    dequantize: Share = Field(
        description="of those, for weights that are unpacked before they are multiplied; not fitted"
    )
    memory: Share = Field(description="of HBM's bandwidth, for weights and activations")
    kv_cache: Share = Field(description="of HBM's bandwidth, for the KV cache in decoding")
    attention: Share = Field(description="of the peak in 16 bits, for attention in prefill")
    nvlink: Share = Field(description="of NVLink's bandwidth in one direction")
    pcie: Share = Field(description="of PCIe's")
    all_reduce_s: Seconds = Field(description="of a ring over NVLink, beside its bytes")
    one_shot_s: Seconds = Field(description="of one where every GPU sends all to all others")
    all_reduce_pcie_s: Seconds
    layer_s: Seconds = Field(description="of each layer, whatever it computes: launches and gaps")
    compiled_layer_s: Seconds = Field(description="of each layer of a compiled engine, which runs without CUDA graphs")
    expert_layer_s: Seconds = Field(description="of each layer with experts, beside: routing, sorting, more launches")
    fused_expert_layer_s: Seconds = Field(description="of those on data centre Blackwell, which fuses most of it")
    latent_layer_s: Seconds = Field(
        description="of each layer with latent attention, beside: its many small products and norms"
    )
    expert_variety: Share = Field(
        description="exponent of a step's tokens in how many experts they meet: 1 if all experts were chosen alike"
    )
    expert_padding: Annotated[float, Field(ge=0)] = Field(
        description="rows that a grouped product adds to each expert's"
    )
    expert_imbalance: Annotated[float, Field(ge=0)] = Field(
        description="by how much the fullest rank of many has more tokens for its experts than the mean"
    )
    narrow_experts: Annotated[float, Field(ge=0)] = Field(
        description="width of an expert on one GPU at which the grouped product takes twice a dense one's time"
    )
    routing_passes: Annotated[float, Field(ge=0)] = Field(
        description="bytes read and written for each number that a token sends to its experts"
    )
    eager_layer_s: Seconds = Field(
        description="of each layer's launches in a step with prompts, which no graph has; not fitted"
    )
    tokenize_s: Seconds = Field(
        description="of each token of a prompt, before its first step; measured: 0.7 s for 1 MB of text, not fitted"
    )
    waited_steps: Annotated[float, Field(ge=0)] = Field(
        description="steps of decoding that pass before a prompt's first chunk begins and after its last one"
    )
    step_s: Seconds = Field(description="of each step: scheduling")
    sequence_s: Seconds = Field(description="of each sequence in a step: sampling, bookkeeping")
    activation_passes: Annotated[float, Field(ge=0)] = Field(
        description="bytes read and written for each number of hidden width, token and layer"
    )
    blend: Annotated[float, Field(ge=1)] = Field(description="how compute and reading overlap in a matrix product")

    def gemm(self, weights: WeightFormat, sm: int) -> float:
        """Return the share of peak that matrices of a format reach, for many tokens."""
        peaks = {"fp16": self.gemm_fp16, "fp8": self.gemm_fp8, "int8": self.gemm_fp8, "fp4": self.gemm_fp4}
        if sm == _RTX_BLACKWELL:
            peaks["fp4"] = self.gemm_fp4_rtx
        share = peaks[weights.compute_on(sm)] * (self.dequantize if weights.is_unpacked_on(sm) else 1.0)
        return share * (self.block_scaled if weights.name == "fp8_block" else 1.0)


@cache
def fitted() -> Efficiencies:
    """Return the committed constants."""
    return validate(Efficiencies, yaml.safe_load(TABLE.read_text(encoding="utf-8"))["efficiencies"], source=TABLE)
