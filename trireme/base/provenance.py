# SPDX-License-Identifier: Apache-2.0
"""The code and the processor that a measurement is of."""

import platform
import subprocess
from pathlib import Path

from trireme.base.project_files import CODE_ROOT


def commit() -> str | None:
    """Return the commit of the checkout, "-dirty" where a file is not as the commit says, benchmarks' results apart.

    None: there is no checkout.
    """
    try:
        changed = _git("status", "--porcelain", "--", ":/", ":(exclude,top)benchmarks/results")
        return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None  # installed without its repository


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=CODE_ROOT, capture_output=True, text=True, check=True).stdout.strip()


def cpu_model() -> str:
    """Return the processor's name, as Linux has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
