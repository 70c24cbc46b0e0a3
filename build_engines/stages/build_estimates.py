# SPDX-License-Identifier: Apache-2.0
"""Estimates of a GPU build's stages, from bytes: for the dry run, the disk, and how many ranks at once.

Bytes of weights are exact. Memory around them and rates are assumptions, written here in one place; nothing of it has
been measured on a GPU yet.
"""

from dataclasses import dataclass

from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.model_shape import DenseMlp, ExpertMlp, ModelShape
from build_engines.checkpoint.weight_table import num_active_parameters, num_parameters
from build_engines.recipes.recipe import GpuRecipe, TensorRtRecipe
from build_engines.recipes.recipe_checks import format_plan, shard_plan
from build_engines.stages.stage_list import Estimate
from ensemble_configs.releases.machine import Machine

_GIB = 1 << 30

# Assumed.
_DISK_BYTES_PER_S = 1e9  # reading and writing weights
_CALIBRATION_FRACTION = 0.3  # of the GPU's 16-bit peak
_AWQ_PASSES = 20.0  # its search, in forward passes
_COMPILE_BYTES_PER_S = 0.3e9  # of one rank, by trtllm-build
_COMPILE_S = 60.0  # besides
_PROGRAM_BYTES = 4 * _GIB  # Python, CUDA and TensorRT in host memory
_GPU_WORKSPACE_BYTES = 2 * _GIB


@dataclass(frozen=True)
class RankSizes:
    """Exact bytes of a model on its ranks."""

    plain_bytes: int  # the whole model in 16 bits
    rank_bytes: tuple[int, ...]  # in the recipe's format
    kv_bytes_per_token: int  # of the fullest rank

    @property
    def largest(self) -> int:
        """Return the bytes of the fullest rank's weights."""
        return max(self.rank_bytes)


def rank_sizes(recipe: GpuRecipe, model: ModelShape) -> RankSizes:
    """Return the bytes of weights and KV cache of each rank."""
    plan = shard_plan(recipe, model)
    kv_format = "fp16" if recipe.kv_format == "auto" else recipe.kv_format
    kv_bytes = max(plan.kv_bytes_per_token(rank, kv_format) for rank in range(recipe.world_size))
    return RankSizes(2 * num_parameters(model), plan.bytes_per_rank(format_plan(recipe)), round(kv_bytes))


def workspace_bytes(recipe: GpuRecipe, model: ModelShape) -> int:
    """Return an estimate of the activations of one full step on one rank, and the engine's buffers, in bytes.

    A token's hidden state, twice, its queries, keys, values and MLP, each in 16 bits; the logits of a step in 32. The
    states of linear attention are taken at the start, for a full batch.
    """
    widths = [_mlp_width(layer.mlp) for layer in model.layers]
    token_values = 6 * model.hidden_size + 3 * max(widths) // recipe.tp_size
    logits = recipe.max_batch_size * model.vocab_size * 4
    shards = shard_plan(recipe, model)
    states = recipe.max_batch_size * max(shards.state_bytes_per_sequence(rank) for rank in range(recipe.world_size))
    return recipe.max_num_tokens * token_values * 2 + logits + states + _GPU_WORKSPACE_BYTES


def _mlp_width(mlp: DenseMlp | ExpertMlp) -> int:
    if isinstance(mlp, DenseMlp):
        return mlp.intermediate_size
    return mlp.intermediate_size * mlp.experts_per_token + mlp.shared_intermediate_size


def conversion_bytes(model: ModelShape) -> int:
    """Return the host memory of one rank in convert_checkpoint.py, in bytes.

    It loads the whole model for each rank.
    """
    return 2 * num_parameters(model) + _PROGRAM_BYTES


def compile_bytes(rank_bytes: int) -> int:
    """Return the host memory of one rank in trtllm-build, in bytes: its weights, and the engine that is written."""
    return 2 * rank_bytes + _PROGRAM_BYTES


def num_at_once(recipe: GpuRecipe, machine: Machine, bytes_each: int, *, is_on_gpus: bool, is_dry_run: bool) -> int:
    """Return how many ranks are worked on together: at most what memory and, where needed, GPUs allow.

    A dry run is often not on the machine that will build: there it is all ranks.
    """
    wanted = recipe.builder.num_workers or recipe.world_size
    if is_dry_run and not machine.gpus:
        return min(wanted, recipe.world_size)
    limits = [wanted, recipe.world_size, machine.free_host_bytes // bytes_each]
    if is_on_gpus:
        limits.append(len(machine.gpus))
    return max(1, min(limits))


def calibration_estimate(recipe: GpuRecipe, model: ModelShape, sizes: RankSizes, *, is_calibrated: bool) -> Estimate:
    """Estimate quantize.py or hf_ptq.py: the model in 16 bits over all GPUs, run on every sample."""
    seconds = 2 * sizes.plain_bytes / _DISK_BYTES_PER_S
    if is_calibrated and recipe.calibration is not None:
        tokens = recipe.calibration.num_samples * recipe.calibration.max_tokens
        passes = _AWQ_PASSES if "awq" in recipe.format else 1.0
        flops = 2 * num_active_parameters(model) * tokens * passes
        seconds += flops / (gpu_named(recipe.gpu).tflops["fp16"] * 1e12 * _CALIBRATION_FRACTION)
    return Estimate(
        disk_bytes=sum(sizes.rank_bytes),
        host_bytes=sizes.plain_bytes + _PROGRAM_BYTES,
        gpu_bytes=sizes.plain_bytes // recipe.world_size + _GPU_WORKSPACE_BYTES,
        seconds=seconds,
    )


def conversion_estimate(recipe: TensorRtRecipe, model: ModelShape, sizes: RankSizes, num_workers: int) -> Estimate:
    """Estimate convert_checkpoint.py: the model is read once for each rank."""
    rounds = -(-recipe.world_size // num_workers)
    return Estimate(
        disk_bytes=sum(sizes.rank_bytes),
        host_bytes=num_workers * conversion_bytes(model),
        seconds=(rounds * sizes.plain_bytes + sum(sizes.rank_bytes)) / _DISK_BYTES_PER_S,
    )


def compile_estimate(recipe: TensorRtRecipe, sizes: RankSizes, num_workers: int) -> Estimate:
    """Estimate trtllm-build: each rank on a GPU of its own."""
    rounds = -(-recipe.world_size // num_workers)
    return Estimate(
        disk_bytes=sum(sizes.rank_bytes),
        host_bytes=num_workers * compile_bytes(sizes.largest),
        gpu_bytes=sizes.largest + _GPU_WORKSPACE_BYTES,
        seconds=rounds * (_COMPILE_S + sizes.largest / _COMPILE_BYTES_PER_S),
    )


def copy_estimate(num_bytes: int) -> Estimate:
    """Estimate a copy of files."""
    return Estimate(disk_bytes=num_bytes, seconds=2 * num_bytes / _DISK_BYTES_PER_S)
