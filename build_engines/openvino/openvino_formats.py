# SPDX-License-Identifier: Apache-2.0
"""The formats of an `openvino` recipe's weights and KV cache, in bytes, before anything is built.

nncf keeps scales in fp16, and zero points in as many bits as the weights. A tied embedding is stored once. Norms keep
32 bits, biases 16.
"""

from dataclasses import dataclass

from build_engines.checkpoint.model_shape import GroupedAttention, LinearAttention, ModelShape
from build_engines.checkpoint.weight_formats import WEIGHT_FORMATS, WeightFormat
from build_engines.checkpoint.weight_table import LINEAR_ROLES, Role, Weight, weights_of
from build_engines.recipes.recipe import OpenVinoRecipe
from build_engines.recipes.recipe_parts import DraftModelSpec
from serving.engines.openvino.openvino_costs import kv_bytes_of_layer
from trireme.base.errors import SpecError

GROUP_SIZES = (32, 64, 128)  # those that the CPU has kernels for
_NORM_BYTES = 4


@dataclass(frozen=True)
class IrFormats:
    """The recipe's formats with every `auto` resolved; each is fp16, int8 or int4."""

    linear: str
    embedding: str
    head: str


def ir_formats(model: ModelShape, recipe: OpenVinoRecipe) -> IrFormats:
    """Return the format of each part; `auto` is int8 for the embedding and the head of a quantized model.

    Raises:
        SpecError: a tied head in another format than its embedding, or a group size that there are no kernels for.
    """
    auto = "fp16" if recipe.format == "fp16" else "int8"
    named = [form for form in (recipe.embedding_format, recipe.head_format) if form != "auto"]
    if model.is_tied and len(set(named)) > 1:
        raise SpecError(
            f"recipe {recipe.name}: the head is the embedding, so head_format ({recipe.head_format}) must be "
            f"embedding_format ({recipe.embedding_format}); name one of them",
            field="head_format",
            value=recipe.head_format,
        )
    if recipe.group_size is not None and recipe.group_size not in GROUP_SIZES:
        raise SpecError(
            f"recipe {recipe.name}: group_size must be one of {', '.join(map(str, GROUP_SIZES))}, or left out for one "
            f"scale a row; got {recipe.group_size}",
            field="group_size",
            value=recipe.group_size,
        )
    if model.is_tied and named:
        return IrFormats(recipe.format, named[0], named[0])
    embedding, head = (auto if form == "auto" else form for form in (recipe.embedding_format, recipe.head_format))
    return IrFormats(recipe.format, embedding, head)


def group_of(width: int, group_size: int | None) -> int | None:
    """Return how many weights of a row share a scale in int4; 0: the whole row; None: the layer gets int8.

    It is the recipe's size where that divides the row, else the largest power of two that does, down to 32. No group
    fits where it is None.
    """
    if group_size is None:
        return 0
    if width % group_size == 0:
        return group_size
    power = width & -width
    return power if power >= GROUP_SIZES[0] else None


def weight_format(form: str, width: int, recipe: OpenVinoRecipe) -> WeightFormat:
    """Return the storage format of a matrix with rows of `width` weights."""
    if form == "fp16":
        return WEIGHT_FORMATS["bf16"]
    group = group_of(width, recipe.group_size) if form == "int4" else 0
    bits = 8 if form == "int8" or group is None else 4
    zero_bits = 0 if recipe.is_symmetric else bits
    return WeightFormat(form, bits, "int8", frozenset(), (1, group or 0), scale_bits=16, zero_bits=zero_bits)


def openvino_bytes(model: ModelShape, recipe: OpenVinoRecipe) -> int:
    """Return the bytes of `openvino_model.bin`, up to some hundred of constants that are no weights.

    Raises:
        SpecError: a tied head in another format than its embedding, or a group size that there are no kernels for.
    """
    formats = ir_formats(model, recipe)
    total = 0.0
    for weight in weights_of(model):
        if _is_linear(weight):
            total += _linear_bytes(weight, formats.linear, recipe)
        elif weight.role in (Role.EMBEDDING, Role.HEAD) and not weight.is_bias:
            form = formats.embedding if weight.role is Role.EMBEDDING else formats.head
            total += weight_format(form, weight.shape[-1], recipe).num_bytes(weight.shape)
        else:
            total += weight.size * (2 if weight.is_bias else _NORM_BYTES)
    return round(total)


def linear_bytes(model: ModelShape, recipe: OpenVinoRecipe) -> int:
    """Return the bytes of the matrices in the layers alone."""
    form = ir_formats(model, recipe).linear
    return round(sum(_linear_bytes(weight, form, recipe) for weight in weights_of(model) if _is_linear(weight)))


def _is_linear(weight: Weight) -> bool:
    # OpenVINO sees one more matrix product in a router, and quantizes it with the others.
    return (weight.role in LINEAR_ROLES or weight.role is Role.ROUTER) and not weight.is_bias


def _linear_bytes(weight: Weight, form: str, recipe: OpenVinoRecipe) -> float:
    *outer, out, width = weight.shape
    if weight.num_experts > 1 and len(outer) == 1:  # stored the other way round: [experts, in, out]
        out, width = width, out
    shape = (*outer, out, width)
    primary = weight_format(form, width, recipe).num_bytes(shape)
    if form != "int4" or recipe.ratio == 1:
        return primary
    return recipe.ratio * primary + (1 - recipe.ratio) * weight_format("int8", width, recipe).num_bytes(shape)


def kv_bytes_per_token(model: ModelShape, recipe: OpenVinoRecipe) -> int:
    """Return the bytes that one token takes in the CPU's KV cache, for a recipe."""
    return cpu_kv_bytes_per_token(model, recipe.kv_format)


def cpu_kv_bytes_per_token(model: ModelShape, precision: str) -> int:
    """Return the bytes that one token takes in the CPU's KV cache, for a precision.

    Raises:
        SpecError: a latent cache (MLA) or states of linear attention, which OpenVINO does not page.
    """
    total = 0.0
    for layer in model.layers:
        attention = layer.attention
        if not isinstance(attention, GroupedAttention):
            kind = "linear" if isinstance(attention, LinearAttention) else "latent"
            raise SpecError(
                f"{model.architecture} has {kind} attention, which OpenVINO cannot page; take backend pytorch",
                field="backend",
            )
        total += kv_bytes_of_layer(
            num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim, precision=precision
        )
    return round(total)


def draft_recipe(recipe: OpenVinoRecipe, draft: DraftModelSpec) -> OpenVinoRecipe:
    """Return a recipe with the draft's weights in its format, all else as the large model's; nothing is calibrated."""
    is_int4 = draft.format == "int4"
    changes: dict[str, object] = {
        "format": draft.format,
        "embedding_format": "auto",
        "head_format": "auto",
        "group_size": (recipe.group_size or 128) if is_int4 else None,
        "ratio": 1.0,
        "is_awq": False,
        "is_data_aware": False,
        "calibration": None,
        "draft": None,
    }
    return recipe.model_copy(update=changes)
