# SPDX-License-Identifier: Apache-2.0
"""The division of each kind of tensor: what one rank takes along which axis.

The rules are TensorRT-LLM's; `docs/sharding.md` lists them with their sources. Which tensors a rank has at all:
`build_engines.sharding.shard_plan`.
"""

import math
from dataclasses import dataclass

from build_engines.checkpoint.model_shape import ExpertMlp, GroupedAttention, LayerShape, LinearAttention, ModelShape
from build_engines.checkpoint.weight_table import FUSED_BY_KV_HEAD, GATES_BEFORE_UPS, Role, Weight
from build_engines.sharding.parallel_sizes import EmbeddingSharding, ParallelSizes, RankPlace

Range = tuple[int, int]  # half-open


@dataclass(frozen=True)
class Cut:
    """A cut along one axis of a tensor: ranges, laid one behind the other."""

    axis: int
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """Return the length of all ranges together."""
        return sum(end - start for start, end in self.ranges)


@dataclass(frozen=True)
class Piece:
    """A rank's part of one tensor.

    Attributes:
        weight: the tensor in the checkpoint. A tied head is the embedding's tensor with the role of a head.
        cuts: one for each axis that is divided; an axis without a cut is held whole.
        padding: rows of zeros behind the last one (vocabulary).
    """

    weight: Weight
    cuts: tuple[Cut, ...] = ()
    padding: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what the rank holds, padding included."""
        shape = list(self.weight.shape)
        for cut in self.cuts:
            shape[cut.axis] = cut.size
        shape[0] += self.padding
        return tuple(shape)

    @property
    def size(self) -> int:
        """Return how many numbers the rank holds, padding included."""
        return math.prod(self.shape)

    def ranges(self, axis: int) -> tuple[Range, ...]:
        """Return the ranges that are held along an axis."""
        for cut in self.cuts:
            if cut.axis == axis:
                return cut.ranges
        return ((0, self.weight.shape[axis]),)


def layer_cuts(
    weight: Weight, layer: LayerShape, model: ModelShape, sizes: ParallelSizes, place: RankPlace
) -> tuple[Cut, ...] | None:
    """Return the cuts of one tensor for a rank of the layer's stage.

    None: the rank holds nothing of it (an expert of other ranks).
    """
    if weight.expert is not None or weight.num_experts > 1:
        return _expert_cuts(weight, layer, model, sizes, place)
    parts, part = sizes.dense_tp_size, place.tp_rank % sizes.dense_tp_size
    axis, length = 0, weight.shape[0]
    match weight.role:
        case Role.QUERY | Role.LATENT_QUERY | Role.LATENT_KV | Role.SINK | Role.GATE | Role.UP:
            ranges = [_even(length, parts, part)]
        case Role.LINEAR_IN | Role.LINEAR_GATES | Role.DECAY:  # key head by key head, with its value heads
            ranges = [_even(length, parts, part)]
        case Role.CONV:
            ranges = _conv_rows(layer, parts, part)
        case Role.KEY | Role.VALUE:
            ranges = [_kv_rows(_grouped(layer), parts, part)]
        case Role.QKV:
            is_by_head = model.architecture in FUSED_BY_KV_HEAD
            ranges = (_rows_by_kv_head if is_by_head else _rows_by_section)(_grouped(layer), parts, part)
        case Role.GATE_UP:
            ranges = _of_both_halves(length, parts, part)
        case Role.OUTPUT | Role.DOWN if not weight.is_bias:
            axis, ranges = 1, [_even(weight.shape[1], parts, part)]
        case _:  # norms, routers, latent down-projections, and biases that are added once, after the sum over ranks
            return ()
    return _cuts(weight, axis, ranges)


def _expert_cuts(
    weight: Weight, layer: LayerShape, model: ModelShape, sizes: ParallelSizes, place: RankPlace
) -> tuple[Cut, ...] | None:
    """Return the cuts of routed experts: whole experts by `moe_ep_rank`, their matrices by `moe_tp_rank`."""
    assert isinstance(layer.mlp, ExpertMlp)
    experts = _even(layer.mlp.num_experts, sizes.ep_size, place.moe_ep_rank)
    is_joined = weight.num_experts > 1  # [experts, in, out] or [experts, out]
    if not is_joined:
        assert weight.expert is not None
        if not experts[0] <= weight.expert < experts[1]:
            return None
    cuts = _cuts(weight, 0, [experts]) if is_joined else ()
    if weight.role is Role.DOWN and weight.is_bias:
        return cuts
    axis = {Role.GATE: 0, Role.UP: 0, Role.GATE_UP: len(weight.shape) - 1, Role.DOWN: 1}[weight.role]
    # Where gates and ups of joined experts alternate, an even range holds pairs.
    is_by_section = weight.role is Role.GATE_UP and model.architecture in GATES_BEFORE_UPS
    ranges = _of_both_halves if is_by_section else _of_whole
    return cuts + _cuts(weight, axis, ranges(weight.shape[axis], sizes.moe_tp_size, place.moe_tp_rank))


def _kv_rows(attention: GroupedAttention, parts: int, part: int) -> Range:
    """Return the rows of keys (or values): whole heads; with more ranks than heads, neighbours hold the same."""
    heads = attention.num_kv_heads
    start, end = _even(heads, parts, part) if heads >= parts else _even(heads, heads, part * heads // parts)
    return start * attention.head_dim, end * attention.head_dim


def _rows_by_section(attention: GroupedAttention, parts: int, part: int) -> list[Range]:
    """Return the rows of ``[all queries, all keys, all values]``."""
    start, end = _kv_rows(attention, parts, part)
    keys = attention.num_heads * attention.head_dim
    values = keys + attention.num_kv_heads * attention.head_dim
    return [_even(keys, parts, part), (keys + start, keys + end), (values + start, values + end)]


def _rows_by_kv_head(attention: GroupedAttention, parts: int, part: int) -> list[Range]:
    """Return the rows of ``[queries of the first KV head, its key, its value, queries of the second, ...]``."""
    size = attention.head_dim
    queries = attention.num_heads // attention.num_kv_heads
    width = (queries + 2) * size  # of a KV head with all that belongs to it
    first, last = _even(attention.num_heads, parts, part)
    start, end = (row // size for row in _kv_rows(attention, parts, part))
    rows = []
    for head in range(start, end):
        lowest, highest = max(first, head * queries), min(last, (head + 1) * queries)
        base = head * width - head * queries * size
        rows += [(base + lowest * size, base + highest * size), ((head + 1) * width - 2 * size, (head + 1) * width)]
    return rows


def _conv_rows(layer: LayerShape, parts: int, part: int) -> list[Range]:
    """Return the channels of ``[all queries, all keys, all values]``."""
    attention = layer.attention
    assert isinstance(attention, LinearAttention)
    rows, offset = [], 0
    for size in (attention.key_size, attention.key_size, attention.value_size):
        start, end = _even(size, parts, part)
        rows.append((offset + start, offset + end))
        offset += size
    return rows


def vocabulary_piece(weight: Weight, sizes: ParallelSizes, place: RankPlace, along: EmbeddingSharding) -> Piece:
    """Return what a rank of the first stage holds of the embedding, or a rank of the last stage of the head."""
    parts, part = sizes.dense_tp_size, place.tp_rank % sizes.dense_tp_size
    if along == "none" or parts == 1:
        return Piece(weight)
    if along == "hidden":
        return Piece(weight, _cuts(weight, 1, [_even(weight.shape[1], parts, part)]))
    rows = weight.shape[0]
    start, end = (min(row, rows) for row in _even(sizes.padded_vocab_size(rows), parts, part))
    width = sizes.padded_vocab_size(rows) // parts
    return Piece(weight, (Cut(0, ((start, end),)),), padding=width - (end - start))


def _even(length: int, parts: int, part: int) -> Range:
    """Return one of equal parts; `check_sizes` saw to it that they are whole."""
    size = length // parts
    return part * size, (part + 1) * size


def _of_whole(length: int, parts: int, part: int) -> list[Range]:
    return [_even(length, parts, part)]


def _of_both_halves(length: int, parts: int, part: int) -> list[Range]:
    """Return one of equal parts of the first half, and the same of the second."""
    start, end = _even(length // 2, parts, part)
    return [(start, end), (length // 2 + start, length // 2 + end)]


def _cuts(weight: Weight, axis: int, ranges: list[Range]) -> tuple[Cut, ...]:
    """Return a cut with neighbouring ranges joined; none where the whole axis is taken."""
    joined: list[Range] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return () if joined == [(0, weight.shape[axis])] else (Cut(axis, tuple(joined)),)


def _grouped(layer: LayerShape) -> GroupedAttention:
    assert isinstance(layer.attention, GroupedAttention)
    return layer.attention
