# SPDX-License-Identifier: Apache-2.0
"""The wheels that `scripts/gpu_image.py` adds to NVIDIA's image, in `.tools/gpu-image-wheels`.

Tests install them into a stand-in of the image, which is `.tools/gpu-base`, without a network.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from scripts.environments import ENVIRONMENTS, lock_blocks, locked_names, python_of, version_of
from trireme.installing.commands import run, say
from trireme.installing.unpacked_lock import STAMP, digest, replace_directory

DIRECTORY = ".tools/gpu-image-wheels"
LOCKS = ("requirements/gpu-image.txt", "requirements/gpu-image-in-front.txt")
BASE_LOCK = "requirements/gpu-base.txt"


def is_current(root: Path) -> bool:
    """Return whether the files of these locks are there, for the Python that stands for the image's."""
    try:
        return (root / DIRECTORY / STAMP).read_text(encoding="utf-8") == expected_stamp(root)
    except OSError:
        return False


def expected_stamp(root: Path) -> str:
    """Return the stamp of an up-to-date folder."""
    python = version_of(root, ENVIRONMENTS["gpu-base"]) or "no Python"
    return "\n".join([python, *(digest(root / lock) for lock in (*LOCKS, BASE_LOCK))])


def prepare(root: Path) -> None:
    """Download what the base lacks, every file by its hash.

    Raises:
        SetupError: a download failed.
    """
    behind, in_front = ((root / lock).read_text(encoding="utf-8") for lock in LOCKS)
    there = locked_names((root / BASE_LOCK).read_text(encoding="utf-8"))
    missing = [block for name, block in lock_blocks(behind).items() if name not in there]
    partial = root / f"{DIRECTORY}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wanted = partial / "wanted.txt"
    wanted.write_text("".join([*missing, in_front]), encoding="utf-8")
    say(f"{DIRECTORY}: downloading {len(missing) + 1} packages")
    python = str(python_of(root, ENVIRONMENTS["gpu-base"]))
    command = [python, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    options = ["--only-binary", ":all:", "--progress-bar", "off", "--dest", str(partial), "-r", str(wanted)]
    run([*command, *options], root=root, doing="downloading what the GPU image gets")
    (partial / STAMP).write_text(expected_stamp(root), encoding="utf-8")
    replace_directory(partial, root / DIRECTORY)
