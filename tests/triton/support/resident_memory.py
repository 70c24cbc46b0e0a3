# SPDX-License-Identifier: Apache-2.0
"""Resident memory of a server, process by process."""

import itertools
import statistics
from collections.abc import Sequence

from running_server import RunningServer


def resident_mib(server: RunningServer) -> dict[str, float]:
    """Return the RSS in MiB of `tritonserver`, of each stub by its model, and of the engine process."""
    processes = {"tritonserver": server.tritonserver(), "engine": server.engine_process()}
    processes |= server.stubs()
    return {name: process.memory_info().rss / 2**20 for name, process in processes.items()}


def kept_by_a_round(memory: Sequence[float]) -> float:
    """Return what a round leaves behind, the median of the rounds: `memory` is what a process has after each.

    A leak grows in each, while an allocator keeps the pages of the one round that held more at a time than any before
    (50 MB free of 120, read with `malloc_stats`).
    """
    return statistics.median(after - before for before, after in itertools.pairwise(memory))
