# SPDX-License-Identifier: Apache-2.0
"""The estimates of stages, and how many ranks are worked on at once."""

import pytest

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.known_models import known_models
from build_engines.recipes.recipe import PyTorchRecipe, TensorRtRecipe, load_recipe
from build_engines.stages.build_estimates import (
    calibration_estimate,
    compile_bytes,
    compile_estimate,
    conversion_bytes,
    num_at_once,
    rank_sizes,
    workspace_bytes,
)
from ensemble_configs.releases.machine import Gpu, Machine
from trireme.base.durations import duration

GIB = 1 << 30
LLAMA_70B = read_model_shape(known_models()["llama-3.1-70b"].config)


def test_the_workspace_has_states_of_linear_attention_for_a_full_batch() -> None:
    model = read_model_shape(known_models()["qwen3-next-80b-a3b"].config)
    few, many = (
        PyTorchRecipe(
            name="hybrid", model="Qwen/Qwen3-Next-80B-A3B-Instruct", backend="pytorch", gpu="h200", format="bf16",
            max_batch_size=batch, max_num_tokens=4096, max_seq_len=8192, tp_size=2,
        )
        for batch in (10, 110)
    )  # fmt: skip
    logits = 4 * 151_936
    assert workspace_bytes(many, model) - workspace_bytes(few, model) == 100 * (logits + 39_518_208 // 2)


def recipe_named(name: str) -> TensorRtRecipe:
    recipe = load_recipe(name)
    assert isinstance(recipe, TensorRtRecipe)
    return recipe


def machine(num_gpus: int, free_gib: int) -> Machine:
    gpu = Gpu(name="H100", sm=90)
    return Machine(gpus=(gpu,) * num_gpus, free_host_bytes=free_gib * GIB)


def test_bytes_of_ranks_and_of_the_cache_are_exact() -> None:
    sizes = rank_sizes(recipe_named("llama-3.1-70b-fp8-tp4-h100"), LLAMA_70B)
    assert sizes.plain_bytes == 2 * 70_553_706_496
    assert sizes.kv_bytes_per_token == 2 * 80 * 2 * 128  # K and V, 80 layers, 2 of 8 heads, 128 values, 1 byte
    embedding, head = 128256 * 8192 * 2, 128256 * 8192 * 2 // 4
    linear = (80 * (8192 * 8192 * 2 + 8192 * 1024 * 2 + 3 * 8192 * 28672)) // 4
    assert sizes.largest == pytest.approx(embedding + head + linear + 161 * 8192 * 2, rel=1e-5)
    assert len(sizes.rank_bytes) == 4


@pytest.mark.parametrize(
    ("num_gpus", "free_gib", "expected"),
    [(4, 1000, 4), (2, 1000, 2), (4, 160, 3), (4, 60, 1), (4, 1, 1)],
    ids=["all", "as many as GPUs", "memory for three", "memory for one", "never none"],
)
def test_ranks_at_once_are_bounded_by_gpus_and_memory(num_gpus: int, free_gib: int, expected: int) -> None:
    recipe = recipe_named("llama-3.1-70b-fp8-tp4-h100")
    each = compile_bytes(rank_sizes(recipe, LLAMA_70B).largest)
    assert each // GIB in range(40, 53)
    found = num_at_once(recipe, machine(num_gpus, free_gib), each, is_on_gpus=True, is_dry_run=False)
    assert found == expected


def test_a_conversion_needs_no_gpu_for_each_rank_but_memory_for_the_whole_model() -> None:
    recipe = recipe_named("llama-3.1-70b-fp8-tp4-h100")
    each = conversion_bytes(LLAMA_70B)
    assert num_at_once(recipe, machine(1, 300), each, is_on_gpus=False, is_dry_run=False) == 2


def test_the_recipe_bounds_the_workers_and_a_dry_run_without_gpus_takes_all_ranks() -> None:
    recipe = recipe_named("llama-3.1-70b-fp8-tp4-h100")
    bounded = recipe.model_copy(update={"builder": recipe.builder.model_copy(update={"num_workers": 2})})
    assert num_at_once(bounded, machine(4, 1000), GIB, is_on_gpus=True, is_dry_run=False) == 2
    assert num_at_once(recipe, machine(0, 1), 1000 * GIB, is_on_gpus=True, is_dry_run=True) == 4


def test_awq_takes_longer_than_its_samples_would() -> None:
    recipe = recipe_named("llama-3.1-70b-int4-awq-tp2-a100-80")
    sizes = rank_sizes(recipe, LLAMA_70B)
    searched = calibration_estimate(recipe, LLAMA_70B, sizes, is_calibrated=True)
    assert searched.seconds > calibration_estimate(recipe, LLAMA_70B, sizes, is_calibrated=False).seconds
    assert searched.disk_bytes == sum(sizes.rank_bytes)
    half = compile_estimate(recipe, sizes, 1)
    assert half.seconds == pytest.approx(2 * compile_estimate(recipe, sizes, 2).seconds)
    assert 2 * half.host_bytes == compile_estimate(recipe, sizes, 2).host_bytes


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (59, "59 s"), (200, "3 min"), (7500, "2 h 5 min")]
)
def test_durations_are_as_long_as_they_need_to_be(seconds: float, text: str) -> None:
    assert duration(seconds) == text
