# SPDX-License-Identifier: Apache-2.0
"""The way from a job to a release: refuse what cannot work, run the stages, assemble; `trireme build` calls it."""

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from build_engines.checkpoint.checkpoint_check import check_checkpoint
from build_engines.recipes.recipe import hash_recipe
from build_engines.stages.build_job import BuildJob, BuildPlan, backend_of
from build_engines.stages.release_assembly import BuiltRelease, assemble
from build_engines.stages.stage_list import Command, Estimate, Stage, StageWatcher, run_stages
from build_engines.stages.work_folder import WorkFolder
from ensemble_configs.spec.finding import Finding
from trireme.base.errors import BuildError

LOGS = ".logs"
_LOOK_BYTES_PER_S = 1e9  # assumed


def check_job(job: BuildJob) -> list[Finding]:
    """Return every finding against a job, as far as it can be known before any work."""
    return backend_of(job.recipe).check(job)


def plan_job(job: BuildJob) -> BuildPlan:
    """Return the back end's plan, after a check of the whole checkpoint."""
    plan = backend_of(job.recipe).plan(job)
    if job.checkpoint.is_converted:  # upstream's script has written it; it is compared with the recipe by `check_job`
        return plan
    return replace(plan, stages=(_look_stage(job), *plan.stages))


def _look_stage(job: BuildJob) -> Stage:
    def work(folder: Path, _work: Path) -> None:
        checked = check_checkpoint(job.checkpoint.dir)
        facts = {"tensors": len(checked.tensors), "unused": sorted(checked.unused)}
        (folder / "checked.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    num_bytes = job.checkpoint.weight_bytes
    estimate = Estimate(seconds=num_bytes / _LOOK_BYTES_PER_S)
    key: dict[str, JsonValue] = {"checkpoint": job.checkpoint_sha256}
    return Stage("look", "look at every tensor of the checkpoint", work, key=key, estimate=estimate)


def build(
    job: BuildJob,
    out: Path,
    watcher: StageWatcher,
    *,
    is_resumed: bool = False,
    lock_wait_s: float = 20.0,
    on_wait: Callable[[Path], None] | None = None,
) -> BuiltRelease:
    """Build a release into `out`.

    Args:
        job: a job that `check_job` finds nothing against.
        out: folder of releases; the work folder is in it, too.
        watcher: told how the stages go.
        is_resumed: use what an earlier build that did not finish has left.
        lock_wait_s: how long another build of the recipe, or what is left of a killed one, may take to be gone.
        on_wait: called with the work folder, once, if another build has it.

    Raises:
        BuildError: an unfinished build is there and `is_resumed` is false, a stage failed, or the disk has no room.
        SpecError: what the tools made is no release.
    """
    path = WorkFolder.at(out, hash_recipe(job.recipe))
    tell_of_wait = None if on_wait is None else lambda: on_wait(path)
    with WorkFolder.open(path, wait_s=lock_wait_s, on_wait=tell_of_wait) as work:
        done = work.finished()
        if done and not is_resumed:
            raise BuildError(
                f"an unfinished build of this recipe lies in {path}, with finished stages: {', '.join(done)}; go on "
                f"from there with --resume, or start anew after `rm -r {path}`",
                file=path,
            )
        plan = plan_job(job)
        _link(plan, work)
        try:
            stamps = run_stages(plan.stages, work, watcher)
            release = assemble(plan, stamps, work, name=job.recipe.name, details=_details(job, plan))
        finally:
            if not work.finished() and not work.logs.exists():  # nothing in it that anybody could want
                work.remove()
        _keep_logs(work, out / LOGS / release.path.name)
        work.remove()
    return release


def _link(plan: BuildPlan, work: WorkFolder) -> None:
    for name, target in plan.links.items():
        link = work.path / name
        link.unlink(missing_ok=True)
        link.symlink_to(target.resolve())


def _details(job: BuildJob, plan: BuildPlan) -> dict[str, JsonValue]:
    return {
        "commands": {one.name: shlex.join(one.work.argv) for one in plan.stages if isinstance(one.work, Command)},
        "checkpoint": str(job.checkpoint.dir),
        "packages": {**job.machine.packages},
        "gpus": [gpu.name for gpu in job.machine.gpus],
    }


def _keep_logs(work: WorkFolder, place: Path) -> None:
    if not work.logs.is_dir():
        return
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    work.logs.rename(place)
