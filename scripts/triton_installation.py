# SPDX-License-Identifier: Apache-2.0
"""The Triton server of a checkout, in `.tools/triton`, fitted to the Python of `.venv`."""

from __future__ import annotations

from pathlib import Path

from scripts.environments import ENVIRONMENTS, python_of, version_of
from trireme.installing import triton_server

SERVING = ENVIRONMENTS["venv"]


def is_current(root: Path) -> bool:
    """Return whether the wheel is the locked one and the backend fits the environment and finds its libpython."""
    lock = root / triton_server.LOCK
    return triton_server.is_current(root, lock=lock, python_version=version_of(root, SERVING))


def prepare(root: Path) -> None:
    """Install the server, or only fit its backend to another Python.

    Raises:
        SetupError: the download failed, or no libpython fits the environment's Python.
    """
    triton_server.prepare(root, lock=root / triton_server.LOCK, python=python_of(root, SERVING))
