# SPDX-License-Identifier: Apache-2.0
"""The back end `vllm`: a checkpoint that vLLM loads, quantized by llm-compressor or used unchanged.

Ranks cut the checkpoint when they load it, so one release serves any number of them.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.checkpoint.quantized_checkpoint import quantized_as
from build_engines.checkpoint.weight_table import num_parameters
from build_engines.recipes.recipe import VllmRecipe, hash_recipe, recipe_document
from build_engines.recipes.recipe_parts import SmoothQuantSpec
from build_engines.sharding.shard_plan import plan_shards
from build_engines.stages.build_estimates import copy_estimate
from build_engines.stages.build_job import SOURCE, BuildJob, BuildPlan
from build_engines.stages.stage_list import Estimate, Stage
from build_engines.stages.texts_stage import TEXTS, texts_stage
from build_engines.vllm.vllm_checks import check
from build_engines.vllm.vllm_environment import environment
from build_engines.vllm.vllm_formats import routers_of, vllm_bytes
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.releases.release_parts import ModelIdentity, ReleaseLimits
from trireme.base.errors import BuildError, SpecError

__all__ = ["check", "kv_bytes_per_token", "plan"]

WEIGHTS = "weights"  # the stage
KV_BLOCK_TOKENS = 16  # of vLLM on a GPU, where a deployment names none
_CALIBRATION = "calibration"
_HEAD = "lm_head"
_START_S = 10.0  # imports
_BYTES_PER_S = 100e6  # of weights in 16 bits; measured on two cores, without calibration
_TOKEN_BYTES_PER_S = 5e10  # of calibration: tokens times bytes of weights; assumed for two cores, a GPU is faster
_AWQ_PASSES = 10.0  # its search, compared with GPTQ
_PROGRAM_BYTES = 700 << 20  # Python with torch and llm-compressor


def plan(job: BuildJob) -> BuildPlan:
    """Return the stages: quantize or copy the weights, and lay out the tokenizer."""
    recipe, shape = _recipe(job), job.checkpoint.shape
    is_plain = recipe.format in ("fp16", "bf16")
    versions = {} if job.is_dry_run or is_plain else environment(job.tools).versions()
    links = {SOURCE: job.checkpoint.dir}
    if recipe.calibration is not None and recipe.calibration.file is not None:
        links[_CALIBRATION + recipe.calibration.file.suffix] = recipe.calibration.file
    weights = _copy_stage(job) if is_plain else _quantize_stage(job, recipe, versions)
    size, kv_bytes = vllm_bytes(shape, recipe), kv_bytes_per_token(shape)
    return BuildPlan(
        stages=(weights, texts_stage(job, is_tokenizer_beside=True)),
        parts={WEIGHTS: "engine", TEXTS: "."},
        describe=lambda folder: _describe(job, recipe, folder, versions),
        links=links,
        notes=(f"weights: {size / 1e6:.1f} MB, KV cache: {kv_bytes} bytes a token in 16 bits",),
    )


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Return the bytes that a token takes in a KV cache of 16 bits, of all ranks together."""
    return round(plan_shards(shape, tp_size=1).kv_bytes_per_token(0, "fp16"))


def _recipe(job: BuildJob) -> VllmRecipe:
    assert isinstance(job.recipe, VllmRecipe)
    return job.recipe


def _copy_stage(job: BuildJob) -> Stage:
    checkpoint = job.checkpoint

    def work(folder: Path, _work: Path) -> None:
        for file in _model_files(checkpoint.dir):
            shutil.copyfile(file, folder / file.name)

    key: dict[str, JsonValue] = {"checkpoint": job.checkpoint_sha256}
    num_bytes = 0 if job.is_dry_run else checkpoint.weight_bytes
    return Stage(WEIGHTS, "copy the weights, which stay as they are", work, key=key, estimate=copy_estimate(num_bytes))


def _model_files(folder: Path) -> list[Path]:
    return [
        *sorted(folder.glob("*.safetensors")),
        *sorted(folder.glob("*.safetensors.index.json")),
        folder / "config.json",
    ]


def _quantize_stage(job: BuildJob, recipe: VllmRecipe, versions: Mapping[str, str]) -> Stage:
    options = _options(job, recipe)
    key: dict[str, JsonValue] = {
        "versions": dict(versions), "checkpoint": job.checkpoint_sha256, "options": list(options),
    }  # fmt: skip
    if recipe.calibration is not None:
        key["calibration"] = recipe.calibration.sha256
    argv = ["--checkpoint", SOURCE, "--out", f"{WEIGHTS}.partial", *options]
    return Stage(
        WEIGHTS,
        f"llm-compressor: {recipe.format}",
        environment(job.tools).command("vllm.vllm_compress", argv),
        key=key,
        check=_check_export,
        estimate=_estimate(recipe, job.checkpoint.shape),
    )


def _options(job: BuildJob, recipe: VllmRecipe) -> list[str]:
    options = ["--format", recipe.format]
    if recipe.format in ("int4_awq", "int4_gptq"):
        options += ["--group-size", str(recipe.weights_per_scale), *(("--symmetric",) if recipe.is_symmetric else ())]
    if recipe.format == "smoothquant":
        alpha = (recipe.smoothquant or SmoothQuantSpec()).alpha
        options += ["--alpha", str(alpha), *(("--gptq",) if recipe.is_gptq else ())]
    for name in (_HEAD, *routers_of(job.checkpoint.shape), *recipe.ignored_layers):
        options += ["--ignore", name]
    given = recipe.calibration
    if given is not None and given.file is not None:
        options += [
            *("--calibration", _CALIBRATION + given.file.suffix, "--num-samples", str(given.num_samples)),
            *("--max-tokens", str(given.max_tokens), "--seed", str(given.seed)),
        ]
    return options


def _check_export(folder: Path) -> None:
    if not list(folder.glob("*.safetensors")):
        raise BuildError("there is no .safetensors in what llm-compressor wrote")
    try:
        found = quantized_as(load_config(folder))
    except SpecError as exc:
        raise BuildError(exc.message) from exc
    if found is None:
        raise BuildError("llm-compressor wrote a config.json without a quantization_config; nothing was quantized")


def _estimate(recipe: VllmRecipe, shape: ModelShape) -> Estimate:
    whole = 2 * num_parameters(shape)
    seconds = _START_S + whole / _BYTES_PER_S
    if recipe.calibration is not None:
        tokens = recipe.calibration.num_samples * recipe.calibration.max_tokens
        passes = _AWQ_PASSES if recipe.format == "int4_awq" else 1.0
        seconds += passes * tokens * whole / _TOKEN_BYTES_PER_S
    return Estimate(2 * vllm_bytes(shape, recipe), _PROGRAM_BYTES + 2 * whole, seconds=seconds)


def _describe(job: BuildJob, recipe: VllmRecipe, folder: Path, versions: Mapping[str, str]) -> ReleaseManifest:
    shape = job.checkpoint.shape
    return ReleaseManifest(
        name=recipe.name,
        model=ModelIdentity(architecture=shape.architecture, num_parameters=num_parameters(shape), source=recipe.model),
        weights_sha256=job.checkpoint.weights_sha256,
        tokenizer_sha256=hash_file(folder / "tokenizer" / "tokenizer.json"),
        recipe_sha256=hash_recipe(recipe),
        recipe=recipe_document(recipe),
        provider="vllm",
        versions=dict(versions),
        limits=ReleaseLimits(
            max_batch_size=recipe.max_batch_size, max_num_tokens=recipe.max_num_tokens, max_seq_len=recipe.max_seq_len
        ),
        weight_bytes_per_rank=sum(path.stat().st_size for path in (folder / "engine").glob("*.safetensors")),
        kv_bytes_per_token=kv_bytes_per_token(shape),
        kv_block_tokens=KV_BLOCK_TOKENS,
        vocab_size=shape.vocab_size,
    )
