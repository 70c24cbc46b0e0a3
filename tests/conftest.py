# SPDX-License-Identifier: Apache-2.0
"""Options of pytest, and what becomes of the processes that tests run in."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from serving.engines.signal_stack import drop_signal_stack


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine-spec",
        type=Path,
        default=None,
        help="JSON of a real engine for test_engine_conformance.py, which then runs on nothing else; with -m gpu",
    )

    parser.addoption(
        "--tritonserver",
        type=Path,
        default=None,
        help="program of another Triton server for tests/triton, such as /opt/tritonserver/bin/tritonserver; "
        "without it the one on PATH, or of `make setup`",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put another server where `trireme serve` looks first, also for all that tests start."""
    program = config.getoption("--tritonserver")
    if program is None:
        return
    if program.name != "tritonserver" or not os.access(program, os.X_OK):
        raise pytest.UsageError(f"--tritonserver {program}: name a program called tritonserver that can be run")
    os.environ["PATH"] = os.pathsep.join([str(program.resolve().parent), os.environ.get("PATH", os.defpath)])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """An earlier test that unloaded a model of OpenVINO's left its process such that the next signal would end it."""
    drop_signal_stack()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Tell how a process ended that was lost, which pytest-xdist does not."""
    if not error:
        return
    status = node.gateway._io.popen.wait(30)
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    node.config.get_terminal_writer().line(f"\n{node.gateway.id} has ended with {how}")
