# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a server by its parts: what its callers reach, the engine's process, and all between them."""

import contextlib
from collections.abc import Callable, Iterable

import psutil

FRONT_DOOR, SERVER, ENGINE = "front door", "server", "engine"

PartOf = Callable[[list[str]], str]


def cpu_by_part(processes: Iterable[psutil.Process], part_of: PartOf) -> dict[str, float]:
    """Return the core seconds up to now of each part, 0 where it has no process.

    Args:
        part_of: returns the part of a process by its command line.
    """
    found = dict.fromkeys((FRONT_DOOR, SERVER, ENGINE), 0.0)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[part_of(process.cmdline())] += times.user + times.system
    return found


def behind(front_door: str) -> PartOf:
    """Return how the processes of `trireme serve` fall into parts, and of what stands before it.

    Args:
        front_door: words of the command line of the process that callers reach.
    """

    def part_of(command: list[str]) -> str:
        line = " ".join(command)
        if "serving.engine_process.engine_loop" in line:
            return ENGINE
        return FRONT_DOOR if front_door in line else SERVER

    return part_of
