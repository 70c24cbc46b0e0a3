# SPDX-License-Identifier: Apache-2.0
"""Folders that hold what is in the wheels of a lock, for programs and libraries that are run apart from any environment
and whose pins would fight one.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from scripts.commands import run, say
from scripts.environments import ENVIRONMENTS, digest, python_of

STAMP = "trireme-setup.json"


@dataclass(frozen=True)
class UnpackedLock:
    """A folder and the lock that says what is in it, dependencies not included."""

    directory: str
    lock: str

    def is_current(self, root: Path) -> bool:
        """Whether the locked wheels are unpacked; the stamp is in the folder before the folder has its name."""
        try:
            return (root / self.directory / STAMP).read_text(encoding="utf-8") == digest(root / self.lock)
        except OSError:
            return False

    def unpack(self, root: Path) -> None:
        """Unpacks the wheels beside their place and moves them there when they are complete.

        Raises:
            SetupError: a download failed.
        """
        partial = root / f"{self.directory}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        say(f"{self.directory}: unpacking {self.lock}")
        python = str(python_of(root, ENVIRONMENTS["venv"]))
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        options = ["--require-hashes", "--only-binary", ":all:", "--progress-bar", "off", "--target", str(partial)]
        run([*command, *options, "-r", self.lock], root=root, doing=f"unpacking {self.lock}")
        (partial / STAMP).write_text(digest(root / self.lock), encoding="utf-8")
        replace_directory(partial, root / self.directory)


def replace_directory(new: Path, place: Path) -> None:
    """Puts a finished folder in its place; what was there is moved aside first, so that there is never a mixture."""
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
