# SPDX-License-Identifier: Apache-2.0
"""Folders with the contents of a lock's wheels, for programs and libraries that run apart from any environment.

Their pins would fight those of an environment.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from trireme.installing.commands import run, say

STAMP = "trireme-setup.json"


@dataclass(frozen=True)
class UnpackedLock:
    """A folder and the lock that lists its wheels, dependencies not included."""

    directory: str
    lock: str

    def is_current(self, root: Path) -> bool:
        """Return whether the locked wheels are unpacked; the stamp is in the folder before the folder has its name."""
        try:
            return (root / self.directory / STAMP).read_text(encoding="utf-8") == digest(root / self.lock)
        except OSError:
            return False

    def unpack(self, root: Path, *, python: Path, shows_output: bool = False) -> None:
        """Unpack the wheels beside their place and move them there when they are complete.

        Args:
            root: the folder that `directory` and `lock` are relative to.
            python: an interpreter that has pip, of the version that the wheels are for.
            shows_output: pip writes to this process's standard error, with a progress bar where that is a terminal.

        Raises:
            SetupError: a download failed.
        """
        partial = root / f"{self.directory}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        say(f"{self.directory}: unpacking {self.lock}")
        bar = "on" if shows_output else "off"
        command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        options = ["--require-hashes", "--only-binary", ":all:", "--progress-bar", bar, "--target", str(partial)]
        doing = f"unpacking {self.lock}"
        run([*command, *options, "-r", self.lock], root=root, doing=doing, shows_output=shows_output)
        (partial / STAMP).write_text(digest(root / self.lock), encoding="utf-8")
        replace_directory(partial, root / self.directory)


def digest(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def replace_directory(new: Path, place: Path) -> None:
    """Put a finished folder in its place; what was there is moved aside first, so that there is never a mixture."""
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
