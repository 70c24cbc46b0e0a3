# SPDX-License-Identifier: Apache-2.0
"""Envoy in `.tools/envoy`, from the wheel that brings its program.

Tests of `trireme rollout export` run it. Where there is no wheel nothing is installed, and what needs it is skipped.
"""

from __future__ import annotations

import platform
from pathlib import Path

from scripts.environments import serving_python
from trireme.installing.commands import say
from trireme.installing.unpacked_lock import UnpackedLock

WHEELS = UnpackedLock(".tools/envoy", "requirements/envoy.txt")
MACHINES = {("Linux", "x86_64"), ("Linux", "aarch64")}


def program(root: Path) -> Path:
    """Return the path of Envoy."""
    return root / WHEELS.directory / "envoy" / "_bin" / "envoy"


def is_current(root: Path) -> bool:
    """Return whether Envoy is installed, or this machine has no wheel of it."""
    return (platform.system(), platform.machine()) not in MACHINES or WHEELS.is_current(root)


def prepare(root: Path) -> None:
    """Unpack the wheel.

    Raises:
        SetupError: a download failed.
    """
    WHEELS.unpack(root, python=serving_python(root))
    say(f"{WHEELS.directory}: envoy is {program(root).relative_to(root)}")
