# SPDX-License-Identifier: Apache-2.0
"""The format of a checkpoint that is quantized already: others cannot be made from it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from build_engines.checkpoint.weight_formats import FORMAT_PLANS
from trireme.base.errors import SpecError

# By the words of AutoAWQ, GPTQModel, DeepSeek, FBGEMM, GPT-OSS and ModelOpt for method (or algorithm) and bits.
_FORMATS = {
    ("awq", 4): "int4_awq", ("gptq", 4): "int4_gptq", ("fp8", None): "fp8", ("fp8 in blocks", None): "fp8_block",
    ("fbgemm_fp8", None): "fp8_rowwise", ("mxfp4", None): "mxfp4", ("modelopt fp8", None): "fp8",
    ("modelopt nvfp4", None): "nvfp4", ("modelopt nvfp4_awq", None): "nvfp4", ("modelopt w4a8_awq", None): "w4a8_awq",
    ("modelopt w4a16_awq", None): "int4_awq", ("modelopt fp8_block_scales", None): "fp8_block",
    ("modelopt fp8_pb_wo", None): "fp8_block", ("modelopt fp8_per_channel_per_token", None): "fp8_rowwise",
}  # fmt: skip
# Of compressed-tensors: type and bits of weights, what shares a scale, type and bits of activations ("": 16 bits).
_COMPRESSED = {
    ("float 8", "tensor", "float 8"): "fp8", ("float 8", "channel", "float 8"): "fp8_rowwise",
    ("float 8", "block", "float 8"): "fp8_block", ("float 4", "tensor_group", "float 4"): "nvfp4",
    ("int 4", "group", ""): "int4_gptq", ("int 8", "channel", ""): "int8_weight_only",
    ("int 8", "channel", "int 8"): "smoothquant",
}  # fmt: skip
# Lists of modules that keep 16 bits, by the tool that wrote them.
_KEPT = ("exclude_modules", "ignore", "modules_to_not_convert")


class Quantized(NamedTuple):
    """The quantization that a checkpoint states."""

    method: str
    bits: int | None
    weight_format: str | None  # of `FORMAT_PLANS`; None: none of them
    is_attention_kept: bool = False  # attention, or matrices of it, have 16 bits

    def __str__(self) -> str:
        """Return one or two sentences for a plan."""
        named = f"{self.method}, {self.bits} bits" if self.bits is not None else self.method
        if self.weight_format is None:
            what = "none of the formats here: every row below has"
        else:
            what = f"{self.weight_format} here: rows of other formats have"
        said = f"The checkpoint is already quantized ({named}), which is {what} to be made from the one in 16 bits."
        if self.is_attention_kept and self.weight_format and FORMAT_PLANS[self.weight_format].experts is None:
            said += (
                f" Its attention, or a part of it, keeps 16 bits; rows of {self.weight_format} count all of it in few."
            )
        return said


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
    if method == "modelopt" or (method is None and isinstance(facts.get("quant_algo"), str)):
        return _of_modelopt(facts)
    if method == "compressed-tensors":
        return _of_compressed_tensors(facts)
    if method == "fp8" and facts.get("weight_block_size") is not None:
        method = "fp8 in blocks"
    return _named(
        method if isinstance(method, str) else "by a method that it does not name",
        bits if isinstance(bits, int) and not isinstance(bits, bool) else None,
        facts,
    )


def _of_modelopt(facts: Mapping[str, object]) -> Quantized | None:
    algorithm = facts.get("quant_algo")
    if not isinstance(algorithm, str):
        return None
    layers = facts.get("quantized_layers")
    if algorithm != "MIXED_PRECISION" or not isinstance(layers, Mapping):
        return _named(f"modelopt {algorithm.lower()}", None, facts)
    found = sorted({str(one.get("quant_algo")).lower() for one in layers.values() if isinstance(one, Mapping)})
    is_kept = not any(_is_of_attention(str(name)) for name in layers)
    if len(found) == 1:
        return _named(f"modelopt {found[0]}", None, facts)._replace(is_attention_kept=is_kept)
    return Quantized(f"modelopt, {' and '.join(found) or 'nothing'} in different layers", None, None, is_kept)


def _of_compressed_tensors(facts: Mapping[str, object]) -> Quantized:
    groups = facts.get("config_groups")
    found = sorted(set(_groups(groups)) if isinstance(groups, Mapping) else ())
    words = "; ".join(f"{weights} by {scales}, activations {inputs or '16 bits'}" for weights, scales, inputs in found)
    weight_format = _COMPRESSED.get(found[0]) if len(found) == 1 else None
    return Quantized(f"compressed-tensors: {words or 'no groups'}", None, weight_format, _keeps_attention(facts))


def _groups(groups: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(group, Mapping) and isinstance(weights, Mapping):
            yield _type(weights), str(weights.get("strategy")), _type(group.get("input_activations"))


def _type(facts: object) -> str:
    """Return type and bits of numbers, or nothing where they are left in 16 bits."""
    return f"{facts.get('type')} {facts.get('num_bits')}" if isinstance(facts, Mapping) else ""


def _named(method: str, bits: int | None, facts: Mapping[str, object]) -> Quantized:
    return Quantized(method, bits, _FORMATS.get((method, bits)), _keeps_attention(facts))


def _keeps_attention(facts: Mapping[str, object]) -> bool:
    kept = (facts.get(name) for name in _KEPT)
    return any(_is_of_attention(str(module)) for modules in kept if isinstance(modules, list) for module in modules)


def _is_of_attention(module: str) -> bool:
    return "self_attn" in module or "linear_attn" in module
