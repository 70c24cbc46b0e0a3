# SPDX-License-Identifier: Apache-2.0
"""The plan of a build, as text or JSON: the exact commands in order, with estimates; nothing is run."""

import shlex
from dataclasses import asdict
from pathlib import Path

from build_engines.recipes.recipe import hash_recipe
from build_engines.stages.build_job import BuildJob, BuildPlan
from build_engines.stages.stage_list import Command, Estimate, Stage, size_text
from build_engines.stages.work_folder import WorkFolder
from trireme.base.durations import duration


def plan_document(job: BuildJob, plan: BuildPlan, out: Path) -> dict[str, object]:
    """Return the plan as data; `argv` is null where a stage is code of ours."""
    sha256 = hash_recipe(job.recipe)
    return {
        "recipe": job.recipe.name,
        "recipe_sha256": sha256,
        "checkpoint": str(job.checkpoint.dir),
        "work_dir": str(WorkFolder.at(out, sha256)),
        "links": {name: str(path) for name, path in plan.links.items()},
        "stages": [_stage_document(stage) for stage in plan.stages],
        "notes": plan.notes,
    }


def _stage_document(stage: Stage) -> dict[str, object]:
    command = stage.work if isinstance(stage.work, Command) else None
    return {
        "name": stage.name,
        "title": stage.title,
        "argv": None if command is None else command.argv,
        "env": {} if command is None else dict(command.env),
        "estimate": asdict(stage.estimate) | {"seconds": round(stage.estimate.seconds, 1)},
    }


def plan_text(job: BuildJob, plan: BuildPlan, out: Path) -> str:
    """Return the plan for people; from `cd` on, each line that is indented by two could be typed."""
    folder = WorkFolder.at(out, hash_recipe(job.recipe))
    total = len(plan.stages)
    lines = [f"{job.recipe.name}: what would be done, in {total} stages; nothing has been run", ""]
    lines += [f"  mkdir -p {shlex.quote(str(folder))} && cd {shlex.quote(str(folder))}"]
    lines += [f"  ln -s {shlex.quote(str(path.resolve()))} {name}" for name, path in plan.links.items()]
    for number, stage in enumerate(plan.stages, 1):
        lines += ["", f"[{number}/{total}] {stage.name}: {stage.title}"]
        if isinstance(stage.work, Command):
            lines += [f"  {_typed(stage.work)}", f"  mv {stage.name}.partial {stage.name}"]
        if text := estimate_text(stage.estimate):
            lines.append(f"  # estimated: {text}")
    whole = [stage.estimate for stage in plan.stages]
    summary = Estimate(
        disk_bytes=sum(each.disk_bytes for each in whole),
        host_bytes=max(each.host_bytes for each in whole),
        gpu_bytes=max(each.gpu_bytes for each in whole),
        seconds=sum(each.seconds for each in whole),
    )
    lines += ["", f"altogether, estimated from bytes and assumed rates: {estimate_text(summary)}"]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _typed(command: Command) -> str:
    """Return a command as a shell takes it, with its own environment variables."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in command.env.items()]
    return " ".join([*settings, shlex.join(command.argv)])


def estimate_text(estimate: Estimate) -> str:
    """Return an estimate in words, negligible parts left out."""
    parts = (
        (estimate.disk_bytes, f"{size_text(estimate.disk_bytes)} of disk"),
        (estimate.host_bytes, f"{size_text(estimate.host_bytes)} of host memory"),
        (estimate.gpu_bytes, f"{size_text(estimate.gpu_bytes)} on a GPU"),
        (estimate.seconds, duration(estimate.seconds)),
    )
    return ", ".join(text for value, text in parts if value)
