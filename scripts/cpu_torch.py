# SPDX-License-Identifier: Apache-2.0
"""The CPU build of torch, the one package that no lock holds.

On the package index torch for Linux is the CUDA build: gigabytes that a machine without a GPU does not need. The CPU
build (local version `+cpu`) has an index of its own, and the files of this project name no index. So the build is taken
from what pip is configured with, else from where uv knows CPU builds to be; the version is the one of
requirements/build-cpu.in, the hash is not checked.
"""

from __future__ import annotations

import re
from pathlib import Path

from trireme.installing.commands import SetupError, run, say

WANTED = "requirements/build-cpu.in"


def install_cpu_torch(root: Path, python: str) -> None:
    """Install torch into the environment of `python`, whose other packages come from the lock.

    Raises:
        SetupError: neither pip nor uv finds a CPU build.
    """
    version = torch_version((root / WANTED).read_text(encoding="utf-8"))
    uv = str(root / ".tools" / "lock" / "bin" / "uv")
    say(f"installing the CPU build of torch {version}")
    ways = (
        [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", f"torch=={version}+cpu"],
        [uv, "pip", "install", "--python", python, "--no-deps", "--torch-backend", "cpu", f"torch=={version}"],
    )
    for way in ways:
        try:
            run(way, root=root, doing="installing torch")
        except SetupError:
            continue
        return
    raise SetupError(
        f"no CPU build of torch {version} found; point PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL to one "
        f"(torch=={version}+cpu) and run it again"
    )


def torch_version(requirements: str) -> str:
    """Return the version that a requirements file pins.

    Raises:
        SetupError: the file pins no version.
    """
    found = re.search(r"^torch==(\S+)", requirements, re.MULTILINE)
    if found is None:
        raise SetupError(f"{WANTED} pins no torch")
    return found.group(1)
