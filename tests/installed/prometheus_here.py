# SPDX-License-Identifier: Apache-2.0
"""Prometheus' programs, for tests of what they read."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.unpacked_programs import PROMETHEUS

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "helm/trireme/files"
needs_prometheus = pytest.mark.skipif(
    not PROMETHEUS.is_there(ROOT),
    reason="Prometheus is not installed: python3 scripts/bootstrap.py --only prometheus",
)


def run(name: str, *arguments: str | Path, folder: Path = FILES / "prometheus") -> str:
    """Return what a program says; the test fails where the program fails."""
    command = [str(PROMETHEUS.program(ROOT, name)), *map(str, arguments)]
    environ = os.environ | {"GOGC": "1000"}  # promtool collects garbage for a third of its time otherwise
    result = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr
