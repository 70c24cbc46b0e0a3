# SPDX-License-Identifier: Apache-2.0
"""The bytes and operations of a decode step of an OpenVINO model, from its files alone: IR and `config.json`.

In the IR each weight is a constant, and what uses it, behind the operations that unpack it, says what it is: a matrix
product reads and multiplies all of it, a look-up (`Gather`) one row for each token. A table of embeddings that is the
head's matrix, too, is used by both, and read.
"""

import math
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import msgspec

from serving.engines.seam.base import EngineCosts

_UNPACKING = frozenset({"Convert", "Multiply", "Subtract", "Reshape"})
_INT8_SCALE_BYTES = 8  # of the KV cache: a scale and a zero point, 32 bits each
_KV_BLOCK_TOKENS = 32
_KV_ELEMENT_BYTES = {"auto": 1.0, "int8": 1.0, "u8": 1.0, "u4": 0.5, "fp16": 2.0, "f16": 2.0, "bf16": 2.0, "f32": 4.0}


def openvino_costs(folder: Path, *, kv_precision: str) -> EngineCosts:
    """Return the costs of a step by a model's folder.

    None stands for what depends on more than the files: with experts, on which of them tokens meet.
    """
    config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, object])
    kv_bytes = _kv_bytes_per_token(config, kv_precision)
    if config.get("num_experts") or config.get("num_local_experts"):
        return EngineCosts(kv_bytes_per_token=kv_bytes)
    num_bytes, num_multiplied = _read_by_a_step(folder / "openvino_model.xml")
    return EngineCosts(weight_bytes=num_bytes, kv_bytes_per_token=kv_bytes, flops_per_token=2.0 * num_multiplied)


def kv_bytes_of_layer(*, num_kv_heads: int, head_dim: int, precision: str) -> float:
    """Return the bytes that one token takes in one layer of the CPU's KV cache; `auto` is int8 there.

    In int8 a head's keys have a scale and a zero point for each channel of a block of 32 tokens, its values for each
    token. Source: `cache_size_in_bytes` of OpenVINO GenAI 2026.4.1. In int4 the numbers are half as long.
    """
    size = _KV_ELEMENT_BYTES[precision]
    if size >= _KV_ELEMENT_BYTES["fp16"]:
        return num_kv_heads * head_dim * 2 * size
    keys = head_dim * (size + _INT8_SCALE_BYTES / _KV_BLOCK_TOKENS)
    return num_kv_heads * (keys + head_dim * size + _INT8_SCALE_BYTES)


def _kv_bytes_per_token(config: dict[str, object], precision: str) -> float | None:
    """Return the KV bytes of one token over all layers; None: the config does not tell its layers in the usual way.

    A config may tell them one by one, for example, or have latent attention.
    """
    layers, heads = _count(config, "num_hidden_layers"), _count(config, "num_attention_heads")
    num_kv_heads = _count(config, "num_key_value_heads", otherwise=heads)
    width = _count(config, "hidden_size")
    head_dim = _count(config, "head_dim", otherwise=width // heads if width and heads else None)
    if layers is None or num_kv_heads is None or head_dim is None or config.get("kv_lora_rank"):
        return None
    return layers * kv_bytes_of_layer(num_kv_heads=num_kv_heads, head_dim=head_dim, precision=precision)


def _count(config: dict[str, object], name: str, *, otherwise: int | None = None) -> int | None:
    """Return a count from the config; `otherwise` where the config does not have it."""
    value = config.get(name)
    if value is None:
        return otherwise
    return value if isinstance(value, int) else None


def _read_by_a_step(xml: Path) -> tuple[float, int]:
    """Return the bytes of all constants but embedding tables, and how many numbers multiply a token's vector."""
    graph = ET.parse(xml).getroot()
    kinds = {layer.attrib["id"]: layer.attrib["type"] for layer in graph.iterfind("layers/layer")}
    users: dict[str, list[str]] = defaultdict(list)
    for edge in graph.iterfind("edges/edge"):
        users[edge.attrib["from-layer"]].append(edge.attrib["to-layer"])

    def uses(layer: str) -> set[str]:
        found = set()
        for user in users[layer]:
            found |= uses(user) if kinds[user] in _UNPACKING else {kinds[user]}
        return found

    num_bytes: dict[str, int] = {}  # by place: two constants may be one
    num_multiplied: dict[str, int] = {}
    for layer in graph.iterfind("layers/layer[@type='Const']"):
        data = layer.find("data")
        if data is None or (used_by := uses(layer.attrib["id"])) == {"Gather"}:
            continue
        place = data.attrib["offset"]
        num_bytes[place] = int(data.attrib["size"])
        shape = [int(size) for size in data.get("shape", "").split(",") if size.strip()]
        # Scales and zero points end with 1; what is multiplied into activations on their way begins with it.
        if "MatMul" in used_by and len(shape) > 1 and 1 not in (shape[0], shape[-1]):
            num_multiplied[place] = math.prod(shape)
    return float(sum(num_bytes.values())), sum(num_multiplied.values())
