# SPDX-License-Identifier: Apache-2.0
"""The sizes of parallelism (TP, PP, EP, CP, attention DP): which rank is which part, and what cannot be divided.

The rules are TensorRT-LLM's, so that a plan made here is what its ranks load (`tensorrt_llm/mapping.py`, class
`Mapping`); `docs/sharding.md` lists them. What each rank holds of which tensor: `build_engines.sharding.shard_plan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, Literal

from build_engines.checkpoint.model_shape import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    ModelShape,
)
from trireme.base.errors import SpecError

# TensorRT-LLM's embedding_parallel_mode NONE, SHARDING_ALONG_VOCAB, SHARDING_ALONG_HIDDEN; of convert_checkpoint.py
# `--use_parallel_embedding` absent, and with `--embedding_sharding_dim` 0 and 1. The LLM API's default is vocab.
EmbeddingSharding = Literal["none", "vocab", "hidden"]


@dataclass(frozen=True)
class RankPlace:
    """The place of a rank in each way of dividing the work."""

    rank: int
    pp_rank: int
    cp_rank: int
    tp_rank: int
    moe_tp_rank: int
    moe_ep_rank: int


@dataclass(frozen=True)
class ParallelSizes:
    """The number of ranks in each way of dividing the work.

    Attributes:
        tp_size: ranks that share each layer.
        pp_size: stages, each with some of the layers.
        ep_size: groups of the `tp_size` ranks that divide the experts among them; within a group each expert's
            matrices are split over ``tp_size / ep_size`` ranks.
        cp_size: ranks that share a sequence, all with the same weights.
        is_attention_dp: each of the `tp_size` ranks does attention, dense networks and shared experts for its own
            requests, with whole weights; routed experts stay divided.
        embedding: the side along which the embedding is split over the `tp_size` ranks.
    """

    tp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    cp_size: int = 1
    is_attention_dp: bool = False
    embedding: EmbeddingSharding = "vocab"

    def __str__(self) -> str:
        """Return the sizes in short, such as tp4 pp2; what is 1 is left out, but for tp1."""
        parts = [f"tp{self.tp_size}"]
        parts += [f"{name}{size}" for name, size in (("pp", self.pp_size), ("cp", self.cp_size)) if size > 1]
        parts += [f"ep{self.ep_size}"] if self.ep_size > 1 else []
        return " ".join([*parts, "attention-dp"] if self.is_attention_dp else parts)

    @property
    def world_size(self) -> int:
        """Return the number of all ranks."""
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def stage_size(self) -> int:
        """Return the number of ranks of one pipeline stage."""
        return self.tp_size * self.cp_size

    @property
    def moe_tp_size(self) -> int:
        """Return the number of ranks that share the matrices of one routed expert."""
        return max(1, self.tp_size // self.ep_size)

    @property
    def dense_tp_size(self) -> int:
        """Return the number of ranks that share attention, dense networks, shared experts and head."""
        return 1 if self.is_attention_dp else self.tp_size

    def place(self, rank: int) -> RankPlace:
        """Return the place of a rank.

        tp_rank counts fastest, then cp_rank, then pp_rank; within tp_rank, moe_ep_rank counts fastest.

        Raises:
            SpecError: there is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise SpecError(
                f"rank {rank} does not exist; with a world size of {self.world_size} there are 0 to "
                f"{self.world_size - 1}",
                field="rank",
                value=rank,
            )
        tp_rank = rank % self.tp_size
        return RankPlace(
            rank=rank,
            pp_rank=rank // self.stage_size,
            cp_rank=rank % self.stage_size // self.tp_size,
            tp_rank=tp_rank,
            moe_tp_rank=tp_rank // self.ep_size,
            moe_ep_rank=tp_rank % self.ep_size,
        )

    def stages(self, num_layers: int) -> tuple[range, ...]:
        """Return the layers of each stage, in order.

        What does not divide goes to the first stages, one layer each.

        Source: `Mapping.pp_layers`, which is `torch.tensor_split`.
        """
        each, rest = divmod(num_layers, self.pp_size)
        starts = [stage * each + min(stage, rest) for stage in range(self.pp_size + 1)]
        return tuple(range(start, end) for start, end in pairwise(starts))

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Return the vocabulary size padded with rows of zeros to the next multiple of `tp_size`.

        Source: `pad_vocab_size` in `tensorrt_llm/_utils.py`; for the PyTorch back end, `LMHead` in
        `_torch/modules/embedding.py`. Neither rounds to 64 as other servers do.
        """
        return -(-vocab_size // self.dense_tp_size) * self.dense_tp_size

    def kv_heads(self, num_kv_heads: int) -> int:
        """Return the KV heads of one rank: at least one, so with more ranks than heads several have the same.

        Context parallelism divides them further (Ulysses: `Mapping` counts attention as tp_size * cp_size).
        """
        return max(1, num_kv_heads // (self.dense_tp_size * self.cp_size))

    def shares_head(self, model: ModelShape) -> bool:
        """Return True if a tied head needs no memory of its own.

        Source: `check_share_embedding` in `tensorrt_llm/models/model_weights_loader.py`: not with more than one stage
        or context rank, and with tensor parallelism only where the embedding is split along the vocabulary.
        """
        if not model.is_tied or self.pp_size > 1 or self.cp_size > 1:
            return False
        return self.dense_tp_size == 1 or self.embedding == "vocab"


def can_divide(model: ModelShape, sizes: ParallelSizes) -> bool:
    """Return True if `check_sizes` would accept the sizes, each of which is at least 1."""
    return next(_problems(model, sizes), None) is None


def check_sizes(model: ModelShape, sizes: ParallelSizes) -> None:
    """Refuse sizes into which the model cannot be divided.

    Raises:
        SpecError: the message names the number, the size, and sizes that would do with the others as they are.
    """
    for name in ("tp_size", "pp_size", "ep_size", "cp_size"):
        size = getattr(sizes, name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpecError(f"{name} must be a whole number, at least 1; got {size!r}", field=name, value=size)
    problem = next(_problems(model, sizes), None)
    if problem is not None:
        name, what = problem
        changes: list[dict[str, Any]] = [{name: size} for size in range(1, _MOST_RANKS + 1)]
        fitting = [change[name] for change in changes if can_divide(model, replace(sizes, **change))]
        way_out = f"{name} may be {_listing(fitting)}" if fitting else f"no {name} up to {_MOST_RANKS} would do"
        raise SpecError(f"{what}; {way_out}", field=name, value=getattr(sizes, name))


_MOST_RANKS = 64  # as far as other sizes are tried


def _listing(sizes: list[int]) -> str:
    is_run = len(sizes) > 2 and sizes[-1] - sizes[0] == len(sizes) - 1
    return f"{sizes[0]} to {sizes[-1]}" if is_run else ", ".join(map(str, sizes))


def _problems(model: ModelShape, sizes: ParallelSizes) -> Iterator[tuple[str, str]]:
    """Yield the size to change and the problem, for each problem."""
    if sizes.pp_size > model.num_layers:
        yield "pp_size", f"pp_size ({sizes.pp_size}) is more than the model's {model.num_layers} layers"
    if sizes.ep_size > 1:
        if not model.is_moe:
            yield "ep_size", f"ep_size is {sizes.ep_size}, but {model.architecture} has no experts"
        if sizes.tp_size % sizes.ep_size:
            both = f"ep_size ({sizes.ep_size}) does not divide tp_size ({sizes.tp_size})"
            yield "ep_size", f"{both}, whose ranks share the experts"
        if sizes.cp_size > 1:
            yield "ep_size", "TensorRT-LLM does not run expert parallelism and context parallelism together"
    if sizes.cp_size > 1 and model.linear_layers:
        states = "but its linear attention keeps one state for all tokens of a sequence"
        yield "cp_size", f"cp_size is {sizes.cp_size}, {states}, which TensorRT-LLM does not divide by context"
    for what, number, divisor, size, field in _divisions(model, sizes):
        if number % size:
            yield field, f"{what} ({number}) is not divisible by {divisor} ({size})"
    for num_kv_heads, ranks in product(_kv_heads(model), (sizes.dense_tp_size, sizes.dense_tp_size * sizes.cp_size)):
        if ranks % num_kv_heads and num_kv_heads % ranks:
            both = f"num_key_value_heads ({num_kv_heads}) and {_attention_ranks(sizes)} ({ranks})"
            yield "tp_size", f"of {both} neither divides the other"


def _divisions(model: ModelShape, sizes: ParallelSizes) -> Iterator[tuple[str, int, str, int, str]]:
    """Yield every number of the model that must divide, what it is divided by, and the size to change."""
    tp = ("tp_size", sizes.dense_tp_size, "tp_size")
    if sizes.embedding == "hidden":
        yield "hidden_size, along which the embedding is split,", model.hidden_size, *tp
    for attention, mlp in model.layer_kinds:
        ranks = sizes.dense_tp_size * sizes.cp_size
        match attention:
            case GroupedAttention() | LatentAttention():
                yield "num_attention_heads", attention.num_heads, _attention_ranks(sizes), ranks, "tp_size"
            case LinearAttention():  # as many value heads belong to each key head
                yield "linear_num_key_heads", attention.num_key_heads, *tp
        match mlp:
            case DenseMlp():
                yield "intermediate_size", mlp.intermediate_size, *tp
            case ExpertMlp():
                yield "the number of experts", mlp.num_experts, "ep_size", sizes.ep_size, "ep_size"
                size = mlp.intermediate_size
                yield "the experts' intermediate_size", size, "tp_size / ep_size", sizes.moe_tp_size, "tp_size"
                yield "the shared experts' intermediate_size", mlp.shared_intermediate_size, *tp


def _attention_ranks(sizes: ParallelSizes) -> str:
    return "tp_size" if sizes.cp_size == 1 else "tp_size * cp_size"


def _kv_heads(model: ModelShape) -> set[int]:
    return {attention.num_kv_heads for attention, _ in model.layer_kinds if isinstance(attention, GroupedAttention)}
