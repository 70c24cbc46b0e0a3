# SPDX-License-Identifier: Apache-2.0
"""Parts of both back ends of TensorRT-LLM: checks of machine and checkpoint, texts, calibration, manifest."""

import json
from collections.abc import Iterator
from pathlib import Path

from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.weight_table import num_parameters
from build_engines.recipes.calibration_file import check_calibration_file
from build_engines.recipes.recipe import GpuRecipe, TensorRtRecipe, hash_recipe, recipe_document
from build_engines.recipes.recipe_checks import check_recipe
from build_engines.recipes.recipe_parts import Calibration
from build_engines.recipes.trtllm_versions import VERSIONS
from build_engines.stages.build_estimates import RankSizes, workspace_bytes
from build_engines.stages.build_job import BuildJob
from build_engines.stages.stage_list import Stage
from build_engines.stages.step_costs import step_costs
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.releases.release_parts import ModelIdentity, ReleaseLimits
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import BuildError, SpecError


def check_readable(job: BuildJob, recipe: GpuRecipe) -> list[Finding]:
    """Return one finding if there is no model and GPU that anything else can be said about."""
    try:
        gpu_named(recipe.gpu)
        _ = job.checkpoint.shape
    except SpecError as exc:
        field = str(exc.facts.get("field", "checkpoint"))
        return [_finding(field, str(exc.facts.get("value", "nothing readable")), "one that is known", exc.message)]
    return []


def check_gpu_job(job: BuildJob, recipe: GpuRecipe) -> list[Finding]:
    """Return findings about recipe, checkpoint and machine; in a dry run not about the machine."""
    gpu = gpu_named(recipe.gpu)
    versions = {} if job.is_dry_run else job.machine.packages
    findings = check_recipe(recipe, job.checkpoint.shape, gpu, versions)
    findings += _check_files(job)
    findings += check_calibration_file(recipe.calibration)
    if not job.is_dry_run:
        findings += _check_machine(job, recipe, gpu.sm)
    return findings


def _finding(check: str, found: str, wanted: str, next_step: str) -> Finding:
    return Finding(check=check, found=found, wanted=wanted, next_step=next_step)


def _check_files(job: BuildJob) -> Iterator[Finding]:
    """Yield findings about files that are missing from the checkpoint's folder; for a dry run config.json is enough."""
    if not job.is_dry_run and not (job.checkpoint.dir / "tokenizer.json").is_file():
        yield _finding(
            "checkpoint", "no tokenizer.json", "one", "put the model's beside its weights; a release has its tokenizer"
        )
    if not job.is_dry_run and not job.checkpoint.weight_files:
        yield _finding(
            "checkpoint", "no .safetensors", "weights", "convert pickled weights to safetensors; those are not loaded"
        )


def _check_machine(job: BuildJob, recipe: GpuRecipe, sm: int) -> Iterator[Finding]:
    gpus = job.machine.gpus
    if not gpus:
        why = f" ({job.machine.why_no_gpus})" if job.machine.why_no_gpus else ""
        yield _finding(
            "machine", f"no GPU{why}", f"a {recipe.gpu}", "build where it will be served, or look with --dry-run"
        )
    for found in {gpu.sm for gpu in gpus} - {sm}:
        yield _finding(
            "machine", f"a GPU with sm_{found}", f"sm_{sm}, of {recipe.gpu}", "build on the kind that will serve"
        )
    if "tensorrt_llm" not in job.machine.packages:
        version = VERSIONS.get(recipe.tensorrt_llm)
        tags = f", tags {version.containers}" if version else ""
        yield _finding("machine", "no tensorrt_llm", recipe.tensorrt_llm, f"run this in a tritonserver container{tags}")


def calibration_stage(name: str, calibration: Calibration) -> Stage:
    """Return the stage that makes a calibration set the folder that quantize.py can load.

    The folder has `train.jsonl` with the key `text`.
    """
    file = calibration.file
    assert file is not None

    def work(folder: Path, _work: Path) -> None:
        if hash_file(file) != calibration.sha256:
            raise BuildError(
                f"{file} has changed since the build began; its SHA-256 is not {calibration.sha256} any more"
            )
        lines = file.read_text(encoding="utf-8").splitlines()
        samples = [_sample(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if len(samples) < calibration.num_samples:
            raise BuildError(
                f"{file} has {len(samples)} samples, fewer than calibration.num_samples ({calibration.num_samples}); "
                "lower that, or add samples"
            )
        text = "".join(json.dumps({"text": sample}, ensure_ascii=False) + "\n" for sample in samples)
        (folder / "train.jsonl").write_text(text, encoding="utf-8")

    title = f"check and lay out {file.name}"
    return Stage(name, title, work, key={"sha256": calibration.sha256, "num_samples": calibration.num_samples})


def _sample(file: Path, number: int, line: str) -> str:
    if file.suffix == ".txt":
        return line
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError) as exc:
        raise BuildError(f"{file}, line {number}: not an object with the key `text`") from exc


def describe(job: BuildJob, recipe: GpuRecipe, release: Path, sizes: RankSizes, weight_bytes: int) -> ReleaseManifest:
    """Return the manifest of a release for a GPU.

    Args:
        job: the job that was built.
        recipe: the job's recipe, by its kind.
        release: the release's folder, with the tokenizer in it.
        sizes: bytes of its ranks.
        weight_bytes: bytes of the fullest rank, as it was built.
    """
    model, machine = job.checkpoint.shape, job.machine
    document = recipe_document(recipe)
    tensorrt = {"tensorrt": VERSIONS[recipe.tensorrt_llm].tensorrt} if recipe.tensorrt_llm in VERSIONS else {}
    versions = {"tensorrt_llm": recipe.tensorrt_llm, **(tensorrt if isinstance(recipe, TensorRtRecipe) else {})}
    versions |= {name: found for name, found in machine.packages.items() if name in versions}
    return ReleaseManifest(
        name=recipe.name,
        model=ModelIdentity(architecture=model.architecture, num_parameters=num_parameters(model), source=recipe.model),
        weights_sha256=job.checkpoint.weights_sha256,
        tokenizer_sha256=hash_file(release / "tokenizer" / "tokenizer.json"),
        recipe_sha256=hash_recipe(recipe),
        recipe=document,
        provider=recipe.backend,
        versions=versions,
        sm=gpu_named(recipe.gpu).sm,
        tp_size=recipe.tp_size,
        pp_size=recipe.pp_size,
        cp_size=recipe.cp_size,
        world_size=recipe.world_size,
        limits=ReleaseLimits(
            max_batch_size=recipe.max_batch_size,
            max_num_tokens=recipe.max_num_tokens,
            max_seq_len=recipe.max_seq_len,
            max_beam_width=recipe.max_beam_width,
        ),
        weight_bytes_per_rank=weight_bytes,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        kv_block_tokens=recipe.kv_block_tokens,
        workspace_bytes=workspace_bytes(recipe, model),
        vocab_size=model.vocab_size,
        step_costs=step_costs(recipe, model),
    )
