# SPDX-License-Identifier: Apache-2.0
"""A build as a list of stages, each run once: what is finished is kept and found again by the hash of what made it.

A stage reads what stages before it have left, in ``<work folder>/<stage>/``, and writes to ``<stage>.partial/``, which
gets its name when it is whole (`build_engines.stages.work_folder`). Commands run in the work folder and name files from
there, so that nothing of where a build ran gets into what it made.
"""

import errno
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from build_engines.stages.stage_process import CommandFailed, run_command
from build_engines.stages.work_folder import Stamp, WorkFolder
from trireme.base.errors import BuildError

_GIB = 1 << 30
# Below this a disk counts as full when a stage has failed.
_FULL_BYTES = 64 << 20


@dataclass(frozen=True)
class Estimate:
    """The expected costs of a stage; 0: negligible."""

    disk_bytes: int = 0  # of its outputs
    host_bytes: int = 0  # memory of the machine
    gpu_bytes: int = 0  # memory of the fullest GPU
    seconds: float = 0.0


@dataclass(frozen=True)
class Command:
    """A program with its arguments, run in the work folder."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


# Gets the folder to write to and that of the build; raises BuildError or OSError.
Work = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Stage:
    """A stage of a build.

    Attributes:
        name: also the name of the folder with its outputs.
        title: what the stage does, for people.
        work: the command, or a function of (folder for the outputs, work folder).
        key: everything that the outputs depend on besides the outputs of the stages in `after`: settings, hashes of
            files, versions of tools.
        after: stages whose outputs it reads.
        check: raises BuildError where the outputs are not what they should be, whatever the tool said.
        estimate: for the dry run, and for the disk before anything starts.
    """

    name: str
    title: str
    work: Command | Work
    key: Mapping[str, JsonValue]
    after: tuple[str, ...] = ()
    check: Callable[[Path], None] | None = None
    estimate: Estimate = Estimate()


class StageWatcher(Protocol):
    """A watcher that is told how the stages go."""

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        """Note that a stage begins; `number` counts from 1."""

    def stage_finished(self, number: int, total: int, stage: Stage, duration_s: float, *, is_reused: bool) -> None:
        """Note that a stage's outputs are there."""

    def stage_failed(self, number: int, total: int, stage: Stage, log: Path | None, tail: Sequence[str]) -> None:
        """Note that a stage failed, or was interrupted."""


def run_stages(stages: Sequence[Stage], work: WorkFolder, watcher: StageWatcher) -> dict[str, Stamp]:
    """Run the stages that are not finished yet, in order.

    Returns:
        The stamp of each stage, by name.

    Raises:
        BuildError: a stage failed (those before it are kept), or the disk has no room for what is left to do.
    """
    stamps: dict[str, Stamp] = {}
    has_room = False
    for number, stage in enumerate(stages, 1):
        key = stage_key(stage, stamps)
        stamp = work.reusable(stage.name, key)
        is_reused = stamp is not None
        if stamp is None:
            if not has_room:
                work.discard(stage.name)
                check_disk(stages[number - 1 :], work.path)
                has_room = True
            watcher.stage_started(number, len(stages), stage)
            stamp = _run(stage, key, work, (number, len(stages)), watcher)
        watcher.stage_finished(number, len(stages), stage, stamp.duration_s, is_reused=is_reused)
        stamps[stage.name] = stamp
    return stamps


def stage_key(stage: Stage, before: Mapping[str, Stamp]) -> str:
    """Return the SHA-256 of what a stage's outputs are made from: its own key, and the outputs that it reads."""
    read = {name: before[name].sha256 for name in stage.after}
    text = json.dumps({"stage": stage.name, "key": dict(stage.key), "after": read}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_disk(stages: Sequence[Stage], folder: Path) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        BuildError: the message names what each stage is expected to write.
    """
    needed, free = sum(stage.estimate.disk_bytes for stage in stages), shutil.disk_usage(folder).free
    if needed > free:
        parts = ", ".join(f"{stage.name} {size_text(stage.estimate.disk_bytes)}" for stage in stages)
        raise BuildError(
            f"the disk of {folder.parent} has {size_text(free)} free, and the build is expected to write "
            f"{size_text(needed)} ({parts}); free some, or take another --out",
            file=folder,
        )


def _run(stage: Stage, key: str, work: WorkFolder, place: tuple[int, int], watcher: StageWatcher) -> Stamp:
    number, total = place
    log = work.log(number, stage.name)
    start = time.monotonic()
    tail: Sequence[str] = ()
    try:
        partial = work.begin(stage.name)
        if isinstance(stage.work, Command):
            run_command(stage.work.argv, cwd=work.path, log=log, lock=work.lock, env=stage.work.env)
        else:
            stage.work(partial, work.path)
        if stage.check is not None:
            stage.check(partial)
        stamp = work.finish(stage.name, key, time.monotonic() - start)
    except (BuildError, OSError) as exc:
        free = shutil.disk_usage(work.path).free
        tail = exc.tail if isinstance(exc, CommandFailed) else ()
        work.discard(stage.name)  # gives the disk back what it wrote
        watcher.stage_failed(number, total, stage, log if log.exists() else None, tail)
        raise _failure(stage, exc, work, log, free) from exc
    except BaseException:
        work.discard(stage.name)
        watcher.stage_failed(number, total, stage, None, ())
        raise
    return stamp


def _failure(stage: Stage, cause: BuildError | OSError, work: WorkFolder, log: Path, free: int) -> BuildError:
    is_full = free < _FULL_BYTES or _says_full(cause)
    what = cause.message if isinstance(cause, BuildError) else str(cause)
    parts = [f"stage {stage.name} failed: {what}"]
    if is_full:
        parts.append(f"the disk of {work.path.parent} is full ({size_text(free)} were free); free some")
    if log.exists():
        parts.append(f"its log is {log}")
    done = work.finished()
    parts.append(
        f"what is finished is kept ({', '.join(done) or 'nothing yet'}): go on with --resume when it is mended"
    )
    return BuildError("; ".join(parts), stage=stage.name, log=log if log.exists() else None)


def _says_full(cause: BaseException) -> bool:
    if isinstance(cause, CommandFailed):
        return any("No space left on device" in line or "File too large" in line for line in cause.tail)
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def size_text(num_bytes: int) -> str:
    """Return bytes for people: 5.4 GiB, and 110.3 MiB where it is less than one GiB."""
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / (1 << 20):.1f} MiB"
