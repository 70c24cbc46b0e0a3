# SPDX-License-Identifier: Apache-2.0
"""The program perf_analyzer in `.tools/perf-analyzer`: NVIDIA's, from a wheel of Triton's client.

The two libraries that it is linked to are beside it, and a script that starts it with them. The program is for x86_64;
on another machine there is nothing to install, and what needs it is skipped.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from scripts.environments import serving_python
from trireme.installing.commands import SetupError, say
from trireme.installing.system_packages import apt_line, fetch_package_files
from trireme.installing.unpacked_lock import UnpackedLock

WHEELS = UnpackedLock(".tools/perf-analyzer", "requirements/perf-analyzer.txt")
PACKAGE = "libb64-0d"
LIBRARY = "libb64.so.0d"

_STARTER = """\
#!/bin/sh
# Starts the perf_analyzer of the wheel with the libraries that it is linked to.
here=$(dirname "$(readlink -f "$0")")/..
exec env LD_LIBRARY_PATH="$here/nvidia/cuda_runtime/lib:$here/lib" "$here/bin/perf_analyzer" "$@"
"""


def program(root: Path) -> Path:
    """Return the path of perf_analyzer; its folder can be put on PATH."""
    return root / WHEELS.directory / "path" / "perf_analyzer"


def is_current(root: Path) -> bool:
    """Return whether perf_analyzer is installed, or is not to be had for this machine."""
    return platform.machine() != "x86_64" or (WHEELS.is_current(root) and program(root).is_file())


def prepare(root: Path) -> None:
    """Unpack the wheels and add the library that comes from the distribution's package.

    Raises:
        SetupError: a download failed.
    """
    if not WHEELS.is_current(root):
        WHEELS.unpack(root, python=serving_python(root))
    directory = root / WHEELS.directory
    (directory / "lib").mkdir(exist_ok=True)
    shutil.copy2(_find_library(root), directory / "lib" / LIBRARY)
    starter = program(root)
    starter.parent.mkdir(exist_ok=True)
    starter.write_text(_STARTER, encoding="utf-8")
    starter.chmod(0o755)
    say(f"{WHEELS.directory}: perf_analyzer is {starter.relative_to(root)}")


def _find_library(root: Path) -> Path:
    fetched = root / ".tools" / "debian"
    for attempt in range(2):
        for usr in (Path("/usr"), fetched / "usr"):
            found = next(usr.glob(f"lib/x86_64-linux-gnu/{LIBRARY}"), None)
            if found is not None:
                return found
        if attempt == 0:
            say(f"{LIBRARY} is not installed; fetching the package {PACKAGE}")
            fetch_package_files((PACKAGE,), fetched)
    raise SetupError(f"perf_analyzer needs {LIBRARY}; run: {apt_line(PACKAGE)}")
