# SPDX-License-Identifier: Apache-2.0
"""What stands in the way of a build for OpenVINO, found out before any work."""

import os

from build_engines.build_job import BuildJob
from build_engines.checkpoint_files import CheckpointFiles
from build_engines.openvino_environment import build_python
from build_engines.openvino_formats import draft_recipe, kv_bytes_per_token, openvino_bytes
from build_engines.recipe import OpenVinoRecipe
from build_engines.recipe_parts import DraftModelSpec
from ensemble_configs.errors import SpecError
from ensemble_configs.file_hashes import hash_file
from ensemble_configs.finding import Finding


def check(job: BuildJob) -> list[Finding]:
    """What stands in the way of this job."""
    assert isinstance(job.recipe, OpenVinoRecipe)
    recipe, findings = job.recipe, []
    if not job.is_dry_run and build_python() is None:
        next_step = "python3 scripts/bootstrap.py --only build-cpu"
        findings.append(_finding("environment", "no nncf", "torch, optimum-intel and nncf", next_step))
    findings += _check_model(job.checkpoint, recipe)
    longest = job.checkpoint.shape.max_position_embeddings
    if recipe.max_seq_len > longest:
        findings.append(_finding("max_seq_len", recipe.max_seq_len, f"at most {longest}, the model's", "lower it"))
    findings += _check_calibration(recipe)
    if recipe.draft is not None:
        findings += _check_draft(job.checkpoint, recipe, recipe.draft)
    return findings


def _check_model(checkpoint: CheckpointFiles, recipe: OpenVinoRecipe) -> list[Finding]:
    findings = []
    try:
        openvino_bytes(checkpoint.shape, recipe)
        kv_bytes_per_token(checkpoint.shape, recipe)
    except SpecError as exc:
        findings.append(_finding("recipe", exc.message, "formats that OpenVINO has", "change the recipe"))
    if "quantization_config" in checkpoint.config:
        findings.append(
            _finding("checkpoint", "quantized already", "weights in 16 or 32 bits", "name the original checkpoint")
        )
    if not checkpoint.weight_files:
        findings.append(_finding("checkpoint", "no .safetensors", "weights", f"look into {checkpoint.dir}"))
    if not (checkpoint.dir / "tokenizer.json").is_file():
        next_step = "AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes it"
        findings.append(_finding("tokenizer", "no tokenizer.json", "the model's tokenizer", next_step))
    return findings


def _check_calibration(recipe: OpenVinoRecipe) -> list[Finding]:
    given = recipe.calibration
    if given is None:
        return []
    if given.file is None:
        return [_finding("calibration", f"dataset {given.dataset!r}", "a file", "set calibration.file and its sha256")]
    if not given.file.is_file() or not os.access(given.file, os.R_OK):
        return [_finding("calibration", f"no {given.file}", "a file", "put it there, or name another one")]
    found = hash_file(given.file)
    if found != given.sha256:
        next_step = "take the file that the recipe means, or change the recipe"
        return [_finding("calibration", f"SHA-256 {found}", given.sha256, next_step)]
    return []


def _check_draft(checkpoint: CheckpointFiles, recipe: OpenVinoRecipe, draft: DraftModelSpec) -> list[Finding]:
    files = CheckpointFiles(draft.dir)
    try:
        vocab_size = files.shape.vocab_size
    except SpecError as exc:
        return [_finding("draft", exc.message, "a checkpoint", "name another folder in draft.dir")]
    findings = _check_model(files, draft_recipe(recipe, draft))
    ours, theirs = (folder / "tokenizer.json" for folder in (checkpoint.dir, draft.dir))
    if vocab_size != checkpoint.shape.vocab_size:
        wanted = f"vocab_size {checkpoint.shape.vocab_size}"
        findings.append(_finding("draft", f"vocab_size {vocab_size}", wanted, "take a draft of the same tokenizer"))
    elif ours.is_file() and theirs.is_file() and hash_file(ours) != hash_file(theirs):
        findings.append(
            _finding("draft", "another tokenizer.json", "the model's own", "take a draft of the same tokenizer")
        )
    return findings


def _finding(check: str, found: object, wanted: object, next_step: str) -> Finding:
    return Finding(check=check, found=str(found), wanted=str(wanted), next_step=next_step)
