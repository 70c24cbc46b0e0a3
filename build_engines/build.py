# SPDX-License-Identifier: Apache-2.0
"""From a job to a release: refuse what cannot work, run the stages, assemble; `trireme build` calls it."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from build_engines.build_job import BuildJob, BuildPlan, backend_of
from build_engines.recipe import hash_recipe
from build_engines.release_assembly import BuiltRelease, assemble
from build_engines.stages import Command, StageWatcher, run_stages
from build_engines.work_folder import WorkFolder
from ensemble_configs.errors import BuildError, SpecError
from ensemble_configs.finding import Finding

LOGS = ".logs"


def refuse_job(job: BuildJob) -> None:
    """Check a job against everything that is known before any work.

    Raises:
        SpecError: it names every finding, one after the other.
    """
    findings = backend_of(job.recipe).check(job)
    if findings:
        raise SpecError(
            f"{job.recipe.name} cannot be built: {listing(findings)}", field=findings[0].check, count=len(findings)
        )


def listing(findings: Sequence[Finding]) -> str:
    """All findings in a line, numbered where there are several."""
    if len(findings) == 1:
        return str(findings[0])
    return " ".join(f"({number}) {finding};" for number, finding in enumerate(findings, 1)).rstrip(";")


def build(
    job: BuildJob, out: Path, watcher: StageWatcher, *, is_resumed: bool = False, lock_wait_s: float = 20.0
) -> BuiltRelease:
    """Build a release into `out`.

    Args:
        job: checked by `refuse_job` already.
        out: folder of releases; the work folder is in it, too.
        watcher: told how it goes.
        is_resumed: use what an earlier build that did not finish has left.
        lock_wait_s: how long what is left of a killed build may take to be gone.

    Raises:
        BuildError: an unfinished build is there and `is_resumed` is false, a stage failed, or the disk has no room.
        SpecError: what the tools made is no release.
    """
    path = WorkFolder.at(out, hash_recipe(job.recipe))
    with WorkFolder.open(path, wait_s=lock_wait_s) as work:
        done = work.finished()
        if done and not is_resumed:
            raise BuildError(
                f"an unfinished build of this recipe lies in {path}, with finished stages: {', '.join(done)}; go on "
                f"from there with --resume, or start anew after `rm -r {path}`",
                file=path,
            )
        plan = backend_of(job.recipe).plan(job)
        _link(plan, work)
        stamps = run_stages(plan.stages, work, watcher)
        release = assemble(plan, stamps, work, name=job.recipe.name, details=_details(job, plan))
        _keep_logs(work, out / LOGS / release.path.name)
        work.remove()
    return release


def _link(plan: BuildPlan, work: WorkFolder) -> None:
    for name, target in plan.links.items():
        link = work.path / name
        link.unlink(missing_ok=True)
        link.symlink_to(target.resolve())


def _details(job: BuildJob, plan: BuildPlan) -> dict[str, JsonValue]:
    commands: dict[str, JsonValue] = {
        stage.name: shlex.join(stage.work.argv) for stage in plan.stages if isinstance(stage.work, Command)
    }
    packages: dict[str, JsonValue] = dict(job.machine.packages)
    gpus: list[JsonValue] = [gpu.name for gpu in job.machine.gpus]
    return {"commands": commands, "checkpoint": str(job.checkpoint.dir), "packages": packages, "gpus": gpus}


def _keep_logs(work: WorkFolder, place: Path) -> None:
    if not work.logs.is_dir():
        return
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    work.logs.rename(place)
