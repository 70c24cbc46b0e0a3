# SPDX-License-Identifier: Apache-2.0
"""Programs of the distribution's packages, unpacked below `.tools`; needs no root.

What is installed on the machine is taken as it is. Where apt has no such package nothing is installed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from trireme.installing.commands import say
from trireme.installing.system_packages import apt_line, fetch_missing_packages


@dataclass(frozen=True)
class UnpackedPrograms:
    """A step of the set-up that unpacks programs, and the place of these programs.

    Args:
        directory: folder for the packages, below the project.
        packages: names in Debian and Ubuntu.
        programs: programs of the packages, which show whether they are unpacked.
        size: size of the download, for a person.
        without_them: what happens to the programs' users without them.
    """

    directory: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    size: str
    without_them: str

    def folders(self, root: Path) -> tuple[Path, ...]:
        """Return the folders of the programs; each can be put on PATH."""
        unpacked = root / self.directory
        return tuple(at / place for at in (unpacked, Path("/")) for place in ("usr/sbin", "usr/bin", "bin"))

    def library_folders(self, root: Path) -> tuple[Path, ...]:
        """Return the folders of the libraries that unpacked programs are linked to."""
        return tuple(sorted({path.parent for path in (root / self.directory).glob("**/lib*.so*")}))

    def is_there(self, root: Path) -> bool:
        """Return whether every program is there."""
        path = os.pathsep.join(map(str, self.folders(root)))
        return all(shutil.which(name, path=path) for name in self.programs)

    def is_current(self, root: Path) -> bool:
        """Return whether every program is there, or none can be had in this way."""
        return shutil.which("apt-get") is None or self.is_there(root)

    def prepare(self, root: Path) -> None:
        """Unpack the packages; without them the rest of the project works, so nothing fails."""
        say(f"{self.directory}: fetching the packages {' and '.join(self.packages)} and what they need ({self.size})")
        for package in self.packages:
            fetch_missing_packages(package, root / self.directory, without=())
        if self.is_there(root):
            say(f"{self.directory}: {', '.join(self.programs)} are there")
        else:
            say(f"{self.directory}: apt has no such packages here; {self.without_them}. {apt_line(*self.packages)}")


OPENSSH = UnpackedPrograms(
    directory=".tools/openssh",
    packages=("openssh-server", "openssh-client"),
    programs=("sshd", "ssh", "ssh-keygen"),
    size="2 MB",
    without_them="tests of `trireme group` are skipped",
)
RCLONE = UnpackedPrograms(
    directory=".tools/rclone",
    packages=("rclone", "fuse3"),
    programs=("rclone", "fusermount3"),
    size="15 MB",
    without_them="benchmarks.studies.release_pull, which mounts a bucket with them, does not run",
)
