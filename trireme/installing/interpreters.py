# SPDX-License-Identifier: Apache-2.0
"""The Python of a set-up, and its shared library; installing is left to `environments`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trireme.installing.commands import SetupError
from trireme.installing.system_packages import apt_line

SUPPORTED = ((3, 11), (3, 12), (3, 13))

# 3.13 comes last: numpy 1.x has no wheel for it and is compiled, which takes a compiler and two minutes.
PREFERENCE = ("python3", "python3.12", "python3.11", "python3.13")

# Runs in the interpreter that is asked about, which may be of any version.
PROBE = """
import importlib.util, json, os, sys, sysconfig
variable = sysconfig.get_config_var
print(json.dumps({
    "executable": getattr(sys, "_base_executable", None) or sys.executable,
    "version": list(sys.version_info[:3]),
    "library_directories": [d for d in (
        variable("LIBDIR"),
        os.path.join(variable("LIBDIR") or "", variable("MULTIARCH") or ""),
        os.path.join(sys.base_prefix, "lib"),
        os.path.join("/usr/lib", variable("MULTIARCH") or ""),
    ) if d],
    "has_ensurepip": importlib.util.find_spec("ensurepip") is not None,
    "has_headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python installation as it describes itself; `executable` is never one of a virtual environment."""

    executable: str
    version: tuple[int, int, int]
    library_directories: tuple[str, ...]
    has_ensurepip: bool
    has_headers: bool

    @property
    def feature_version(self) -> str:
        """Return the version as in `python3.11`."""
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def full_version(self) -> str:
        """Return the version as in `3.11.7`."""
        return ".".join(map(str, self.version))

    @property
    def library_name(self) -> str:
        """Return the name of the shared library that Triton's Python stub is linked to."""
        return f"libpython{self.feature_version}.so.1.0"


def probe(executable: str) -> Interpreter | None:
    """Ask a Python about itself; None where it does not run (a pyenv shim of a version that is not active)."""
    try:
        result = subprocess.run([executable, "-I", "-c", PROBE], capture_output=True, text=True, timeout=60, check=True)
        facts = json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(
        executable=facts["executable"],
        version=tuple(facts["version"]),
        library_directories=tuple(facts["library_directories"]),
        has_ensurepip=facts["has_ensurepip"],
        has_headers=facts["has_headers"],
    )


def choose_interpreter(requested: str | None, *, search_path: str | None = None) -> Interpreter:
    """Return the Python to set up with: the requested one, else the first supported one of PREFERENCE on the path.

    Raises:
        SetupError: the requested one is missing or too old or new; or none is there.
    """
    if requested:
        found = shutil.which(requested, path=search_path)
        interpreter = probe(found) if found else None
        if interpreter is None:
            raise SetupError(f"{requested} does not run; give --python (or PYTHON) a Python 3.11, 3.12 or 3.13")
        if interpreter.version[:2] not in SUPPORTED:
            raise SetupError(f"{requested} is Python {interpreter.full_version}; Python 3.11, 3.12 or 3.13 is needed")
        return interpreter
    for name in PREFERENCE:
        found = shutil.which(name, path=search_path)
        interpreter = probe(found) if found else None
        if interpreter and interpreter.version[:2] in SUPPORTED:
            return interpreter
    raise SetupError(f"no Python 3.11, 3.12 or 3.13 on PATH; run: {apt_line('python3', 'python3-venv')}")


def library_fits(library: Path, full_version: str) -> bool:
    """Return whether a libpython has exactly this version; another one does not fit the standard library beside it."""
    pattern = re.escape(full_version.encode()) + rb"\+?\x00"
    return re.search(pattern, library.read_bytes()) is not None


def find_library_directory(interpreter: Interpreter, *, also: tuple[Path, ...] = ()) -> Path | None:
    """Return the folder with the libpython of this interpreter; None where no folder has one that fits."""
    for directory in (*map(Path, interpreter.library_directories), *also):
        library = directory / interpreter.library_name
        if library.is_file() and library_fits(library, interpreter.full_version):
            return directory
    return None
