# SPDX-License-Identifier: Apache-2.0
"""Builds that end before each single change that they make to the disk, as by kill -9, and go on from there.

    python crashing_builds.py FOLDER [--every N]

Prints how many moments there were. Each build is a fork of this process, so that hundreds take seconds. It ends with
an AssertionError where a resumed build is not the same, or something half done could be taken for a release.
"""

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from demo_release import DEMO_MODEL

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.recipes.recipe import load_recipe
from build_engines.stages import build_job
from build_engines.stages.build import build
from build_engines.stages.build_job import BuildJob
from build_engines.stages.stage_list import Stage
from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.release_manifest import PROVENANCE_FILE, verify

_CHANGES = ("os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
_KILLED = 137


class Silent:
    """A watcher that says nothing."""

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        """Do nothing."""

    def stage_finished(self, number: int, total: int, stage: Stage, duration_s: float, *, is_reused: bool) -> None:
        """Do nothing."""

    def stage_failed(self, number: int, total: int, stage: Stage, log: Path | None, tail: Sequence[str]) -> None:
        """Do nothing."""


def one_build(out: Path, *, dies_before: int | None) -> None:
    """Build into `out`, and end this process before the given change to it, counted from 1."""
    job = BuildJob(load_recipe("demo-int8"), CheckpointFiles(DEMO_MODEL / "target"), Machine(free_host_bytes=1 << 34))
    count = itertools.count(1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        concerns_out = any(str(out) in os.fsdecode(each) for each in arguments if isinstance(each, str | bytes | Path))
        is_below = event in ("os.remove", "os.rmdir", "os.mkdir")  # rmtree names files from the folder it is in
        if (event in _CHANGES or is_write) and (concerns_out or is_below) and next(count) == dies_before:
            os._exit(_KILLED)

    if dies_before is not None:
        sys.addaudithook(watch)
    build(job, out, Silent(), is_resumed=True, lock_wait_s=0)


def in_a_fork(work: Callable[[], None]) -> int:
    """Do work in a fork; return its exit status: 0, or 137 where it was ended on the way."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def content(release: Path) -> dict[str, bytes]:
    """Return every file that counts, by its path."""
    files = (path for path in release.rglob("*") if path.is_file() and path.name != PROVENANCE_FILE)
    return {path.relative_to(release).as_posix(): path.read_bytes() for path in files}


def visible(out: Path) -> list[Path]:
    """Return the folders that a user would take for a release."""
    return [path for path in out.iterdir() if not path.name.startswith(".")] if out.is_dir() else []


def main() -> None:
    """Die at each moment, in a folder of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take each Nth moment")
    options = parser.parse_args()
    build_job.BACKENDS["openvino"] = "plain_backend"
    whole = options.folder / "whole"
    assert in_a_fork(lambda: one_build(whole, dies_before=None)) == 0
    (undisturbed,) = visible(whole)
    for moment in itertools.count(1, options.every):
        out = options.folder / f"died-{moment}"
        status = in_a_fork(lambda: one_build(out, dies_before=moment))  # noqa: B023 - called at once
        for release in visible(out):
            verify(release)
        if status == 0:
            sys.stdout.write(f"{moment}\n")
            return
        assert status == _KILLED, (moment, status)
        assert in_a_fork(lambda: one_build(out, dies_before=None)) == 0, moment  # noqa: B023
        (release,) = visible(out)
        assert release.name == undisturbed.name, moment
        assert content(release) == content(undisturbed), moment
        assert {path.name for path in out.iterdir()} <= {release.name, ".logs"}, moment
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
