# SPDX-License-Identifier: Apache-2.0
"""In how many parts a model runs (TP, PP, EP, CP, attention DP), which rank is which part, and what cannot be divided.

The rules are TensorRT-LLM's, so that a plan made here is what its ranks load (`tensorrt_llm/mapping.py`, class
`Mapping`); `docs/sharding.md` lists them. What each rank holds of which tensor: `build_engines.sharding`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal, NamedTuple

from build_engines.model_shape import DenseMlp, ExpertMlp, GroupedAttention, ModelShape
from ensemble_configs.errors import SpecError

# TensorRT-LLM's embedding_parallel_mode NONE, SHARDING_ALONG_VOCAB, SHARDING_ALONG_HIDDEN; of convert_checkpoint.py
# `--use_parallel_embedding` absent, and with `--embedding_sharding_dim` 0 and 1. The LLM API's default is vocab.
EmbeddingSharding = Literal["none", "vocab", "hidden"]


@dataclass(frozen=True)
class RankPlace:
    """Where a rank stands in each way of dividing the work."""

    rank: int
    pp_rank: int
    cp_rank: int
    tp_rank: int
    moe_tp_rank: int
    moe_ep_rank: int


@dataclass(frozen=True)
class ParallelSizes:
    """How many ranks divide what.

    Attributes:
        tp_size: ranks that share each layer.
        pp_size: stages, each with some of the layers.
        ep_size: of the `tp_size` ranks, how many groups divide the experts among them; within a group each expert's
            matrices are split over ``tp_size / ep_size`` ranks.
        cp_size: ranks that share a sequence, all with the same weights.
        is_attention_dp: each of the `tp_size` ranks does attention, dense networks and shared experts for its own
            requests, with whole weights; routed experts stay divided.
        embedding: along which side the embedding is split over the `tp_size` ranks.
    """

    tp_size: int = 1
    pp_size: int = 1
    ep_size: int = 1
    cp_size: int = 1
    is_attention_dp: bool = False
    embedding: EmbeddingSharding = "vocab"

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp_size * self.cp_size

    @property
    def moe_tp_size(self) -> int:
        """Ranks that share the matrices of one routed expert."""
        return self.tp_size // self.ep_size

    @property
    def dense_tp_size(self) -> int:
        """Ranks that share attention, dense networks, shared experts and head."""
        return 1 if self.is_attention_dp else self.tp_size

    def place(self, rank: int) -> RankPlace:
        """Where a rank stands: tp_rank counts fastest, then cp_rank, then pp_rank; of tp_rank, moe_ep_rank.

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
        """The layers of each stage, in order; what does not divide goes to the first stages, one layer each.

        Source: `Mapping.pp_layers`, which is `torch.tensor_split`.
        """
        each, rest = divmod(num_layers, self.pp_size)
        starts = [stage * each + min(stage, rest) for stage in range(self.pp_size + 1)]
        return tuple(range(start, end) for start, end in pairwise(starts))

    def padded_vocab_size(self, vocab_size: int) -> int:
        """With what it takes to divide it: the next multiple of `tp_size`, rows of zeros.

        Source: `pad_vocab_size` in `tensorrt_llm/_utils.py`; for the PyTorch back end, `LMHead` in
        `_torch/modules/embedding.py`. Neither rounds to 64 as other servers do.
        """
        return -(-vocab_size // self.dense_tp_size) * self.dense_tp_size

    def kv_heads(self, num_kv_heads: int) -> int:
        """KV heads of one rank: at least one, so that with more ranks than heads several have the same.

        Context parallelism divides them further (Ulysses: `Mapping` counts attention as tp_size * cp_size).
        """
        return max(1, num_kv_heads // (self.dense_tp_size * self.cp_size))

    def shares_head(self, model: ModelShape) -> bool:
        """Whether a tied head needs no memory of its own.

        Source: `check_share_embedding` in `tensorrt_llm/models/model_weights_loader.py`: not with more than one stage
        or context rank, and with tensor parallelism only where the embedding is split along the vocabulary.
        """
        if not model.is_tied or self.pp_size > 1 or self.cp_size > 1:
            return False
        return self.dense_tp_size == 1 or self.embedding == "vocab"


def check_sizes(model: ModelShape, sizes: ParallelSizes) -> None:
    """Refuse sizes into which the model cannot be divided.

    Raises:
        SpecError: it names the number, the size, and the sizes that would do.
    """
    for name in ("tp_size", "pp_size", "ep_size", "cp_size"):
        size = getattr(sizes, name)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpecError(f"{name} must be a whole number, at least 1; got {size!r}", field=name, value=size)
    if sizes.pp_size > model.num_layers:
        raise SpecError(
            f"pp_size ({sizes.pp_size}) is more than the model's {model.num_layers} layers; take at most "
            f"{model.num_layers}",
            field="pp_size",
            value=sizes.pp_size,
        )
    _check_experts(model, sizes)
    for division in _divisions(model, sizes):
        if division.number % division.size:
            raise SpecError(
                f"{division.what} ({division.number}) is not divisible by {division.size_name} ({division.size}); take "
                f"one of {_listing(_divisors(division.number))}",
                field=division.size_name,
                value=division.size,
            )
    for num_kv_heads, ranks in product(_kv_heads(model), (sizes.dense_tp_size, sizes.dense_tp_size * sizes.cp_size)):
        if ranks % num_kv_heads and num_kv_heads % ranks:
            fitting = [size for size in range(1, 2 * ranks) if size % num_kv_heads == 0 or num_kv_heads % size == 0]
            raise SpecError(
                f"num_key_value_heads ({num_kv_heads}) and {_attention_ranks(sizes)} ({ranks}): one must divide the "
                f"other; take one of {_listing(fitting)}",
                field="tp_size",
                value=sizes.tp_size,
            )


def _check_experts(model: ModelShape, sizes: ParallelSizes) -> None:
    if sizes.ep_size == 1:
        return
    if not model.is_moe:
        raise SpecError(
            f"ep_size is {sizes.ep_size}, but {model.architecture} has no experts; leave it at 1",
            field="ep_size",
            value=sizes.ep_size,
        )
    if sizes.tp_size % sizes.ep_size:
        raise SpecError(
            f"ep_size ({sizes.ep_size}) must divide tp_size ({sizes.tp_size}), whose ranks share the experts; take one "
            f"of {_listing(_divisors(sizes.tp_size))}",
            field="ep_size",
            value=sizes.ep_size,
        )
    if sizes.cp_size > 1:
        raise SpecError(
            "TensorRT-LLM does not run expert parallelism and context parallelism together; set ep_size or cp_size "
            "to 1",
            field="ep_size",
            value=sizes.ep_size,
        )


class _Division(NamedTuple):
    """What must be a whole number."""

    what: str
    number: int
    size_name: str
    size: int


def _divisions(model: ModelShape, sizes: ParallelSizes) -> Iterator[_Division]:
    tp_size = sizes.dense_tp_size
    if sizes.embedding == "hidden":
        yield _Division("hidden_size, along which the embedding is split,", model.hidden_size, "tp_size", tp_size)
    for attention, mlp in dict.fromkeys((layer.attention, layer.mlp) for layer in model.layers):
        yield _Division(
            "num_attention_heads", attention.num_heads, _attention_ranks(sizes), sizes.dense_tp_size * sizes.cp_size
        )
        match mlp:
            case DenseMlp():
                yield _Division("intermediate_size", mlp.intermediate_size, "tp_size", tp_size)
            case ExpertMlp():
                yield _Division("the number of experts", mlp.num_experts, "ep_size", sizes.ep_size)
                yield _Division(
                    "the experts' intermediate_size", mlp.intermediate_size, "tp_size / ep_size", sizes.moe_tp_size
                )
                yield _Division(
                    "the shared experts' intermediate_size", mlp.shared_intermediate_size, "tp_size", tp_size
                )


def _attention_ranks(sizes: ParallelSizes) -> str:
    return "tp_size" if sizes.cp_size == 1 else "tp_size * cp_size"


def _kv_heads(model: ModelShape) -> set[int]:
    return {layer.attention.num_kv_heads for layer in model.layers if isinstance(layer.attention, GroupedAttention)}


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _listing(sizes: list[int]) -> str:
    """The first of them; a size above 64 helps nobody."""
    return ", ".join(str(size) for size in sizes if size <= 64)
