# SPDX-License-Identifier: Apache-2.0
"""Unpacks rclone and what it mounts with into `.tools/rclone`, from the distribution's packages; needs no root.

`benchmarks.release_pull` mounts a bucket with it. Where apt has no such package nothing is installed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from scripts.commands import say
from scripts.system_packages import apt_line, fetch_missing_packages

DIRECTORY = ".tools/rclone"
PACKAGES = ("rclone", "fuse3")
PROGRAMS = ("rclone", "fusermount3")


def folders(root: Path) -> tuple[Path, ...]:
    """Where its programs may lie; all of them can be put on PATH."""
    unpacked = root / DIRECTORY
    return (unpacked / "usr/bin", unpacked / "bin", Path("/usr/bin"), Path("/bin"))


def library_folders(root: Path) -> tuple[Path, ...]:
    """Where unpacked programs find what they are linked to."""
    return tuple(sorted({path.parent for path in (root / DIRECTORY).glob("**/lib*.so*")}))


def is_there(root: Path) -> bool:
    """Whether all programs are."""
    path = os.pathsep.join(map(str, folders(root)))
    return all(shutil.which(name, path=path) for name in PROGRAMS)


def is_current(root: Path) -> bool:
    """Whether all are there, or none can be had in this way."""
    return shutil.which("apt-get") is None or is_there(root)


def prepare(root: Path) -> None:
    """Unpacks the packages; without them the rest of the project works, so nothing fails."""
    say(f"{DIRECTORY}: fetching the packages {' and '.join(PACKAGES)} and what they need (15 MB)")
    for package in PACKAGES:
        fetch_missing_packages(package, root / DIRECTORY, without=())
    if is_there(root):
        say(f"{DIRECTORY}: {' and '.join(PROGRAMS)} are there")
    else:
        say(f"{DIRECTORY}: apt has no such packages here; benchmarks.release_pull needs them. {apt_line(*PACKAGES)}")
