# SPDX-License-Identifier: Apache-2.0
"""The division of tensors over ranks, as data: pieces, and from them parameters and bytes of each rank.

The sizes and what cannot be divided: `build_engines.sharding.parallel_sizes`. The rules are TensorRT-LLM's and stand,
with their sources, in `docs/sharding.md`; `tests/oracles/sharded_reference.py` runs models on these pieces.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from build_engines.checkpoint.model_shape import (
    GroupedAttention,
    LatentAttention,
    LayerShape,
    LinearAttention,
    ModelShape,
)
from build_engines.checkpoint.weight_formats import KV_FORMATS, FormatPlan
from build_engines.checkpoint.weight_table import Role, Weight, layer_weights, outer_weights
from build_engines.sharding.parallel_sizes import EmbeddingSharding, ParallelSizes, RankPlace, check_sizes
from build_engines.sharding.tensor_pieces import Piece, layer_cuts, vocabulary_piece
from trireme.base.errors import SpecError


@dataclass(frozen=True)
class ShardPlan:
    """A model divided over ranks."""

    model: ModelShape
    sizes: ParallelSizes

    @cached_property
    def stages(self) -> tuple[range, ...]:
        """Return the layers of each pipeline stage."""
        return self.sizes.stages(self.model.num_layers)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """Yield every piece that a rank holds, in the order of the model.

        Raises:
            SpecError: there is no such rank.
        """
        place = self.sizes.place(rank)
        for index in self.stages[place.pp_rank]:
            layer = self.model.layers[index]
            for weight in layer_weights(self.model, index):
                cuts = layer_cuts(weight, layer, self.model, self.sizes, place)
                if cuts is not None:
                    yield Piece(weight, cuts)
        yield from self._outer_pieces(place)

    def _outer_pieces(self, place: RankPlace) -> Iterator[Piece]:
        """Yield the embedding on the first stage; the final norm and the head on the last."""
        is_first, is_last = place.pp_rank == 0, place.pp_rank == self.sizes.pp_size - 1
        for weight in outer_weights(self.model):
            if weight.role is Role.EMBEDDING:
                if is_first:
                    yield vocabulary_piece(weight, self.sizes, place, self.sizes.embedding)
                if is_last and self.model.is_tied and not self.sizes.shares_head(self.model):
                    yield vocabulary_piece(replace(weight, role=Role.HEAD), self.sizes, place, "vocab")
            elif is_last and weight.role is Role.HEAD:
                yield vocabulary_piece(weight, self.sizes, place, "vocab")
            elif is_last:
                yield Piece(weight)

    def num_parameters(self, rank: int) -> int:
        """Return the parameters that a rank holds, padding and copies included.

        Raises:
            SpecError: there is no such rank.
        """
        return sum(piece.size * times for piece, times in self._counted(rank))

    def num_bytes(self, rank: int, formats: FormatPlan) -> int:
        """Return the bytes of a rank's weights, scales of its pieces included.

        Each tensor of the checkpoint counts by itself; where TensorRT-LLM joins queries, keys and values into one
        matrix, one scale for a whole matrix is counted three times here (4 bytes each).

        Raises:
            SpecError: there is no such rank, or a group of the format would lie on two ranks.
        """
        total = 0
        for piece, times in self._counted(rank):
            _check_groups(piece, formats)
            total += formats.num_bytes_of(piece.weight, piece.shape) * times
        return total

    def bytes_per_rank(self, formats: FormatPlan) -> tuple[int, ...]:
        """Return the bytes of every rank's weights; all ranks of a stage hold equal amounts.

        Raises:
            SpecError: a group of the format would lie on two ranks.
        """
        of_stages = [self.num_bytes(stage * self.sizes.stage_size, formats) for stage in range(self.sizes.pp_size)]
        return tuple(of_stages[rank // self.sizes.stage_size] for rank in range(self.sizes.world_size))

    @property
    def kv_heads_per_rank(self) -> int:
        """Return the heads of keys and values in one rank's cache; 1 with latent attention, which is not divided."""
        attention = self.model.attention
        return self.sizes.kv_heads(attention.num_kv_heads) if isinstance(attention, GroupedAttention) else 1

    def kv_values_per_token(self, layer: int) -> int:
        """Return the numbers that one token leaves in one layer's cache on one rank of its stage."""
        match self.model.layers[layer].attention:
            case GroupedAttention() as attention:
                return 2 * self.sizes.kv_heads(attention.num_kv_heads) * attention.head_dim
            case LatentAttention() | LinearAttention() as attention:
                return attention.kv_values_per_token

    def kv_bytes_per_token(self, rank: int, kv_format: str) -> float:
        """Return the bytes of one token in the cache of one rank: all layers of its stage, windows not considered.

        With attention DP a rank keeps only the tokens of its own requests.

        Raises:
            SpecError: there is no such rank.
        """
        layers = self.stages[self.sizes.place(rank).pp_rank]
        return sum(self.kv_values_per_token(layer) for layer in layers) * KV_FORMATS[kv_format]

    def state_bytes_per_sequence(self, rank: int) -> int:
        """Return the bytes of one sequence's states on one rank: linear attention in all layers of its stage.

        Both parts of a state have the checkpoint's type, heads and channels divided by tensor parallelism.

        Raises:
            SpecError: there is no such rank.

        Source: TensorRT-LLM 1.2, `validate_and_set_mamba_ssm_cache_dtype` (auto) and `MambaCacheManager`.
        """
        layers = self.model.layers
        values = sum(
            attention.state_values // self.sizes.dense_tp_size
            for index in self.stages[self.sizes.place(rank).pp_rank]
            if isinstance(attention := layers[index].attention, LinearAttention)
        )
        return values * (4 if self.model.dtype == "float32" else 2)

    def _counted(self, rank: int) -> Iterator[tuple[Piece, int]]:
        """Yield what a rank holds, by kind of tensor, and how many of each."""
        place = self.sizes.place(rank)
        frame = replace(self.model, layers=())
        layers = [self.model.layers[index] for index in self.stages[place.pp_rank]]
        same = {id(layer): layer for layer in layers}  # most models have one layer many times, and to compare costs
        kinds = Counter[LayerShape]()
        for key, times in Counter(map(id, layers)).items():
            kinds[LayerShape(same[key].attention, same[key].mlp)] += times
        for layer, number in kinds.items():
            for piece, times in _counted_pieces(frame, layer, self.sizes):
                yield piece, times * number
        for piece in self._outer_pieces(place):
            yield piece, 1


def plan_shards(
    model: ModelShape, *, tp_size: int = 1, pp_size: int = 1, ep_size: int = 1, cp_size: int = 1,
    is_attention_dp: bool = False, embedding: EmbeddingSharding = "vocab",
) -> ShardPlan:  # fmt: skip
    """Divide a model over ranks; the fields of `ParallelSizes` say what the sizes mean.

    Raises:
        SpecError: something does not divide; the message names the number, the size and the sizes that would do.
    """
    sizes = ParallelSizes(tp_size, pp_size, ep_size, cp_size, is_attention_dp, embedding)
    check_sizes(model, sizes)
    return ShardPlan(model, sizes)


def _check_groups(piece: Piece, formats: FormatPlan) -> None:
    """Refuse a piece that would put a group of weights with one scale on two ranks."""
    weight_format = formats.of(piece.weight)
    if weight_format.is_padded or max(weight_format.group) <= 1 or len(piece.weight.shape) == 1:
        return
    out_axis, in_axis = len(piece.weight.shape) - 2, len(piece.weight.shape) - 1
    if piece.weight.num_experts > 1:  # [experts, in, out]
        out_axis, in_axis = in_axis, out_axis
    for axis, group in zip((out_axis, in_axis), weight_format.group, strict=True):
        length = piece.weight.shape[axis]
        edges = [edge for held in piece.ranges(axis) for edge in held if edge != length]
        if group > 1 and any(edge % group for edge in edges):
            raise SpecError(
                f"{weight_format.name} has one scale for {group} weights, but a rank's part of {piece.weight.role} "
                f"{list(piece.weight.shape)} is {list(piece.shape)}, which cuts a group in two; take a smaller "
                f"tp_size, or expert parallelism where there are experts, or another format",
                field="tp_size",
                value=weight_format.name,
            )


# Counting: layers of one kind have the same pieces, all ranks of a stage hold as much, and a plan is asked for hundreds
# of candidates. So pieces are counted by kind of tensor, for the first rank, and kept.


@lru_cache(maxsize=64)
def _tensor_kinds(frame: ModelShape, layer: LayerShape) -> tuple[tuple[Weight, int], ...]:
    """Return a layer's tensors without their names, and how many there are of each.

    The first expert's tensors stand for those of all experts.
    """
    weights = layer_weights(replace(frame, layers=(layer,)), 0)
    return tuple(Counter(_nameless(weight) for weight in weights).items())


@lru_cache(maxsize=4096)
def _counted_pieces(frame: ModelShape, layer: LayerShape, sizes: ParallelSizes) -> tuple[tuple[Piece, int], ...]:
    """Return what the first rank of a stage holds of one layer, by kind of tensor, and how many of each."""
    place = sizes.place(0)
    counted = []
    for weight, times in _tensor_kinds(frame, layer):
        cuts = layer_cuts(weight, layer, frame, sizes, place)
        assert cuts is not None  # the first expert is the first rank's
        counted.append((Piece(weight, cuts), times if weight.expert is None else times // sizes.ep_size))
    return tuple(counted)


def _nameless(weight: Weight) -> Weight:
    return replace(weight, name="", layer=None, expert=None if weight.expert is None else 0)
