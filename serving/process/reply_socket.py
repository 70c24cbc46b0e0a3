# SPDX-License-Identifier: Apache-2.0
"""The socket at which a frontend takes responses from models past Triton, and what is written there.

A model connects and writes its name, behind a byte with the name's length. The frontend writes the name of a stream, in
the same form, for each request of that stream to the model, before Triton has the request. The model may answer such a
request with messages: `HEAD`, the name of the stream, and what its client is to get.
"""

import struct
from pathlib import Path

HEAD = struct.Struct("<IB")  # the length of the message, and of the stream's name


def reply_socket(run_dir: Path, frontend: str) -> Path:
    """Return the socket of a frontend. Args: `frontend`: its part of the names of its streams."""
    return run_dir / f"{frontend}.replies"


def frontend_of(stream_name: str) -> str:
    """Return the frontend's part of the name of one of its streams."""
    return stream_name.partition("-")[0]


def written_name(name: str) -> bytes:
    """Return a name as it is written."""
    encoded = name.encode()
    return bytes([len(encoded)]) + encoded


def read_names(data: bytes) -> tuple[list[str], bytes]:
    """Return the whole names in what was read, and the rest."""
    names, start = list[str](), 0
    while start < len(data) and (end := start + 1 + data[start]) <= len(data):
        names.append(data[start + 1 : end].decode())
        start = end
    return names, data[start:]
