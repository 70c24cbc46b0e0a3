# SPDX-License-Identifier: Apache-2.0
"""The real Envoy, for tests."""

from pathlib import Path

import pytest

from scripts import unpacked_programs

ENVOY = unpacked_programs.ENVOY.program(Path(__file__).resolve().parents[2])
needs_envoy = pytest.mark.skipif(
    not ENVOY.is_file(), reason="Envoy is not installed: python3 scripts/bootstrap.py --only envoy"
)
