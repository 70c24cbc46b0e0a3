# SPDX-License-Identifier: Apache-2.0
"""The format of a checkpoint that is quantized already: others cannot be made from it."""

from collections.abc import Mapping
from typing import NamedTuple

from trireme.base.errors import SpecError

# By the words of AutoAWQ, GPTQModel, DeepSeek, FBGEMM and ModelOpt for method (or algorithm) and bits.
_FORMATS = {
    ("awq", 4): "int4_awq", ("gptq", 4): "int4_gptq", ("fp8", None): "fp8", ("fp8 in blocks", None): "fp8_block",
    ("fbgemm_fp8", None): "fp8_rowwise", ("modelopt fp8", None): "fp8", ("modelopt nvfp4", None): "nvfp4",
    ("modelopt w4a8_awq", None): "w4a8_awq", ("modelopt w4a16_awq", None): "int4_awq",
    ("modelopt fp8_block_scales", None): "fp8_block",
}  # fmt: skip


class Quantized(NamedTuple):
    """The quantization that a checkpoint states."""

    method: str
    bits: int | None
    weight_format: str | None  # of `WEIGHT_FORMATS`; None: none of them

    def __str__(self) -> str:
        """Return one sentence for a plan."""
        named = f"{self.method}, {self.bits} bits" if self.bits is not None else self.method
        if self.weight_format is None:
            what = "none of the formats here: every row below has"
        else:
            what = f"{self.weight_format} here: rows of other formats have"
        return f"The checkpoint is already quantized ({named}), which is {what} to be made from the one in 16 bits."


def quantized_as(
    config: Mapping[str, object], *, modelopt: Mapping[str, object] | None = None, source: str = "config.json"
) -> Quantized | None:
    """Return how a checkpoint is quantized, or None if it is not.

    Args:
        config: its `config.json`.
        modelopt: its `hf_quant_config.json`, if there is one.

    Raises:
        SpecError: `quantization_config` is not an object.
    """
    facts = (modelopt or {}).get("quantization")
    if isinstance(facts, Mapping):
        return _of_modelopt(facts)
    facts = config.get("quantization_config")
    if facts is None:
        return None
    if not isinstance(facts, Mapping):
        raise SpecError(
            f"{source}: quantization_config must be an object of keys and values, or left out; got {facts!r}",
            file=source,
            field="quantization_config",
            value=facts,
        )
    method, bits = facts.get("quant_method"), facts.get("bits")
    if method == "modelopt":
        return _of_modelopt(facts)
    if method == "fp8" and facts.get("weight_block_size") is not None:
        method = "fp8 in blocks"
    return _named(
        method if isinstance(method, str) else "by a method that it does not name",
        bits if isinstance(bits, int) and not isinstance(bits, bool) else None,
    )


def _of_modelopt(facts: Mapping[str, object]) -> Quantized | None:
    algorithm = facts.get("quant_algo")
    return _named(f"modelopt {algorithm.lower()}", None) if isinstance(algorithm, str) else None


def _named(method: str, bits: int | None) -> Quantized:
    return Quantized(method, bits, _FORMATS.get((method, bits)))
