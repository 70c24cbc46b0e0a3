# SPDX-License-Identifier: Apache-2.0
"""The contents of a GPU's memory: weights, workspace, and what is left for the KV cache."""

from dataclasses import dataclass

from build_engines.checkpoint.gpus import Gpu
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_formats import FormatPlan
from build_engines.sharding.parallel_sizes import ParallelSizes
from build_engines.sharding.shard_plan import ShardPlan

_GIB = 2**30
ONE_GPU = ParallelSizes()
# Of a compiled engine's process: CUDA context, NCCL's buffers, its own code, cuBLAS; 0.5 to 1 GiB in published logs.
COMPILED_CONTEXT_BYTES = int(0.8 * _GIB)
# Of the PyTorch backend's, outside PyTorch's own memory once weights are loaded: 4.2 GiB on one GPU, 6.8 to 12.7 on
# each of a group, 8.9 in the middle, in start-up logs of TensorRT-LLM 1.2 (gpt-oss-120b and DeepSeek-R1 on B200 and
# B300).
PYTORCH_CONTEXT_BYTES = int(4.2 * _GIB)
_GROUP_BYTES = int(4.7 * _GIB)
# Published logs of 8B and 70B models at 8,192 tokens a step: activations take what some 14 vectors of hidden width and
# the feed-forward's two make, in 16 bits.
_ACTIVATION_VECTORS = 14


@dataclass(frozen=True)
class Footprint:
    """Bytes on the fullest GPU of a replica."""

    weight_bytes: int
    workspace_bytes: int  # activations of one step, CUDA context, communication buffers
    kv_bytes: int  # free for the KV cache; below 0: so much is missing
    kv_bytes_per_token: float  # of one sequence, on this GPU
    kv_tokens: int  # of all sequences of the replica together
    memory_bytes: int
    state_bytes_per_sequence: int = 0  # of linear attention, on this GPU; taken before the KV cache gets its share
    kv_fraction: float = 0.9

    @property
    def fits(self) -> bool:
        """Return True if weights and workspace leave room for any KV cache."""
        return self.kv_bytes > 0

    @property
    def state_tokens(self) -> float:
        """Return the tokens of KV cache whose room a sequence's state takes.

        States of n sequences leave (free - n x state) x fraction for the cache.
        """
        return self.state_bytes_per_sequence * self.kv_fraction / self.kv_bytes_per_token

    def num_sequences(self, num_tokens: int) -> int:
        """Return how many sequences of `num_tokens` tokens fit at once, with their states."""
        return int(self.kv_tokens // (num_tokens + self.state_tokens))


def footprint_of(
    model: ModelShape,
    formats: FormatPlan,
    kv_format: str,
    layout: ParallelSizes,
    gpu: Gpu,
    *,
    max_num_tokens: int = 8192,
    kv_fraction: float = 0.9,
    is_compiled: bool = False,
) -> Footprint:
    """Count one GPU's memory.

    Args:
        max_num_tokens: tokens of one step, which set the size of activations.
        kv_fraction: share of the memory left over that the KV cache gets; `free_gpu_memory_fraction` of the engine.
        is_compiled: a TensorRT engine; else the PyTorch backend, whose process takes more.
    """
    weights = max(ShardPlan(model, layout).bytes_per_rank(formats))
    workspace = workspace_bytes(model, layout, max_num_tokens, is_compiled=is_compiled)
    free = gpu.memory_bytes - weights - workspace
    per_token = kv_bytes_per_token(model, kv_format, layout)
    kv_bytes = int(free * kv_fraction) if free > 0 else free
    # With attention DP each rank keeps other sequences, with context parallelism other tokens of the same ones.
    groups = layout.tp_size if layout.is_attention_dp else 1
    return Footprint(
        weight_bytes=weights,
        workspace_bytes=workspace,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_tokens=max(0, int(kv_bytes / per_token)) * groups,
        memory_bytes=gpu.memory_bytes,
        state_bytes_per_sequence=state_bytes_per_sequence(model, layout),
        kv_fraction=kv_fraction,
    )


def kv_bytes_per_token(model: ModelShape, kv_format: str, layout: ParallelSizes = ONE_GPU) -> float:
    """Return the bytes of one token of one sequence on the fullest rank.

    The formula is 2 x layers x KV heads x head_dim x bytes, heads rounded up. Latent attention keeps kv_lora_rank +
    rope_dim in each layer, on every rank of a tensor-parallel group.
    """
    shards = ShardPlan(model, layout)
    return max(shards.kv_bytes_per_token(rank, kv_format) for rank in _first_ranks(layout))


def state_bytes_per_sequence(model: ModelShape, layout: ParallelSizes = ONE_GPU) -> int:
    """Return the bytes of one sequence's states on the fullest rank; 0 without linear attention.

    TensorRT-LLM 1.2 takes them when it starts, for `max_batch_size` sequences.
    """
    shards = ShardPlan(model, layout)
    return max(shards.state_bytes_per_sequence(rank) for rank in _first_ranks(layout))


def _first_ranks(layout: ParallelSizes) -> range:
    """Return one rank of each stage."""
    return range(0, layout.world_size, layout.stage_size)


def workspace_bytes(
    model: ModelShape | None, layout: ParallelSizes, max_num_tokens: int, *, is_compiled: bool = False
) -> int:
    """Return the workspace bytes of a process on a GPU: its context, and the activations of a step of `max_num_tokens`.

    Without a model it is the context of a compiled engine alone.
    """
    if model is None:
        return COMPILED_CONTEXT_BYTES
    context = PYTORCH_CONTEXT_BYTES + (_GROUP_BYTES if layout.world_size > 1 else 0)
    costs = ModelCosts.of(model)
    widths = _ACTIVATION_VECTORS * costs.model.hidden_size + 2 * costs.active_intermediate_size / layout.tp_size
    return (COMPILED_CONTEXT_BYTES if is_compiled else context) + int(2 * max_num_tokens * widths)
