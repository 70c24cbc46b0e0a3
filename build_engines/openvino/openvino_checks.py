# SPDX-License-Identifier: Apache-2.0
"""Findings about a build for OpenVINO, before any work."""

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.openvino.openvino_environment import ENVIRONMENT
from build_engines.openvino.openvino_formats import draft_recipe, kv_bytes_per_token, openvino_bytes
from build_engines.recipes.calibration_file import check_calibration_file
from build_engines.recipes.recipe import OpenVinoRecipe
from build_engines.recipes.recipe_checks import check_recipe
from build_engines.recipes.recipe_parts import DraftModelSpec
from build_engines.stages.build_job import BuildJob
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import SpecError


def check(job: BuildJob) -> list[Finding]:
    """Return every finding against this job; for a dry run a config.json is checkpoint enough."""
    assert isinstance(job.recipe, OpenVinoRecipe)
    recipe, findings = job.recipe, []
    try:
        shape = job.checkpoint.shape
    except SpecError as exc:
        return [_finding("checkpoint", exc.message, "a model that is known here", "name another --checkpoint")]
    if not job.is_dry_run and ENVIRONMENT.found() is None:
        next_step = "in a checkout: python3 scripts/bootstrap.py --only build-cpu"
        findings.append(_finding("environment", "no nncf", "torch, optimum-intel and nncf", next_step))
    findings += _check_model(job.checkpoint, recipe, is_dry_run=job.is_dry_run)
    findings += check_recipe(recipe, shape, None)
    findings += _check_calibration(recipe)
    if recipe.draft is not None:
        findings += _check_draft(job.checkpoint, recipe, recipe.draft, is_dry_run=job.is_dry_run)
    return findings


def _check_model(checkpoint: CheckpointFiles, recipe: OpenVinoRecipe, *, is_dry_run: bool) -> list[Finding]:
    findings = []
    try:
        openvino_bytes(checkpoint.shape, recipe)
        kv_bytes_per_token(checkpoint.shape, recipe)
    except SpecError as exc:
        findings.append(_finding("recipe", exc.message, "formats that OpenVINO has", "change the recipe"))
    if checkpoint.is_converted or "quantization_config" in checkpoint.config:
        found = "converted for TensorRT-LLM" if checkpoint.is_converted else "quantized already"
        findings.append(_finding("checkpoint", found, "weights in 16 or 32 bits", "name the original checkpoint"))
    if is_dry_run:
        return findings
    if not checkpoint.weight_files:
        next_step = f"save the model as safetensors in {checkpoint.dir}"
        findings.append(_finding("checkpoint", "no .safetensors", "weights", next_step))
    if not (checkpoint.dir / "tokenizer.json").is_file():
        next_step = "AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes it"
        findings.append(_finding("tokenizer", "no tokenizer.json", "the model's tokenizer", next_step))
    return findings


def _check_calibration(recipe: OpenVinoRecipe) -> list[Finding]:
    given = recipe.calibration
    if given is not None and given.file is None:
        next_step = "set calibration.file and its sha256: nothing is fetched"
        return [_finding("calibration.dataset", given.dataset, "a file", next_step)]
    return list(check_calibration_file(given))


def _check_draft(
    checkpoint: CheckpointFiles, recipe: OpenVinoRecipe, draft: DraftModelSpec, *, is_dry_run: bool
) -> list[Finding]:
    files = CheckpointFiles(draft.dir)
    try:
        vocab_size = files.shape.vocab_size
    except SpecError as exc:
        return [_finding("draft", exc.message, "a checkpoint", "name another folder in draft.dir")]
    findings = _check_model(files, draft_recipe(recipe, draft), is_dry_run=is_dry_run)
    ours, theirs = (folder / "tokenizer.json" for folder in (checkpoint.dir, draft.dir))
    next_step = "take a draft of the same tokenizer"
    if vocab_size != checkpoint.shape.vocab_size:
        wanted = f"vocab_size {checkpoint.shape.vocab_size}"
        findings.append(_finding("draft", f"vocab_size {vocab_size}", wanted, next_step))
    elif ours.is_file() and theirs.is_file() and hash_file(ours) != hash_file(theirs):
        findings.append(_finding("draft", "another tokenizer.json", "the model's own", next_step))
    return findings


def _finding(check: str, found: object, wanted: object, next_step: str) -> Finding:
    return Finding(check=check, found=str(found), wanted=str(wanted), next_step=next_step)
