# SPDX-License-Identifier: Apache-2.0
"""Unpacks OpenSSH's client and server into `.tools/openssh`, from the distribution's packages; needs no root.

Tests of `trireme group` run them. What is installed on the machine is taken as it is. Where apt has no such package
nothing is installed, and what needs it is skipped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from scripts.commands import say
from scripts.system_packages import apt_line, fetch_missing_packages

DIRECTORY = ".tools/openssh"
PACKAGES = ("openssh-server", "openssh-client")
PROGRAMS = ("sshd", "ssh", "ssh-keygen")


def folders(root: Path) -> tuple[Path, ...]:
    """Where its programs may lie; all of them can be put on PATH."""
    unpacked = root / DIRECTORY / "usr"
    return (unpacked / "sbin", unpacked / "bin", Path("/usr/sbin"), Path("/usr/bin"))


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
    say(f"{DIRECTORY}: fetching the packages {' and '.join(PACKAGES)} and what they need (2 MB)")
    for package in PACKAGES:
        fetch_missing_packages(package, root / DIRECTORY, without=())
    if is_there(root):
        say(f"{DIRECTORY}: sshd, ssh and ssh-keygen are there")
    else:
        say(f"{DIRECTORY}: apt has no such packages here; what needs them is skipped. {apt_line(*PACKAGES)}")
