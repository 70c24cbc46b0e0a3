# SPDX-License-Identifier: Apache-2.0
"""A subcommand of `trireme` run in this process, which has its imports done: what it says and its exit code."""

import contextlib
import io
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest

from trireme.commands import run_command


def run_here(
    name: str, *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a subcommand as a process would.

    Args:
        cwd: its working folder; None: this one.
        env: its whole environment; None: this one.
    """
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.dict(os.environ, os.environ if env is None else env, clear=True),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as end,
    ):
        run_command(name, [*map(str, arguments)])
    code = end.value.code
    return subprocess.CompletedProcess(
        [name], code if isinstance(code, int) else 0, stdout.getvalue(), stderr.getvalue()
    )
