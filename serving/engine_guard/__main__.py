# SPDX-License-Identifier: Apache-2.0
"""The guard as a program, started by `serving.engine_guard.guarded_process` with a socket to it."""

import os
import signal
import socket
import sys

from serving.engine_guard.guard import Guard
from serving.engine_guard.process_tree import adopt_orphans


def main() -> None:
    """Guard the engine that an adapter orders over an inherited socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle: it drains first
    adopt_orphans()
    # A group of its own: a signal to the server's group leaves the guard the time to end the engine's processes.
    os.setpgid(0, 0)
    guard = Guard(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGTERM, lambda *_: guard.end_soon())
    guard.run()


if __name__ == "__main__":
    main()
