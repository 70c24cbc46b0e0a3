# SPDX-License-Identifier: Apache-2.0
"""The socket at which a frontend takes responses from models past Triton, and what is written there.

A model connects, waits for `HELLO`, and writes messages: `HEAD`, the name of a stream, and what its client is to get.
"""

import struct
from pathlib import Path

HEAD = struct.Struct("<IB")  # the length of the message, and of the stream's name
HELLO = b"!"  # from the frontend: it reads from now on


def reply_socket(run_dir: Path, frontend: str) -> Path:
    """Return the socket of a frontend. Args: `frontend`: its part of the names of its streams."""
    return run_dir / f"{frontend}.replies"


def frontend_of(stream_name: str) -> str:
    """Return the frontend's part of the name of one of its streams."""
    return stream_name.partition("-")[0]
