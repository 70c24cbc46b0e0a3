# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a running server does, with an end to the wait."""

import time
from collections.abc import Callable

from running_server import RunningServer


def wait_until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Return the seconds until the condition holds.

    Raises:
        AssertionError: it does not hold in time.
    """
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < timeout_s, "did not happen in time"
        time.sleep(0.005)
    return time.monotonic() - start_s


def wait_idle(server: RunningServer, timeout_s: float) -> float:
    """Return the seconds until no KV cache block is used."""
    return wait_until(lambda: server.used_kv_blocks() == 0, timeout_s)
