# SPDX-License-Identifier: Apache-2.0
"""A back end of `trireme build` without tools: it copies the demo model's engine, in two stages of plain code."""

import shutil
from pathlib import Path

from demo_release import DEMO_MODEL, demo_manifest

from build_engines.recipes.recipe import hash_recipe, recipe_document
from build_engines.stages.build_job import BuildJob, BuildPlan
from build_engines.stages.stage_list import Stage
from ensemble_configs.spec.finding import Finding


def check(_job: BuildJob) -> list[Finding]:
    """Return no findings."""
    return []


def plan(job: BuildJob) -> BuildPlan:
    """Return two stages: the engine, and the tokenizer."""

    def copy_engine(folder: Path, _work: Path) -> None:
        for file in sorted((DEMO_MODEL / "openvino" / "target").iterdir()):
            shutil.copyfile(file, folder / file.name)

    def copy_tokenizer(folder: Path, work: Path) -> None:
        assert (work / "engine" / "openvino_model.bin").is_file()
        for file in job.checkpoint.tokenizer_files:
            shutil.copyfile(file, folder / file.name)

    document = recipe_document(job.recipe)
    return BuildPlan(
        stages=(
            Stage("engine", "copy", copy_engine, key={"checkpoint": job.checkpoint_sha256}),
            Stage("tokenizer", "copy", copy_tokenizer, key={}, after=("engine",)),
        ),
        parts={"engine": "engine", "tokenizer": "tokenizer"},
        describe=lambda _: demo_manifest(recipe=document, recipe_sha256=hash_recipe(job.recipe)),
        links={"source": job.checkpoint.dir},
    )
