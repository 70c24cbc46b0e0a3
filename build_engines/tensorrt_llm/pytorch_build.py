# SPDX-License-Identifier: Apache-2.0
"""The back end `pytorch`: a checkpoint that the LLM API loads, quantized by ModelOpt or used unchanged.

Ranks cut the checkpoint when they load it, so nothing is sharded here; the plan of the shards is recorded beside it,
and the launch file with the sizes.
"""

import json
import shutil
from pathlib import Path

import yaml
from pydantic import JsonValue

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles, folder_sha256
from build_engines.recipes.recipe import PyTorchRecipe
from build_engines.recipes.recipe_checks import shard_plan
from build_engines.recipes.recipe_parts import DraftTargetRecipe, Eagle3Recipe
from build_engines.recipes.trtllm_versions import HF_PTQ_FORMATS, KV_QUANT_ALGOS, QUANT_ALGOS
from build_engines.sharding.shard_plan import ShardPlan
from build_engines.stages.build_estimates import RankSizes, calibration_estimate, copy_estimate, rank_sizes
from build_engines.stages.build_job import SOURCE, BuildJob, BuildPlan
from build_engines.stages.stage_list import Command, Stage
from build_engines.stages.texts_stage import TEXTS, texts_stage
from build_engines.tensorrt_llm.gpu_build import check_gpu_job, check_readable, describe
from build_engines.tensorrt_llm.trtllm_commands import CHECKPOINT, hf_ptq_argv, without_machine_flags
from ensemble_configs.releases.context_attention import why_not_on_pytorch
from ensemble_configs.releases.pytorch_checkpoint import checkpoint_algos
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import BuildError, SpecError

DRAFT, LAUNCH = "draft", "launch"


def check(job: BuildJob) -> list[Finding]:
    """Return every finding against a job, before any work."""
    recipe = _recipe(job)
    if unreadable := check_readable(job, recipe):
        return unreadable
    findings = check_gpu_job(job, recipe)
    if _is_to_be_quantized(job, recipe):
        findings += _check_quantizer(job, recipe)
    else:
        try:
            _check_quantized(job.checkpoint.dir, recipe)
        except BuildError as exc:
            next_step = f"take a checkpoint in {recipe.format}, or one in 16 bits and add calibration"
            findings.append(_finding("checkpoint", exc.message, recipe.format, next_step))
    draft = _draft(recipe)
    if draft is not None and not (draft / "config.json").is_file():
        findings.append(_finding("speculation.dir", f"no config.json in {draft}", "a checkpoint", "put it there"))
    return findings


def plan(job: BuildJob) -> BuildPlan:
    """Return the stages: checkpoint, launch file, shard plan and texts; and the draft model where there is one."""
    recipe, model = _recipe(job), job.checkpoint.shape
    sizes = rank_sizes(recipe, model)
    is_to_be_quantized = _is_to_be_quantized(job, recipe)
    checkpoint = _quantize_stage(job, recipe, sizes) if is_to_be_quantized else _copy_stage(job, recipe)
    is_idle = recipe.calibration is not None and not is_to_be_quantized
    stages = [checkpoint, _launch_stage(recipe, shard_plan(recipe, model), sizes), texts_stage(job)]
    parts = {CHECKPOINT: "engine", LAUNCH: ".", TEXTS: "."}
    draft = _draft(recipe)
    if draft is not None:
        stages.append(_draft_stage(job, draft))
        parts[DRAFT] = "draft"
    return BuildPlan(
        stages=tuple(stages),
        parts=parts,
        describe=lambda release: describe(job, recipe, release, sizes, sizes.largest),
        links={SOURCE: job.checkpoint.dir},
        notes=("calibration is not used: the checkpoint is quantized already",) if is_idle else (),
    )


def _recipe(job: BuildJob) -> PyTorchRecipe:
    assert isinstance(job.recipe, PyTorchRecipe)
    return job.recipe


def _finding(check_: str, found: str, wanted: str, next_step: str) -> Finding:
    return Finding(check=check_, found=found, wanted=wanted, next_step=next_step)


def _draft(recipe: PyTorchRecipe) -> Path | None:
    speculation = recipe.speculation
    return speculation.dir if isinstance(speculation, Eagle3Recipe | DraftTargetRecipe) else None


def _is_to_be_quantized(job: BuildJob, recipe: PyTorchRecipe) -> bool:
    """Return True if the checkpoint has 16 bits and the recipe wants fewer."""
    return recipe.format not in ("fp16", "bf16") and _algos(job.checkpoint.dir)[0] is None


def _check_quantizer(job: BuildJob, recipe: PyTorchRecipe) -> list[Finding]:
    script = job.tools.modelopt_examples / "llm_ptq" / "hf_ptq.py"
    findings = []
    if recipe.format not in HF_PTQ_FORMATS:
        formats = ", ".join(sorted(HF_PTQ_FORMATS))
        next_step = "take a checkpoint that is in this format already, or one of these formats"
        findings.append(_finding("format", f"{recipe.format} from weights in 16 bits", formats, next_step))
    elif recipe.calibration is None:
        next_step = f"add calibration, or take a checkpoint in {recipe.format}"
        findings.append(_finding("calibration", "nothing", "a dataset, to quantize this checkpoint", next_step))
    if not job.is_dry_run and not script.is_file():
        findings.append(_finding("--modelopt-examples", f"no {script}", "ModelOpt's examples", "name their folder"))
    return findings


def _quantize_stage(job: BuildJob, recipe: PyTorchRecipe, sizes: RankSizes) -> Stage:
    argv = hf_ptq_argv(recipe, job.tools.modelopt_examples)
    words: list[JsonValue] = list(without_machine_flags(argv))
    return Stage(
        CHECKPOINT,
        f"hf_ptq.py: {recipe.format}",
        Command(tuple(argv)),
        key={"argv": words, "checkpoint": job.checkpoint_sha256, "versions": _versions(job)},
        check=lambda folder: _check_export(folder, recipe),
        estimate=calibration_estimate(recipe, job.checkpoint.shape, sizes, is_calibrated=True),
    )


def _copy_stage(job: BuildJob, recipe: PyTorchRecipe) -> Stage:
    checkpoint = job.checkpoint

    def work(folder: Path, _work: Path) -> None:
        for file in checkpoint.files:
            shutil.copyfile(file, folder / file.name)

    return Stage(
        CHECKPOINT,
        f"check and copy the checkpoint, which is {recipe.format} already",
        work,
        key={"checkpoint": job.checkpoint_sha256},
        check=lambda folder: _check_export(folder, recipe),
        estimate=copy_estimate(checkpoint.weight_bytes),
    )


def _draft_stage(job: BuildJob, draft: Path) -> Stage:
    files = CheckpointFiles(draft)

    def work(folder: Path, _work: Path) -> None:
        for file in files.files:
            shutil.copyfile(file, folder / file.name)

    key: dict[str, JsonValue] = {"draft": "" if job.is_dry_run else folder_sha256(draft)}
    num_bytes = 0 if job.is_dry_run else files.weight_bytes
    return Stage(DRAFT, "copy the draft model", work, key=key, estimate=copy_estimate(num_bytes))


def _launch_stage(recipe: PyTorchRecipe, shards: ShardPlan, sizes: RankSizes) -> Stage:
    launch, shard_facts = launch_settings(recipe), _shard_facts(shards, sizes)

    def work(folder: Path, _work: Path) -> None:
        (folder / "launch.yaml").write_text(yaml.safe_dump(launch, sort_keys=False), encoding="utf-8")
        (folder / "shards.json").write_text(json.dumps(shard_facts, indent=1) + "\n", encoding="utf-8")

    return Stage(LAUNCH, "record launch file and shard plan", work, key={"launch": launch, "shards": shard_facts})


def launch_settings(recipe: PyTorchRecipe) -> dict[str, JsonValue]:
    """Return the engine of a deployment that serves the release, with the fields of its `PyTorchEngineSpec`."""
    settings: dict[str, JsonValue] = {
        "provider": "pytorch",
        "dir": "engine",
        "tp_size": recipe.tp_size,
        "pp_size": recipe.pp_size,
        "cp_size": recipe.cp_size,
        "is_attention_dp": recipe.is_attention_dp,
        "max_num_seqs": recipe.max_batch_size,
        "max_num_batched_tokens": recipe.max_num_tokens,
        "max_seq_len": recipe.max_seq_len,
        "max_beam_width": recipe.max_beam_width,
        "kv_cache_dtype": recipe.kv_format if recipe.kv_format in ("fp8", "nvfp4") else "auto",
        "kv_block_tokens": recipe.kv_block_tokens,
    }
    if recipe.ep_size > 1:
        settings["ep_size"] = recipe.ep_size
    if recipe.speculation is not None:
        speculation = recipe.speculation.model_dump(mode="json")
        if "dir" in speculation:
            speculation["dir"] = DRAFT
        settings["speculation"] = speculation
    return settings


def _shard_facts(shards: ShardPlan, sizes: RankSizes) -> dict[str, JsonValue]:
    ranks: list[JsonValue] = []
    for rank in range(shards.sizes.world_size):
        place = shards.sizes.place(rank)
        layers = shards.stages[place.pp_rank]
        ranks.append(
            {
                "rank": rank,
                "tp_rank": place.tp_rank,
                "pp_rank": place.pp_rank,
                "cp_rank": place.cp_rank,
                "moe_ep_rank": place.moe_ep_rank,
                "layers": [layers.start, layers.stop],
                "weight_bytes": sizes.rank_bytes[rank],
            }
        )
    return {"world_size": shards.sizes.world_size, "kv_heads_per_rank": shards.kv_heads_per_rank, "ranks": ranks}


def _versions(job: BuildJob) -> dict[str, JsonValue]:
    names = ("nvidia_modelopt", "transformers", "torch")
    return {name: job.machine.packages[name] for name in names if name in job.machine.packages}


def _check_export(folder: Path, recipe: PyTorchRecipe) -> None:
    if not list(folder.glob("*.safetensors")) or not (folder / "config.json").is_file():
        raise BuildError("there is no config.json or no .safetensors in what was exported")
    _check_quantized(folder, recipe)


def _check_quantized(folder: Path, recipe: PyTorchRecipe) -> None:
    """Refuse a checkpoint that does not state the quantization that the recipe wants."""
    algo, kv_algo = _algos(folder)
    if algo not in QUANT_ALGOS[recipe.format]:
        raise BuildError(f"the checkpoint is {algo or 'in 16 bits'}, and the recipe wants {recipe.format}")
    wanted = KV_QUANT_ALGOS[recipe.kv_format]
    if kv_algo is not None and wanted is not None and kv_algo != wanted:
        raise BuildError(f"the checkpoint's KV cache is {kv_algo}, and the recipe wants {recipe.kv_format}")
    if reason := why_not_on_pytorch(recipe.format, (kv_algo or "auto").lower()):
        raise BuildError(f"the checkpoint's KV cache is {kv_algo}: {reason}")


def _algos(folder: Path) -> tuple[str | None, str | None]:
    try:
        return checkpoint_algos(folder)
    except SpecError as exc:
        raise BuildError(exc.message) from exc
