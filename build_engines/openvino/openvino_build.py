# SPDX-License-Identifier: Apache-2.0
"""The `openvino` back end of `trireme build`: a checkpoint becomes IR for the CPU, with tokenizer and draft model.

The stages run in the environment `build-cpu`, which has torch, optimum-intel and nncf; nothing is fetched.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from build_engines.checkpoint.checkpoint_check import check_checkpoint
from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.weight_table import num_parameters
from build_engines.openvino.openvino_checks import check
from build_engines.openvino.openvino_environment import ENVIRONMENT
from build_engines.openvino.openvino_formats import draft_recipe, ir_formats, kv_bytes_per_token, openvino_bytes
from build_engines.recipes.recipe import OpenVinoRecipe, hash_recipe, recipe_document
from build_engines.stages.build_job import SOURCE, BuildJob, BuildPlan
from build_engines.stages.stage_list import Estimate, Stage
from ensemble_configs.releases.file_hashes import hash_file
from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.releases.release_parts import DraftModel, ModelIdentity, ReleaseLimits

__all__ = ["check", "plan"]

DRAFT_SOURCE = "draft_source"
CALIBRATION = "calibration"
_START_S = 15.0  # imports, and tracing
_BYTES_PER_S = 100e6
_PROGRAM_BYTES = 600 << 20  # Python with torch, OpenVINO and nncf; measured: 575 MB resident


def plan(job: BuildJob) -> BuildPlan:
    """Return the stages: export, compress and convert the tokenizer, for the model and for its draft."""
    recipe, versions = _recipe(job), {} if job.is_dry_run else ENVIRONMENT.versions()
    links = {SOURCE: job.checkpoint.dir}
    if recipe.calibration is not None and recipe.calibration.file is not None:
        links[CALIBRATION + recipe.calibration.file.suffix] = recipe.calibration.file
    base: dict[str, JsonValue] = {"versions": dict(versions), "checkpoint": job.checkpoint_sha256}
    weights = _weight_stages("", recipe, job.checkpoint, SOURCE, base)
    stages = [*weights, _tokenizer_stage(base), _tokenizer_files_stage(job.checkpoint, base)]
    parts = {weights[-1].name: "engine", "tokenizer": "engine", "tokenizer_files": "tokenizer"}
    draft: CheckpointFiles | None = None
    if recipe.draft is not None:
        draft = CheckpointFiles(recipe.draft.dir)
        links[DRAFT_SOURCE] = draft.dir
        key: dict[str, JsonValue] = base | {"checkpoint": "" if job.is_dry_run else draft.sha256}
        drafts = _weight_stages("draft_", draft_recipe(recipe, recipe.draft), draft, DRAFT_SOURCE, key)
        stages += [_draft_look_stage(draft, key), *drafts, _draft_tokenizer_stage()]
        parts |= {drafts[-1].name: "draft", "draft_tokenizer": "draft"}
    shape = job.checkpoint.shape
    return BuildPlan(
        stages=tuple(stages),
        parts=parts,
        describe=lambda folder: _describe(folder, job.checkpoint, draft, recipe, versions),
        links=links,
        notes=(
            f"weights: {openvino_bytes(shape, recipe) / 1e6:.1f} MB, "
            f"KV cache: {kv_bytes_per_token(shape, recipe)} bytes a token",
        ),
    )


def _recipe(job: BuildJob) -> OpenVinoRecipe:
    assert isinstance(job.recipe, OpenVinoRecipe)
    return job.recipe


def _weight_stages(
    prefix: str, recipe: OpenVinoRecipe, checkpoint: CheckpointFiles, source: str, key: Mapping[str, JsonValue]
) -> list[Stage]:
    """Return the stages that export and, unless all weights keep 16 bits, compress; the last one leaves the model."""
    shape, export, compress = checkpoint.shape, f"{prefix}export", f"{prefix}compress"
    whole = openvino_bytes(shape, recipe.model_copy(update=_WHOLE))
    dtype = "bf16" if shape.dtype == "bfloat16" else "fp16"
    argv = ["--checkpoint", source, "--out", f"{export}.partial", "--dtype", dtype, "--kv", recipe.kv_format]
    stages = [
        Stage(
            name=export,
            title=f"export {checkpoint.dir.name} to IR, weights in {dtype}",
            work=ENVIRONMENT.command("openvino.openvino_export", argv),
            key={**key, "dtype": dtype, "kv": recipe.kv_format},
            estimate=Estimate(2 * whole, _PROGRAM_BYTES + 3 * whole, seconds=_START_S + whole / _BYTES_PER_S),
        )
    ]
    formats = ir_formats(shape, recipe)
    if {formats.linear, formats.embedding, formats.head} != {"fp16"}:
        options = [
            *("--linear", formats.linear, "--embedding", formats.embedding, "--head", formats.head),
            *(("--symmetric",) if recipe.is_symmetric else ()),
            *(("--group-size", str(recipe.group_size)) if recipe.group_size else ()),
            *(("--ratio", str(recipe.ratio)) if recipe.ratio != 1 else ()),
        ]
        settings: dict[str, JsonValue] = {"options": list(options)}
        if recipe.calibration is not None and recipe.calibration.file is not None and formats.linear == "int4":
            given = recipe.calibration
            options += [
                *("--calibration", CALIBRATION + recipe.calibration.file.suffix),
                *("--tokenizer", f"{source}/tokenizer.json"),
                *("--num-samples", str(given.num_samples), "--max-tokens", str(given.max_tokens)),
                *("--seed", str(given.seed)),
                *(("--awq",) if recipe.is_awq else ()),
                *(("--data-aware",) if recipe.is_data_aware else ()),
            ]
            settings = {"options": list(options), "calibration": given.sha256}
        size = openvino_bytes(shape, recipe)
        argv = ["--model", export, "--out", f"{compress}.partial", *options]
        seconds = _START_S + (10 if "--calibration" in options else 1) * whole / _BYTES_PER_S
        stages.append(
            Stage(
                name=compress,
                title=f"quantize to {formats.linear}, embedding {formats.embedding}, head {formats.head}",
                work=ENVIRONMENT.command("openvino.openvino_compress", argv),
                key={"versions": key["versions"], **settings},
                after=(export,),
                estimate=Estimate(size, _PROGRAM_BYTES + 2 * whole, seconds=seconds),
            )
        )
    return stages


_WHOLE: dict[str, object] = {"format": "fp16", "embedding_format": "fp16", "head_format": "fp16", "ratio": 1.0}


def _tokenizer_stage(key: Mapping[str, JsonValue]) -> Stage:
    return Stage(
        name="tokenizer",
        title="convert the tokenizer to IR",
        work=ENVIRONMENT.command("openvino.openvino_tokenizer", ["--checkpoint", SOURCE, "--out", "tokenizer.partial"]),
        key=key,
        estimate=Estimate(disk_bytes=64 << 20, host_bytes=_PROGRAM_BYTES, seconds=_START_S),
    )


def _tokenizer_files_stage(checkpoint: CheckpointFiles, key: Mapping[str, JsonValue]) -> Stage:
    def copy(partial: Path, _: Path) -> None:
        for path in checkpoint.tokenizer_files:
            shutil.copyfile(path, partial / path.name)

    return Stage(name="tokenizer_files", title="copy the tokenizer", work=copy, key=key)


def _draft_look_stage(draft: CheckpointFiles, key: Mapping[str, JsonValue]) -> Stage:
    def look(_partial: Path, _work: Path) -> None:
        check_checkpoint(draft.dir)

    return Stage(name="draft_look", title="look at every tensor of the draft", work=look, key=key)


def _draft_tokenizer_stage() -> Stage:
    def copy(partial: Path, work: Path) -> None:
        for path in sorted((work / "tokenizer").iterdir()):
            shutil.copyfile(path, partial / path.name)

    return Stage(
        name="draft_tokenizer", title="the same tokenizer for the draft", work=copy, key={}, after=("tokenizer",)
    )


def _describe(
    folder: Path,
    checkpoint: CheckpointFiles,
    draft: CheckpointFiles | None,
    recipe: OpenVinoRecipe,
    versions: Mapping[str, str],
) -> ReleaseManifest:
    drafting = None
    if draft is not None and recipe.draft is not None:
        drafting = DraftModel(
            model=_identity(draft, recipe.draft.dir.name),
            weights_sha256=draft.weights_sha256,
            weight_bytes_per_rank=_weight_bytes(folder / "draft"),
            kv_bytes_per_token=kv_bytes_per_token(draft.shape, recipe),
        )
    return ReleaseManifest(
        name=recipe.name,
        model=_identity(checkpoint, recipe.model),
        weights_sha256=checkpoint.weights_sha256,
        tokenizer_sha256=hash_file(folder / "tokenizer" / "tokenizer.json"),
        recipe_sha256=hash_recipe(recipe),
        recipe=recipe_document(recipe),
        provider="openvino",
        versions=dict(versions),
        limits=ReleaseLimits(
            max_batch_size=recipe.max_batch_size, max_num_tokens=recipe.max_num_tokens, max_seq_len=recipe.max_seq_len
        ),
        weight_bytes_per_rank=_weight_bytes(folder / "engine"),
        kv_bytes_per_token=kv_bytes_per_token(checkpoint.shape, recipe),
        vocab_size=checkpoint.shape.vocab_size,
        draft=drafting,
    )


def _identity(checkpoint: CheckpointFiles, source: str) -> ModelIdentity:
    shape = checkpoint.shape
    return ModelIdentity(architecture=shape.architecture, num_parameters=num_parameters(shape), source=source)


def _weight_bytes(engine: Path) -> int:
    return (engine / "openvino_model.bin").stat().st_size
