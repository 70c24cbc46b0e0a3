# SPDX-License-Identifier: Apache-2.0
"""The cost of a decode step of a recipe's engine, and its GPUs' datasheet peaks, for the manifest."""

from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.model_costs import ModelCosts
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.weight_table import Role, weights_of
from build_engines.recipes.recipe import GpuRecipe
from build_engines.recipes.recipe_checks import format_plan, shard_plan
from ensemble_configs.releases.release_parts import StepCosts


def step_costs(recipe: GpuRecipe, model: ModelShape) -> StepCosts:
    """Return the costs of a step of the whole engine.

    All weights are read but the embedding's table, of which a token needs a row; a head that is the same table reads
    all of it. The KV cache counts on each rank that holds it: heads that tensor parallelism copies are read as often.
    Attention DP keeps a token on one rank only.
    """
    plan, formats, gpu = shard_plan(recipe, model), format_plan(recipe), gpu_named(recipe.gpu)
    read = [weight for weight in weights_of(model) if model.is_tied or weight.role is not Role.EMBEDDING]
    costs, has_experts = ModelCosts.of(model), bool(model.expert_layers)
    num_parameters = sum(weight.size for weight in read) - costs.expert_size + costs.active_expert_size
    kv_format = "fp16" if recipe.kv_format == "auto" else recipe.kv_format
    kv_bytes = [plan.kv_bytes_per_token(rank, kv_format) for rank in range(recipe.world_size)]
    num_copies = recipe.tp_size if getattr(recipe, "is_attention_dp", False) else 1
    try:
        peak_flops = round(gpu.tflops[formats.linear.compute] * 1e12 * recipe.world_size)
    except KeyError:  # emulated in another format
        peak_flops = None
    return StepCosts(
        weight_bytes=None if has_experts else formats.num_bytes(read),
        kv_bytes_per_token=round(sum(kv_bytes) / num_copies),
        flops_per_token=round(2 * num_parameters),
        peak_bandwidth_bytes_per_s=round(gpu.bandwidth_gbs * 1e9 * recipe.world_size),
        peak_flops=peak_flops,
    )
