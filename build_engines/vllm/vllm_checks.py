# SPDX-License-Identifier: Apache-2.0
"""Findings about a build for vLLM, before any work."""

from collections.abc import Iterator

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.quantized_checkpoint import quantized_as
from build_engines.recipes.calibration_file import check_calibration_file
from build_engines.recipes.recipe import VllmRecipe
from build_engines.recipes.recipe_checks import check_recipe
from build_engines.recipes.recipe_findings import finding, fixed
from build_engines.stages.build_job import BuildJob
from build_engines.vllm.vllm_environment import environment
from build_engines.vllm.vllm_formats import unheld_sizes, unknown_layers
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import SpecError

_DTYPES = {"float16": "fp16", "bfloat16": "bf16"}
_SHOWN = 3  # layers of many


def check(job: BuildJob) -> list[Finding]:
    """Return every finding against this job; for a dry run a config.json is checkpoint enough."""
    assert isinstance(job.recipe, VllmRecipe)
    recipe = job.recipe
    try:
        shape = job.checkpoint.shape
    except SpecError as exc:
        return [finding("checkpoint", exc.message, "a model that is known here", "name another --checkpoint")]
    return [
        *_check_environment(job, recipe),
        *_check_checkpoint(job.checkpoint, recipe, is_dry_run=job.is_dry_run),
        *_check_sizes(job.checkpoint, recipe),
        *check_recipe(recipe, shape, None),
        *_check_calibration(recipe),
    ]


def _check_environment(job: BuildJob, recipe: VllmRecipe) -> Iterator[Finding]:
    if job.is_dry_run or recipe.format in ("fp16", "bf16") or environment(job.tools).found() is not None:
        return
    if job.tools.compressor_venv is not None:
        next_step = "name a virtual environment in which llm-compressor is installed"
        yield finding("--compressor-venv", f"no bin/python in {job.tools.compressor_venv}", "one", next_step)
        return
    next_step = "in a checkout: python3 scripts/bootstrap.py --only compress-cpu; else name one: --compressor-venv"
    yield finding("environment", "no llmcompressor", "llm-compressor, in an environment of its own", next_step)


def _check_checkpoint(checkpoint: CheckpointFiles, recipe: VllmRecipe, *, is_dry_run: bool) -> Iterator[Finding]:
    quantized = quantized_as(checkpoint.config)
    if checkpoint.is_converted:
        yield finding(
            "checkpoint", "converted for TensorRT-LLM", "weights in 16 or 32 bits", "name the original checkpoint"
        )
    elif quantized is not None:
        yield finding(
            "checkpoint",
            f"quantized already ({quantized.method})",
            "weights in 16 or 32 bits",
            "name the original checkpoint, or make a release of this one as it is: `trireme import "
            f"{checkpoint.dir} --release-dir DIR --out FILE`",
        )
    own = _DTYPES.get(checkpoint.shape.dtype, checkpoint.shape.dtype)
    if quantized is None and recipe.format in ("fp16", "bf16") and own != recipe.format:
        next_step = f"take format {own}" if own in _DTYPES.values() else "save the model in 16 bits"
        yield finding("format", recipe.format, f"{own}, which the checkpoint has", f"{next_step}: nothing is converted")
    if is_dry_run:
        return
    if not checkpoint.weight_files:
        next_step = f"save the model as safetensors in {checkpoint.dir}"
        yield finding("checkpoint", "no .safetensors", "weights", next_step)
    if not (checkpoint.dir / "tokenizer.json").is_file():
        next_step = "AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes it"
        yield finding("tokenizer", "no tokenizer.json", "the model's tokenizer", next_step)


def _check_sizes(checkpoint: CheckpointFiles, recipe: VllmRecipe) -> Iterator[Finding]:
    for pattern in unknown_layers(checkpoint.shape, recipe):
        yield finding(
            "ignored_layers", pattern, "linear layers of the model", "correct it; `trireme build --dry-run` tells more"
        )
    found = list(unheld_sizes(checkpoint.shape, recipe))
    if found:
        shown = "; ".join(f"{layer} has {why}" for layer, why in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        next_step = "take another format or group_size, or name these layers in ignored_layers"
        yield finding("format", recipe.format, f"sizes that it can hold: {shown}{more}", next_step)


def _check_calibration(recipe: VllmRecipe) -> Iterator[Finding]:
    given = recipe.calibration
    if given is None:
        return
    if given.file is None:
        next_step = "set calibration.file and its sha256: nothing is fetched"
        yield finding("calibration.dataset", given.dataset, "a file", next_step)
    yield from check_calibration_file(given)
    yield from fixed(given, "this back end", "batch_size")
