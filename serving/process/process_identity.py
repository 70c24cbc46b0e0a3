# SPDX-License-Identifier: Apache-2.0
"""Tell a process from a later process with the same number."""

from pathlib import Path

import psutil


def start_ticks(pid: int) -> int:
    """Return when a process began, in the kernel's ticks since the machine's boot.

    `psutil`'s `create_time` adds the time of the boot, which moves with the machine's clock: two looks at one process
    may then differ by a second.

    Raises:
        psutil.NoSuchProcess: no process has this number.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError) as exc:
        raise psutil.NoSuchProcess(pid) from exc
    return int(stat.rpartition(")")[2].split()[19])  # field 22; the name before it may hold spaces
