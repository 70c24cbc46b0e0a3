# SPDX-License-Identifier: Apache-2.0
"""Options of pytest."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine-spec",
        type=Path,
        default=None,
        help="JSON of a real engine for test_engine_conformance.py, which then runs on nothing else; with -m gpu",
    )
