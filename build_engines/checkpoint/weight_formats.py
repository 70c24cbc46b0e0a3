# SPDX-License-Identifier: Apache-2.0
"""Storage formats of weight matrices: bits, scales, the type computed in, and the GPUs that run them; with exact bytes.

What is outside `LINEAR_ROLES` (embedding, head, norms, routers) and all biases keep 16 bits, unless a `FormatPlan` says
otherwise for embedding and head.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from build_engines.checkpoint.weight_table import LINEAR_ROLES, Role, Weight

Compute = Literal["fp16", "fp8", "int8", "fp4"]  # what tensor cores multiply in


@dataclass(frozen=True)
class WeightFormat:
    """A storage format of a matrix ``[out, in]``.

    Attributes:
        bits: bits of a weight.
        scale_bits: bits of a scale.
        group: what shares a scale: a block of ``(out, in)`` weights, 0 meaning the whole side: (1, 0) is one scale for
            each output channel, (1, 128) the usual group, (0, 0) one for the matrix.
        zero_bits: bits of a zero point, as many as scales; 0: symmetric.
        input_scale_bits: bits of a factor for each input channel (AWQ, SmoothQuant); 0: none.
        compute: the type that the product is computed in.
        sms: compute capabilities that TensorRT-LLM runs the format on, for engines and for checkpoints alike.
        unpacked_below: compute capability below which the weights are unpacked, and multiplied in 16 bits.
        is_padded: a rank's border may cut a group: back ends pad what a rank has.
    """

    name: str
    bits: float
    compute: Compute
    sms: frozenset[int]
    group: tuple[int, int] = (0, 0)
    scale_bits: int = 0
    zero_bits: int = 0
    input_scale_bits: int = 0
    unpacked_below: int = 0
    is_padded: bool = False

    def num_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a matrix of this shape, or of all experts for ``[experts, out, in]``."""
        *outer, out, into = shape
        group_out, group_in = (size or side for size, side in zip(self.group, (out, into), strict=True))
        num_scales = math.ceil(out / group_out) * math.ceil(into / group_in)
        bits = out * into * self.bits + num_scales * (self.scale_bits + self.zero_bits) + into * self.input_scale_bits
        return math.prod(outer) * math.ceil(bits / 8)

    @property
    def is_quantized(self) -> bool:
        """Return True if a weight has less than 16 bits."""
        return self.bits < 16

    def compute_on(self, sm: int) -> Compute:
        """Return the type that a product is computed in on GPUs of a compute capability."""
        return "fp16" if sm < self.unpacked_below else self.compute

    def is_unpacked_on(self, sm: int) -> bool:
        """Return True if weights are turned into a wider type before they are multiplied."""
        if self.unpacked_below:
            return sm < self.unpacked_below
        return self.bits < {"fp16": 16, "fp8": 8, "int8": 8, "fp4": 4}[self.compute]


# Source of the table: TensorRT-LLM's documentation of quantization (features/quantization), hardware against formats;
# what it does not list (integer formats) runs on every GPU since SM 80. AWQ, GPTQ and their like are not on SM 100. SM
# 100 and 103 are one row there.
_AMPERE = frozenset({80, 86})
_ALL = _AMPERE | {89, 90, 100, 103, 120}
_INTEGER = _AMPERE | {89, 90}
_FP8 = frozenset({89, 90, 100, 103, 120})
_FP4 = frozenset({100, 103, 120})

WEIGHT_FORMATS = {
    each.name: each
    for each in (
        WeightFormat("fp16", 16, "fp16", _ALL),
        WeightFormat("bf16", 16, "fp16", _ALL),
        WeightFormat("int8_weight_only", 8, "fp16", _INTEGER, (1, 0), 16),
        WeightFormat("smoothquant", 8, "int8", _INTEGER, (1, 0), 32, input_scale_bits=32),
        WeightFormat("int4_weight_only", 4, "fp16", _INTEGER, (1, 0), 16),
        WeightFormat("int4_awq", 4, "fp16", _INTEGER, (1, 128), 16, input_scale_bits=16),
        WeightFormat("int4_gptq", 4, "fp16", _INTEGER, (1, 128), 16, zero_bits=16),
        WeightFormat("fp8", 8, "fp8", _FP8, (0, 0), 32),
        WeightFormat("fp8_rowwise", 8, "fp8", frozenset({90}), (1, 0), 32),
        WeightFormat("fp8_block", 8, "fp8", frozenset({90, 100, 103}), (128, 128), 32),
        WeightFormat("w4a8_awq", 4, "fp8", frozenset({89, 90}), (1, 128), 16, input_scale_bits=16),
        WeightFormat("nvfp4", 4, "fp4", _FP4, (1, 16), 8),
    )
}

# The experts of gpt-oss's checkpoints. On Hopper TensorRT-LLM multiplies them in 16 bits, by Triton's kernels; from
# SM 100 on by MXFP8 activations, at FP8's rate (its deployment guide for gpt-oss). No recipe makes it.
MXFP4 = WeightFormat("mxfp4", 4, "fp8", frozenset({90, 100, 103}), (1, 32), 8, unpacked_below=100, is_padded=True)

# Bytes of a number in the KV cache; nvfp4 has a scale of 8 bits for 16 numbers.
KV_FORMATS = {"fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625}
KV_FORMAT_SMS = {
    "fp16": _ALL, "bf16": _ALL, "int8": _INTEGER, "fp8": _AMPERE | _FP8, "nvfp4": _FP4,
}  # fmt: skip


@dataclass(frozen=True)
class FormatPlan:
    """The format of each kind of matrix."""

    linear: WeightFormat
    experts: WeightFormat | None = None  # None: as the other linear layers
    embedding: WeightFormat = WEIGHT_FORMATS["bf16"]
    head: WeightFormat = WEIGHT_FORMATS["bf16"]

    @property
    def of_experts(self) -> WeightFormat:
        """Return the format of the experts' matrices."""
        return self.experts or self.linear

    @property
    def name(self) -> str:
        """Return the name of the format that most of the weights have: the experts', where theirs is another."""
        return self.of_experts.name

    def of(self, weight: Weight) -> WeightFormat:
        """Return the format of a tensor."""
        if weight.is_bias:
            return WEIGHT_FORMATS["bf16"]
        match weight.role:
            case Role.EMBEDDING:
                return self.embedding
            case Role.HEAD:
                return self.head
            case role if role in LINEAR_ROLES:
                return self.of_experts if weight.is_of_experts else self.linear
        return WEIGHT_FORMATS["bf16"]

    def num_bytes(self, weights: Iterable[Weight]) -> int:
        """Return the bytes of all given weights."""
        return sum(self.num_bytes_of(weight, weight.shape) for weight in weights)

    def num_bytes_of(self, weight: Weight, shape: tuple[int, ...]) -> int:
        """Return the bytes of a part of a tensor; `shape` is the shape of the part."""
        return self.of(weight).num_bytes(_as_matrix(weight, shape))


def _as_matrix(weight: Weight, shape: tuple[int, ...]) -> tuple[int, ...]:
    match shape:
        case (size,):
            return (1, size)
        case (experts, into, out) if weight.num_experts > 1:  # all experts in one tensor: [experts, in, out]
            return (experts, out, into)
        case (experts, size):
            return (experts, size)
        case shape:
            return shape


# The formats that a checkpoint may have, or that can be made.
FORMAT_PLANS = {name: FormatPlan(each) for name, each in WEIGHT_FORMATS.items()}
FORMAT_PLANS["mxfp4"] = FormatPlan(WEIGHT_FORMATS["bf16"], experts=MXFP4)
