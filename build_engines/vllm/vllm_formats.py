# SPDX-License-Identifier: Apache-2.0
"""The formats of a `vllm` recipe's weights, in bytes and sizes, before anything is built.

compressed-tensors packs eight 4-bit weights of a row into 32 bits, and zero points of a column alike; scales have the
type of the checkpoint's weights. A tied head is stored once.
"""

import re
from collections.abc import Iterator

from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import WEIGHT_FORMATS, WeightFormat
from build_engines.checkpoint.weight_table import LINEAR_ROLES, Role, Weight, weights_of
from build_engines.recipes.recipe import VllmRecipe

_SHAPE_BYTES = 16  # of `weight_shape`, beside each packed matrix
_BLOCK = 128
# What both sides of a matrix must be multiples of. Sources in vLLM 0.32: mixed_precision/cpu.py (4 bits on CPUs);
# csrc/quantization/w8a8, `cutlass_scaled_mm` (8 bits); fp8_utils.py, `validate_fp8_block_shape` (blocks).
_MULTIPLES = {"int4_awq": 32, "int4_gptq": 32, "smoothquant": 16, "fp8_rowwise": 16, "fp8_block": _BLOCK}


def layer_of(weight: Weight) -> str:
    """Return the name of the layer that a weight belongs to."""
    return weight.name.removesuffix(".weight")


def routers_of(model: ModelShape) -> list[str]:
    """Return the names of the layers that choose experts, which are never quantized."""
    return [layer_of(weight) for weight in weights_of(model) if weight.role is Role.ROUTER and not weight.is_bias]


def is_quantized(weight: Weight, recipe: VllmRecipe) -> bool:
    """Return True if a weight gets the recipe's format."""
    if recipe.format in ("fp16", "bf16") or weight.is_bias or weight.role not in LINEAR_ROLES:
        return False
    return not any(_names(pattern, layer_of(weight)) for pattern in recipe.ignored_layers)


def _names(pattern: str, layer: str) -> bool:
    """Return True if an entry of `ignored_layers` means a layer; an expression need not match to the name's end."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), layer) is not None
    return pattern == layer


def unheld_sizes(model: ModelShape, recipe: VllmRecipe) -> Iterator[tuple[str, str]]:
    """Yield each layer whose sizes the format cannot hold, and what they would have to be."""
    multiple = _MULTIPLES.get(recipe.format, 1)
    for weight in weights_of(model):
        if not is_quantized(weight, recipe):
            continue
        out, width = _sides(weight)
        if out % multiple or width % multiple:
            yield layer_of(weight), f"{out} x {width}, and both must be multiples of {multiple}"
        elif recipe.format in ("int4_awq", "int4_gptq") and width % recipe.weights_per_scale:
            yield layer_of(weight), f"rows of {width}, and group_size ({recipe.weights_per_scale}) must divide them"


def unknown_layers(model: ModelShape, recipe: VllmRecipe) -> list[str]:
    """Return the entries of `ignored_layers` that mean no linear layer of the model."""
    layers = [layer_of(weight) for weight in weights_of(model) if weight.role in LINEAR_ROLES and not weight.is_bias]
    return [pattern for pattern in recipe.ignored_layers if not any(_names(pattern, layer) for layer in layers)]


def vllm_bytes(model: ModelShape, recipe: VllmRecipe) -> int:
    """Return the bytes of the tensors in the release's safetensors, without the files' heads."""
    return sum(_bytes_of(weight, recipe) for weight in weights_of(model))


def _bytes_of(weight: Weight, recipe: VllmRecipe) -> int:
    if not is_quantized(weight, recipe):
        return weight.size * 2
    form = _weight_format(recipe)
    extra = _SHAPE_BYTES * max(1, weight.num_experts) if form.bits == 4 else 0
    return form.num_bytes((*weight.shape[:-2], *_sides(weight))) + extra


def _sides(weight: Weight) -> tuple[int, int]:
    """Return (out, in) of a matrix; experts that are one tensor are stored the other way round."""
    out, width = weight.shape[-2:]
    return (width, out) if weight.num_experts > 1 else (out, width)


def _weight_format(recipe: VllmRecipe) -> WeightFormat:
    if recipe.format in ("int4_awq", "int4_gptq"):
        zero_bits = 0 if recipe.is_symmetric else 4
        group = (1, recipe.weights_per_scale)
        return WeightFormat("int4", 4, "fp16", frozenset(), group, scale_bits=16, zero_bits=zero_bits)
    group = (_BLOCK, _BLOCK) if recipe.format == "fp8_block" else (1, 0)
    compute = WEIGHT_FORMATS[recipe.format].compute
    return WeightFormat(recipe.format, 8, compute, frozenset(), group, scale_bits=16)
