# SPDX-License-Identifier: Apache-2.0
"""The installer of the Triton server: its wheel goes to `.tools/triton`, and its Python backend is fitted to a Python.

The folder is a checkout, or one in the user's cache. `installation.json` says what a process needs to start the server;
paths inside the folder are relative to it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from trireme.installing.commands import SetupError, say
from trireme.installing.interpreters import Interpreter, find_library_directory, probe
from trireme.installing.system_packages import apt_line, fetch_package_files
from trireme.installing.unpacked_lock import UnpackedLock, replace_directory

DIRECTORY = ".tools/triton"
LOCK = "requirements/triton.txt"  # of the project


def installation_file(root: Path) -> Path:
    """Return the file that says how to start this machine's Triton."""
    return root / DIRECTORY / "installation.json"


def is_current(root: Path, *, lock: Path, python_version: str | None) -> bool:
    """Return whether the installed Triton is up to date.

    It is if the wheel is the locked one and the backend fits a Python (as in `3.11`) and finds its libpython.
    """
    try:
        installation = json.loads(installation_file(root).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    library = f"libpython{python_version}.so.1.0"
    return (
        UnpackedLock(DIRECTORY, str(lock)).is_current(root)
        and installation["python_version"] == python_version
        and any((root / directory / library).exists() for directory in installation["library_path"])
    )


def prepare(root: Path, *, lock: Path, python: Path, shows_output: bool = False) -> None:
    """Install the server, or only fit its backend to another Python.

    Args:
        root: the folder of `.tools`.
        lock: a requirements file with the server's wheel and its hash.
        python: an interpreter of the environment that serves, which has pip.
        shows_output: the download's progress goes to standard error.

    Raises:
        SetupError: the download failed, or no libpython fits the Python.
    """
    interpreter = probe(str(python))
    if interpreter is None:
        raise SetupError(f"{python} does not run; remove its environment and run it again")
    wheel = UnpackedLock(DIRECTORY, str(lock))
    if not wheel.is_current(root):
        wheel.unpack(root, python=python, shows_output=shows_output)
    libraries = require_library_directory(root, interpreter)
    say(f"{DIRECTORY}: fitting the Python backend to Python {interpreter.feature_version}")
    backends = assemble_backend(root, interpreter)
    write_installation(root, interpreter, backends=backends, libraries=libraries)


def assemble_backend(root: Path, interpreter: Interpreter) -> Path:
    """Make the Python backend with the stub of this Python beside it, where the server looks for it; return its folder.

    Raises:
        SetupError: the wheel has no stub for this Python.
    """
    server = root / DIRECTORY / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / interpreter.feature_version / "triton_python_backend_stub"
    if not stub.is_file():
        raise SetupError(f"the Triton wheel has no stub for Python {interpreter.feature_version}")
    partial = root / DIRECTORY / "backends.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(server / "backends" / "python", partial / "python", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(stub, partial / "python")
    backends = root / DIRECTORY / "backends"
    replace_directory(partial, backends)
    return backends


def require_library_directory(root: Path, interpreter: Interpreter) -> Path:
    """Return the folder of the libpython that the stub is linked to.

    Where the library is missing, it is fetched from the distribution's package.

    Raises:
        SetupError: no library fits; the message says which package to install, or that this Python has none.
    """
    fetched = root / ".tools" / "debian"
    also = tuple(path.parent for path in fetched.glob(f"usr/lib/*/{interpreter.library_name}"))
    found = find_library_directory(interpreter, also=also)
    if found is not None:
        return found
    package = f"libpython{interpreter.feature_version}"
    say(f"{interpreter.library_name} is not installed; fetching the package {package}")
    fetch_package_files((package, f"{package}t64"), fetched)  # t64: its name from Ubuntu 24.04 on
    also = tuple(path.parent for path in fetched.glob(f"usr/lib/*/{interpreter.library_name}"))
    found = find_library_directory(interpreter, also=also)
    if found is not None:
        return found
    if also or not interpreter.executable.startswith("/usr/bin/"):
        raise SetupError(
            f"{interpreter.executable} ({interpreter.full_version}) has no {interpreter.library_name} of its own "
            "version; use the distribution's Python (PYTHON=/usr/bin/python3) or one built with --enable-shared"
        )
    raise SetupError(f"Triton's Python stub needs {interpreter.library_name}; run: {apt_line(package)}")


def write_installation(root: Path, interpreter: Interpreter, *, backends: Path, libraries: Path) -> None:
    """Write `installation.json` in one step; it comes last, so that what it names is there."""
    server = root / DIRECTORY / "pytriton" / "tritonserver"
    installation = {
        "tritonserver": relative(root, server / "bin" / "tritonserver"),
        "backend_directory": relative(root, backends),
        "cache_directory": relative(root, server / "caches"),
        "library_path": [relative(root, root / DIRECTORY / "nvidia_pytriton.libs"), relative(root, libraries)],
        "python_version": interpreter.feature_version,
    }
    file = installation_file(root)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(installation, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, file)  # noqa: PTH105 - one step, also where the file exists


def relative(root: Path, path: Path) -> str:
    """Return a path as it is written in files: relative inside the repository, absolute outside."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
