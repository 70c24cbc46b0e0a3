# SPDX-License-Identifier: Apache-2.0
"""Ports for a server that is about to be started, here and in the tests."""

import random
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_UNPRIVILEGED = range(10_000, 65_536)


def free_ports(count: int) -> list[int]:
    """Return different ports that nothing listens on at this moment, and that no outgoing connection gets.

    Triton binds its ports at the end of loading. Until then a client that asks whether it is ready connects to closed
    ports, and a connection to a closed port that may be its own, too, now and then gets that one and is connected with
    itself (7 of 300,000, Linux 6.18): Triton then finds it in use.
    """
    lowest, highest = map(int, _OUTGOING.read_text().split())
    # All of them where the system takes all for outgoing connections.
    ports = [port for port in _UNPRIVILEGED if not lowest <= port <= highest] or list(_UNPRIVILEGED)
    random.shuffle(ports)
    free = (port for port in ports if _is_free(port))
    return [next(free) for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
