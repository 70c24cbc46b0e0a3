# SPDX-License-Identifier: Apache-2.0
"""Resident memory of a server, process by process."""

from running_server import RunningServer


def resident_mib(server: RunningServer) -> dict[str, float]:
    """Return the RSS in MiB of `tritonserver`, of each stub by its model, and of the engine process."""
    processes = {"tritonserver": server.tritonserver(), "engine": server.engine_process()}
    processes |= server.stubs()
    return {name: process.memory_info().rss / 2**20 for name, process in processes.items()}
