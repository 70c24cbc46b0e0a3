# SPDX-License-Identifier: Apache-2.0
"""`trireme` run so that the permissions of files bind it, also where the tests run as root."""

import ctypes
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

from command_here import run_here

from trireme.base.project_files import CODE_ROOT

# A root without these two capabilities (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, linux/capability.h) may read and
# write what its owner may, no more. A thread lays them down for itself and those that it starts, for good.
_ABOVE_PERMISSIONS = 1 << 1 | 1 << 2
_VERSION_3 = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


def _bind() -> None:
    """Hold this thread to the permissions of files."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # twice effective, permitted, inheritable: 32 bits each
    _check(_LIBC.capget(header, sets))
    for number in (0, 1):
        sets[number] &= ~_ABOVE_PERMISSIONS
    _check(_LIBC.capset(header, sets))


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def trireme(name: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run `trireme`, and return what it said."""
    with ThreadPoolExecutor(1, initializer=_bind) as thread:
        return thread.submit(run_here, name, *arguments, cwd=CODE_ROOT).result()


def refusal(name: str, *arguments: object) -> str:
    """Return the one line with which a command is refused, with exit code 2."""
    result = trireme(name, *arguments)
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.splitlines() if line.startswith("trireme: ")]
    assert len(lines) == 1, result.stderr
    assert "[Errno" not in result.stderr
    return lines[0]
