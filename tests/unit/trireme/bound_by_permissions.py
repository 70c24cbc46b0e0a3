# SPDX-License-Identifier: Apache-2.0
"""`trireme` run so that the permissions of files bind it, also where the tests run as root."""

import os
import subprocess
import sys
from collections.abc import Sequence

from trireme.base.project_files import CODE_ROOT

# A root without these two capabilities may read and write what its owner may, no more.
_BOUND = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def trireme(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run `trireme`, and return what it said."""
    argv: Sequence[str] = [sys.executable, "-m", "trireme", *map(str, arguments)]
    bound = [*_BOUND, *argv] if os.geteuid() == 0 else argv
    return subprocess.run(bound, cwd=CODE_ROOT, capture_output=True, text=True, check=False)


def refusal(*arguments: object) -> str:
    """Return the one line with which a command is refused, with exit code 2."""
    result = trireme(*arguments)
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.splitlines() if line.startswith("trireme: ")]
    assert len(lines) == 1, result.stderr
    assert "[Errno" not in result.stderr
    return lines[0]
