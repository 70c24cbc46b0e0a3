# SPDX-License-Identifier: Apache-2.0
"""The command lines of processes that may end while they are looked at."""

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty: the process has ended, and perhaps nobody has reaped it."""
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie, too
        return []
