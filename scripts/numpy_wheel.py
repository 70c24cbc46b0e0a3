# SPDX-License-Identifier: Apache-2.0
"""A wheel of the locked numpy 1.x for a Python that has none of it (3.13), compiled once per machine.

It can go when the Triton wheel's stub is built against numpy 2.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trireme.installing.commands import run, say
from trireme.installing.interpreters import Interpreter
from trireme.installing.system_packages import install_or_explain
from trireme.installing.unpacked_lock import UnpackedLock

BUILD_TOOLS = UnpackedLock(".tools/build-numpy", "requirements/build-numpy.txt")


def numpy_wheel(root: Path, python: str, interpreter: Interpreter, *, requirement: str) -> Path:
    """Return the wheel of numpy in `.tools/wheels`, compiled with the pip of `python` if it is not there.

    Args:
        root: the project's folder.
        python: the environment's Python.
        interpreter: what that Python says of itself.
        requirement: the lines of numpy in the lock: its version and its hashes.

    Raises:
        SetupError: no compiler and no way to install one, or the build failed.
    """
    wheels = root / ".tools" / "wheels"
    version = requirement.split(maxsplit=1)[0].partition("==")[2]
    pattern = f"numpy-{version}-cp{interpreter.version[0]}{interpreter.version[1]}-*.whl"
    if not any(wheels.glob(pattern)):
        require_compiler(interpreter)
        say(f"compiling numpy {version}, which has no wheel for Python {interpreter.feature_version}: a few minutes")
        build(root, python, requirement, wheels)
    return next(wheels.glob(pattern))


def require_compiler(interpreter: Interpreter) -> None:
    """Install a C++ compiler and Python's headers where the user may.

    Raises:
        SetupError: the user may not; the message says how.
    """
    missing = [] if shutil.which("cc") and shutil.which("c++") else ["build-essential"]
    if not interpreter.has_headers:
        missing.append(f"python{interpreter.feature_version}-dev")
    if missing:
        why = f"numpy has to be compiled for Python {interpreter.feature_version} (not for 3.11 and 3.12)"
        install_or_explain(*missing, why=why)


def build(root: Path, python: str, requirement: str, wheels: Path) -> None:
    """Compile with the locked build tools, in a folder that is renamed when it is done."""
    work = root / ".tools" / "numpy.partial"
    shutil.rmtree(work, ignore_errors=True)
    (work / "wheels").mkdir(parents=True)
    (work / "numpy.txt").write_text(requirement, encoding="utf-8")
    BUILD_TOOLS.unpack(root, python=Path(python))
    tools = root / BUILD_TOOLS.directory
    run(
        [
            *(python, "-m", "pip", "wheel", "--disable-pip-version-check", "--require-hashes", "--no-deps"),
            *("--progress-bar", "off", "--no-binary", "numpy", "--no-build-isolation"),
            *("-w", str(work / "wheels"), "-r", str(work / "numpy.txt")),
        ],
        root=root,
        doing="compiling numpy",
        environment={"PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"},
    )
    shutil.rmtree(wheels, ignore_errors=True)
    (work / "wheels").rename(wheels)
    shutil.rmtree(work)
    shutil.rmtree(tools)
